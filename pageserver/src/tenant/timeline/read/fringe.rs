//! Which layers a read has yet to visit, newest first.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use pageserver_api::key::Key;
use pageserver_api::keyspace::{KeySpace, KeySpaceBuilder};
use utils::lsn::Lsn;

use crate::tenant::layer_map::Layer;
use crate::tenant::timeline::state::Layers;

/// Layers still to be visited, each with the keys wanted from it. Every key is wanted from one layer at most. The
/// newest goes first, so that key ranges that come to the same layer on different ways are read from it together.
#[derive(Clone, Default)]
pub(super) struct Fringe {
    visits: BTreeMap<VisitOrder, Visit>,
    /// Keys that no layer covers any more.
    rest: KeySpaceBuilder,
}

/// End, then start of the LSNs to be read; the rest tells layers apart.
type VisitOrder = (Lsn, Lsn, Key, bool);

#[derive(Clone)]
pub(super) struct Visit {
    pub(super) layer: Arc<Layer>,
    pub(super) lsns: Range<Lsn>,
    pub(super) keys: KeySpaceBuilder,
}

impl Fringe {
    /// Adds the layers that hold the next older versions, below `end`, of `keys`.
    pub(super) fn extend(&mut self, layers: &Layers, keys: &KeySpace, end: Lsn) {
        for range in keys.ranges() {
            let mut uncovered = range.start;
            for result in layers.map.search(range, end) {
                self.add_rest(uncovered..result.keys.start);
                uncovered = result.keys.end;
                let desc = result.layer.desc();
                let order = (end, result.lsn_floor, desc.key_range.start, desc.is_delta);
                let visit = self.visits.entry(order).or_insert_with(|| Visit {
                    layer: Arc::clone(&result.layer),
                    lsns: result.lsn_floor..end,
                    keys: KeySpaceBuilder::default(),
                });
                debug_assert!(Arc::ptr_eq(&visit.layer, &result.layer), "two layers at one place of the fringe");
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

    /// Puts back a visit that [`Fringe::pop`] has given.
    pub(super) fn put_back(&mut self, visit: Visit) {
        let desc = visit.layer.desc();
        let order = (visit.lsns.end, visit.lsns.start, desc.key_range.start, desc.is_delta);
        self.visits.insert(order, visit);
    }

    /// The keys that no layer covers any more.
    pub(super) fn into_rest(self) -> KeySpace {
        self.rest.build()
    }

    /// The next visit.
    pub(super) fn pop(&mut self) -> Option<Visit> {
        self.visits.pop_last().map(|(_, visit)| visit)
    }
}
