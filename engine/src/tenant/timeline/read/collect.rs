//! The walk through the layers, from new to old, until every key is complete.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::look_ahead::{COLD_MAX, look_ahead};
use super::open_ahead::open_ahead;
use super::walk::Walk;
use crate::context::RequestContext;
use crate::page_cache::CachedTimeline;
use crate::task_mgr::TaskKind;
use crate::tenant::layer_map::Layer;
use crate::tenant::storage_layer::{KeyHistory, ReadCosts, ReconstructState, Searched, Sums, Visited};
use crate::tenant::timeline::state::{Branching, Layers, TimelineState};
use errors::{RemoteFailure, StorageError};

/// The page cache, if the read may use it: only computes ask for the same pages again soon, and scans of the whole
/// key space would evict those. Above the last record, the changes at an LSN may still be incomplete.
pub(super) fn cache_for(state: &TimelineState, lsn: Lsn, ctx: &RequestContext) -> Option<CachedTimeline> {
    let is_final = lsn <= state.record_lsn().last;
    (is_final && ctx.task_kind() == TaskKind::PageRequestHandler).then(|| state.cached.clone())
}

/// Gathers what is needed to rebuild every key of `wanted` as of `lsn`: from the timeline's own layers, then from
/// those of its ancestors, each as of the branch point. Tells apart what is searched for each key.
pub(super) async fn collect(
    state: &TimelineState,
    wanted: KeySpace,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<ReconstructState, StorageError> {
    let mut found = ReconstructState::with_cache(cache_for(state, lsn, ctx), state.conf.rebuild_bytes);
    if counts_as_read(ctx) {
        found.count_by_key(&wanted);
    }
    collect_into(state, wanted, (lsn, lsn), found, ctx).await
}

/// Whether a read is one of those that metrics of pages are about: not what the server reads for jobs of its own.
pub(super) fn counts_as_read(ctx: &RequestContext) -> bool {
    !matches!(ctx.task_kind(), TaskKind::Compaction | TaskKind::GarbageCollector)
}

/// As [`collect`], for a read as of `asked`, of which this is a part: versions up to `lsn`. What a read needs is kept
/// as long as its own LSN is, whatever lies between.
async fn collect_for(
    state: &TimelineState,
    wanted: KeySpace,
    (lsn, asked): (Lsn, Lsn),
    ctx: &RequestContext,
) -> Result<ReconstructState, StorageError> {
    let new = || ReconstructState::with_cache(cache_for(state, lsn, ctx), state.conf.rebuild_bytes);
    collect_with(state, wanted, (lsn, asked), new, ctx).await
}

/// As [`collect_for`], into what `new` makes. Begins again if a timeline on the way was detached from its ancestor
/// meanwhile: what the read still needed of that may be gone.
async fn collect_with(
    state: &TimelineState,
    wanted: KeySpace,
    lsns: (Lsn, Lsn),
    new: impl Fn() -> ReconstructState,
    ctx: &RequestContext,
) -> Result<ReconstructState, StorageError> {
    loop {
        let depth = state.depth();
        if depth == 1 {
            return collect_into(state, wanted, lsns, new(), ctx).await;
        }
        match collect_into(state, wanted.clone(), lsns, new(), ctx).await {
            Err(error) if state.depth() < depth => tracing::debug!("the ancestor is not needed any more: {error}"),
            found => return found,
        }
    }
}

async fn collect_into(
    state: &TimelineState,
    wanted: KeySpace,
    (lsn, asked): (Lsn, Lsn),
    mut found: ReconstructState,
    ctx: &RequestContext,
) -> Result<ReconstructState, StorageError> {
    found.pace = ctx.pace();
    let (mut wanted, mut lsn, mut asked) = (wanted, lsn, asked);
    let mut inherited: Option<Arc<Branching>> = None;
    loop {
        let state = inherited.as_ref().map_or(state, |branching| &branching.state);
        let _guard = state.enter()?;
        // In this order: what makes the ancestor dispensable is then in the snapshot, if it is gone.
        let ancestor = state.ancestor();
        let layers = state.layers();
        if !fault::planted(fault::Bug::ReadWithoutRecheck) {
            // Layers go only after the cutoff has moved: what is readable now is all in the snapshot.
            state.check_own(asked, ancestor.as_deref()).map_err(|cutoff| below_cutoff(state, asked, cutoff))?;
        }
        let rest = collect_own(state, &layers, wanted, lsn, &mut found, ctx).await?;
        let Some(ancestor) = ancestor.filter(|_| !rest.is_empty()) else {
            return Ok(found);
        };
        wanted = rest;
        (lsn, asked) = (lsn.min(ancestor.lsn), asked.min(ancestor.lsn));
        // After a crash, the ancestor's latest WAL is ingested again.
        if ancestor.state.record_lsn().last < lsn {
            let began = env::clock::now();
            ancestor.state.wait_for_lsn_timeout(lsn, ancestor.state.conf.wait_lsn_timeout).await?;
            found.costs.waiting += env::clock::now().saturating_duration_since(began);
        }
        inherited = Some(ancestor);
    }
}

/// The error for an LSN below `cutoff` that nothing keeps.
pub(in crate::tenant::timeline) fn below_cutoff(state: &TimelineState, lsn: Lsn, cutoff: Lsn) -> StorageError {
    if state.begins_detached_at(cutoff) {
        return StorageError::Invalid(format!(
            "LSN {lsn} is not readable: the timeline was detached from its ancestor at LSN {cutoff}, where its history \
             begins"
        ));
    }
    StorageError::Invalid(format!(
        "LSN {lsn} is not readable: history below LSN {cutoff} has been removed, but for branch points, leases and \
         holds; a longer window (pitr_interval, gc_horizon, history_max_bytes), a branch, a lease or a hold there \
         would have kept it"
    ))
}

/// The same for one key, for a read as of `asked`, of which this is a part.
pub(super) async fn collect_key(
    state: &TimelineState,
    key: Key,
    (lsn, asked): (Lsn, Lsn),
    ctx: &RequestContext,
) -> Result<KeyHistory, StorageError> {
    let found = collect_for(state, KeySpace::single(key..key.next()), (lsn, asked), ctx).await?;
    Ok(found.into_histories().remove(&key).unwrap_or_default())
}

/// As [`collect_key`], without the cache of rebuilt pages, and with the layers visited and what that cost.
pub(super) async fn collect_traced(
    state: &TimelineState,
    key: Key,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<(KeyHistory, Vec<Visited>, ReadCosts), StorageError> {
    let new = || ReconstructState::traced(state.conf.rebuild_bytes);
    let mut found = collect_with(state, KeySpace::single(key..key.next()), (lsn, lsn), new, ctx).await?;
    let (visits, costs) = (found.take_trace(), found.costs);
    Ok((found.into_histories().remove(&key).unwrap_or_default(), visits, costs))
}

/// Gathers what one timeline's own layers have. Returns the keys that may need older versions but are covered by no
/// further layer.
async fn collect_own(
    state: &TimelineState,
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
        let before = Visit::begin(found);
        found.layers_searched += 1;
        wanted.ranges().iter().for_each(|range| found.note_searched(range, Searched { layers: 1, filters: 0 }));
        layer.get_values_reconstruct_data(&wanted, layer.start_lsn()..end, found, ctx).await?;
        Visit::end(before, found, state.timeline_id, layer.start_lsn()..end, None);
        wanted.subtract(&found.completed());
        end = layer.start_lsn();
    }
    let mut walk = Walk::new(layers, &wanted, end);
    // Visits of layers in the bucket that are prepared.
    let mut prepared = 0;
    while let Some(layer) = walk.peek() {
        if !layer.is_local() {
            if prepared == 0 {
                open_ahead(state, layers);
                let costs = look_ahead(walk.clone(), found, ctx).await;
                found.costs += costs;
                prepared = COLD_MAX;
            }
            prepared -= 1;
        }
        let Some(mut visit) = walk.next() else { break };
        let keys = visit.take_keys();
        let (before, is_local) = (Visit::begin(found), visit.layer.is_local());
        found.note_file(visit.layer.identity().file_id);
        if let Err(error) = visit.layer.collect(&keys, visit.lsns.clone(), found, ctx).await {
            return Err(fenced_if_gone(state, error).await);
        }
        Visit::end(before, found, state.timeline_id, visit.lsns.clone(), Some((&visit.layer, is_local)));
        walk.descend(&visit, keys, || found.completed());
    }
    Ok(walk.into_rest())
}

/// What to say when a layer cannot be read. Whoever has taken the tenant over also removes what it no longer needs: to
/// be told that an object is missing would then be misleading, and an owner that has nothing to upload may not have
/// heard of it yet.
async fn fenced_if_gone(state: &TimelineState, error: StorageError) -> StorageError {
    let is_gone = matches!(error, StorageError::Remote { failure: RemoteFailure::NotFound, .. });
    let Some(uploader) = state.uploader.as_ref().filter(|_| is_gone) else { return error };
    match uploader.remote().check().await {
        Err(fenced @ StorageError::Fenced { .. }) => fenced,
        _ => error,
    }
}

/// A visit of a read that is to be explained; nothing for all others.
struct Visit {
    before: Sums,
    began: Instant,
}

impl Visit {
    fn begin(found: &ReconstructState) -> Option<Self> {
        Some(Self { before: found.sums()?, began: env::clock::now() })
    }

    fn end(
        visit: Option<Self>,
        found: &mut ReconstructState,
        timeline: TimelineId,
        lsns: Range<Lsn>,
        file: Option<(&Layer, bool)>,
    ) {
        let (Some(Self { before, began }), Some(after)) = (visit, found.sums()) else { return };
        let name = file.and_then(|(layer, _)| layer.path().file_name()).unwrap_or("in memory").to_owned();
        let took = env::clock::now().saturating_duration_since(began);
        let local = file.is_none_or(|(_, is_local)| is_local);
        found.note_visit(Visited { local, took, ..Visited::new(timeline, name, lsns, (before, after)) });
    }
}
