//! The walk through the layers, from new to old, until every key is complete.

use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use utils::lsn::Lsn;

use super::look_ahead::look_ahead;
use super::walk::Walk;
use crate::context::RequestContext;
use crate::page_cache::CachedTimeline;
use crate::task_mgr::TaskKind;
use crate::tenant::storage_layer::{KeyHistory, ReconstructState};
use crate::tenant::timeline::state::{Layers, TimelineState};
use errors::StorageError;
use metrics::METRICS;

/// The page cache, if the read may use it: only computes ask for the same pages again soon, and scans of the whole
/// key space would evict those. Above the last record, the changes at an LSN may still be incomplete.
pub(super) fn cache_for(state: &TimelineState, lsn: Lsn, ctx: &RequestContext) -> Option<CachedTimeline> {
    let is_final = lsn <= state.record_lsn().last;
    (is_final && ctx.task_kind() == TaskKind::PageRequestHandler).then(|| state.cached.clone())
}

/// Gathers what is needed to rebuild every key of `wanted` as of `lsn`: from the timeline's own layers, then from
/// those of its ancestors, each as of the branch point.
pub(super) async fn collect(
    state: &TimelineState,
    wanted: KeySpace,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<ReconstructState, StorageError> {
    let mut found = ReconstructState::with_cache(cache_for(state, lsn, ctx), state.conf.rebuild_bytes);
    let (mut state, mut wanted, mut lsn) = (state, wanted, lsn);
    loop {
        let _guard = state.enter()?;
        let rest = collect_own(&state.layers(), wanted, lsn, &mut found, ctx).await?;
        let Some(ancestor) = state.ancestor.as_ref().filter(|_| !rest.is_empty()) else {
            METRICS.layers_per_read_global.observe(f64::from(found.layers_visited));
            return Ok(found);
        };
        (state, wanted, lsn) = (&ancestor.state, rest, lsn.min(ancestor.lsn));
        // After a crash, the ancestor's latest WAL is ingested again.
        if state.record_lsn().last < lsn {
            state.wait_for_lsn_timeout(lsn, state.conf.wait_lsn_timeout).await?;
        }
    }
}

/// The same for one key.
pub(super) async fn collect_key(
    state: &TimelineState,
    key: Key,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<KeyHistory, StorageError> {
    let found = collect(state, KeySpace::single(key..key.next()), lsn, ctx).await?;
    Ok(found.into_histories().remove(&key).unwrap_or_default())
}

/// Gathers what one timeline's own layers have. Returns the keys that may need older versions but are covered by no
/// further layer.
async fn collect_own(
    layers: &Layers,
    mut wanted: KeySpace,
    lsn: Lsn,
    found: &mut ReconstructState,
    ctx: &RequestContext,
) -> Result<KeySpace, StorageError> {
    let mut end = Lsn(lsn.0.saturating_add(u64::from(!fault::planted(fault::Bug::ReadEndsEarly))));
    let frozen = layers.frozen.iter().rev().map(|frozen| &frozen.layer);
    for layer in layers.open.iter().chain(frozen).filter(|layer| layer.start_lsn() <= lsn) {
        if wanted.is_empty() {
            return Ok(wanted);
        }
        found.layers_visited += 1;
        layer.get_values_reconstruct_data(&wanted, layer.start_lsn()..end, found, ctx).await?;
        wanted.subtract(&found.completed());
        end = layer.start_lsn();
    }
    let mut walk = Walk::new(layers, &wanted, end);
    let mut has_looked_ahead = false;
    while let Some(layer) = walk.peek() {
        if !has_looked_ahead && !layer.is_local() {
            look_ahead(walk.clone(), found, ctx).await;
            has_looked_ahead = true;
        }
        let Some(mut visit) = walk.next() else { break };
        let keys = visit.take_keys();
        found.layers_visited += 1;
        visit.layer.collect(&keys, visit.lsns.clone(), found, ctx).await?;
        walk.descend(&visit, keys, || found.completed());
    }
    Ok(walk.into_rest())
}
