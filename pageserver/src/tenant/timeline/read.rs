//! Reads: walk the layers from new to old until every key is complete, then rebuild the pages.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::{KeySpace, KeySpaceBuilder};
use utils::lsn::Lsn;

use super::rebuild::{rebuild, rebuild_all};
use super::state::{Layers, TimelineState};
use crate::context::RequestContext;
use crate::errors::StorageError;
use crate::tenant::layer_map::Layer;
use crate::tenant::storage_layer::ReconstructState;

pub(super) async fn get(
    state: &TimelineState,
    key: Key,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<Bytes, StorageError> {
    let _guard = state.enter()?;
    let found = collect(&state.layers(), KeySpace::single(key..key.next()), lsn, ctx).await?;
    let history = found.into_histories().remove(&key).unwrap_or_default();
    let redo = state.redo.read().clone();
    rebuild(key, lsn, history, &redo)
}

pub(super) async fn get_vectored(
    state: &TimelineState,
    keyspace: &KeySpace,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<BTreeMap<Key, Result<Bytes, StorageError>>, StorageError> {
    let _guard = state.enter()?;
    let found = collect(&state.layers(), keyspace.clone(), lsn, ctx).await?;
    let redo = state.redo.read().clone();
    rebuild_all(found.into_histories(), lsn, redo).await
}

/// Gathers what is needed of every key of `wanted` to rebuild it as of `lsn`.
async fn collect(
    layers: &Layers,
    mut wanted: KeySpace,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<ReconstructState, StorageError> {
    let mut found = ReconstructState::new();
    let mut end = Lsn(lsn.0.saturating_add(u64::from(!fault::planted(fault::Bug::ReadEndsEarly))));
    let frozen = layers.frozen.iter().rev().map(|frozen| &frozen.layer);
    for layer in layers.open.iter().chain(frozen).filter(|layer| layer.start_lsn() <= lsn) {
        if wanted.is_empty() {
            return Ok(found);
        }
        layer.get_values_reconstruct_data(&wanted, layer.start_lsn()..end, &mut found, ctx).await?;
        wanted.subtract(&found.completed());
        end = layer.start_lsn();
    }
    let mut fringe = Fringe::default();
    fringe.extend(layers, &wanted, end);
    while let Some(Visit { layer, lsns, keys }) = fringe.pop() {
        let mut keys = keys.build();
        layer.collect(&keys, lsns.clone(), &mut found, ctx).await?;
        // Below an image layer is nothing: a key that it covers but does not have did not exist then.
        if layer.desc().is_delta {
            keys.subtract(&found.completed());
            fringe.extend(layers, &keys, lsns.start);
        }
    }
    Ok(found)
}

/// Layers still to be visited, each with the keys wanted from it. Every key is wanted from one layer at most. The
/// newest goes first, so that key ranges that come to the same layer on different ways are read from it together.
#[derive(Default)]
struct Fringe {
    visits: BTreeMap<VisitOrder, Visit>,
}

/// End, then start of the LSNs to be read; the rest tells layers apart.
type VisitOrder = (Lsn, Lsn, Key, bool);

struct Visit {
    layer: Arc<Layer>,
    lsns: Range<Lsn>,
    keys: KeySpaceBuilder,
}

impl Fringe {
    /// Adds the layers that hold the next older versions, below `end`, of `keys`.
    fn extend(&mut self, layers: &Layers, keys: &KeySpace, end: Lsn) {
        for range in keys.ranges() {
            for result in layers.map.search(range, end) {
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
        }
    }

    fn pop(&mut self) -> Option<Visit> {
        self.visits.pop_last().map(|(_, visit)| visit)
    }
}
