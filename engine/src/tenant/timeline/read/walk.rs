//! Determines which layers a read visits, newest first: each step goes to the newest remaining layer, and from a
//! delta layer on to what lies below it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use pageserver_api::key::Key;
use pageserver_api::keyspace::{KeySpace, KeySpaceBuilder};
use utils::lsn::Lsn;

use crate::tenant::layer_map::Layer;
use crate::tenant::timeline::state::Layers;

/// Layers still to be visited, each with the keys wanted from it. Every key is wanted from at most one layer. The
/// newest goes first, so that key ranges that reach the same layer by different paths are read from it together.
#[derive(Clone)]
pub(super) struct Walk<'a> {
    layers: &'a Layers,
    visits: BTreeMap<VisitOrder, Visit>,
    /// Keys that no further layer covers.
    rest: KeySpaceBuilder,
}

/// End, then start of the LSNs to be read; the rest distinguishes layers.
type VisitOrder = (Lsn, Lsn, Key, bool);

/// A layer, and what is wanted from it.
#[derive(Clone)]
pub(super) struct Visit {
    pub(super) layer: Arc<Layer>,
    pub(super) lsns: Range<Lsn>,
    keys: KeySpaceBuilder,
}

impl<'a> Walk<'a> {
    /// A walk that reads the newest versions of `keys` below `end`.
    pub(super) fn new(layers: &'a Layers, keys: &KeySpace, end: Lsn) -> Self {
        let mut walk = Self { layers, visits: BTreeMap::new(), rest: KeySpaceBuilder::default() };
        walk.add(keys, end);
        walk
    }

    /// The next layer.
    pub(super) fn peek(&self) -> Option<&Arc<Layer>> {
        self.visits.last_key_value().map(|(_, visit)| &visit.layer)
    }

    /// The next visit.
    pub(super) fn next(&mut self) -> Option<Visit> {
        self.visits.pop_last().map(|(_, visit)| visit)
    }

    /// Continues below `visit` with those of its keys that are not `complete`. There is nothing below an image layer:
    /// a key that it covers but does not contain did not exist then.
    pub(super) fn descend(&mut self, visit: &Visit, mut keys: KeySpace, complete: impl FnOnce() -> KeySpace) {
        if visit.layer.desc().is_delta {
            keys.subtract(&complete());
            self.add(&keys, visit.lsns.start);
        }
    }

    /// The keys that no further layer covers. Valid once no visit is left.
    pub(super) fn into_rest(self) -> KeySpace {
        self.rest.build()
    }

    /// Adds the layers that hold the next older versions, below `end`, of `keys`.
    fn add(&mut self, keys: &KeySpace, end: Lsn) {
        for range in keys.ranges() {
            let mut uncovered = range.start;
            for result in self.layers.map.search(range, end) {
                self.add_rest(uncovered..result.keys.start);
                uncovered = result.keys.end;
                let desc = result.layer.desc();
                let order = (end, result.lsn_floor, desc.key_range.start, desc.is_delta);
                let visit = self.visits.entry(order).or_insert_with(|| Visit {
                    layer: Arc::clone(&result.layer),
                    lsns: result.lsn_floor..end,
                    keys: KeySpaceBuilder::default(),
                });
                debug_assert!(Arc::ptr_eq(&visit.layer, &result.layer), "two layers at one place of the walk");
                visit.keys.add_range(result.keys);
            }
            self.add_rest(uncovered..range.end);
        }
    }

    fn add_rest(&mut self, keys: Range<Key>) {
        if keys.start < keys.end {
            self.rest.add_range(keys);
        }
    }
}

impl Visit {
    /// The keys wanted from the layer.
    pub(super) fn take_keys(&mut self) -> KeySpace {
        std::mem::take(&mut self.keys).build()
    }
}
