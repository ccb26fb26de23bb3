//! Finds the keys that have versions in a stretch of history, from the layers' indexes alone: no value is read.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use pageserver_api::key::Key;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::state::{Branching, TimelineState};
use crate::context::RequestContext;
use errors::StorageError;

/// The scan fails beyond this many keys.
const KEYS_MAX: usize = 4 << 20;

/// The timelines that a read of `state` as of `lsn` passes through, each with the last LSN read from it.
fn path(state: &TimelineState, lsn: Lsn) -> Vec<(TimelineId, Lsn)> {
    let mut path = match state.ancestor() {
        Some(ancestor) => path(&ancestor.state, lsn.min(ancestor.lsn)),
        None => vec![],
    };
    path.insert(0, (state.timeline_id, lsn));
    path
}

/// Up to which LSN two timelines share their history; `None` if they share none.
pub(super) fn common_lsn((one, lsn): (&TimelineState, Lsn), (other, other_lsn): (&TimelineState, Lsn)) -> Option<Lsn> {
    if one.tenant_shard_id != other.tenant_shard_id {
        return None;
    }
    let theirs = path(other, other_lsn);
    let shared = |(id, lsn): (TimelineId, Lsn)| {
        theirs.iter().find(|(their, _)| *their == id).map(|(_, their_lsn)| lsn.min(*their_lsn))
    };
    path(one, lsn).into_iter().find_map(shared)
}

/// The keys that have versions after `after` and up to `upto`.
pub(super) async fn changed_keys(
    state: &TimelineState,
    after: Lsn,
    upto: Lsn,
    ctx: &RequestContext,
) -> Result<BTreeSet<Key>, StorageError> {
    let (mut upto, mut found) = (upto, BTreeSet::new());
    let mut inherited: Option<Arc<Branching>> = None;
    if upto <= after {
        return Ok(found);
    }
    loop {
        let state = inherited.as_ref().map_or(state, |branching| &branching.state);
        let _guard = state.enter()?;
        let ancestor = state.ancestor();
        let mut add = |key: Key, lsn: Lsn| {
            if after < lsn && lsn <= upto {
                found.insert(key);
            }
        };
        let layers = state.layers();
        // Versions below the cutoff are there only as far as some LSN needs them.
        let cutoff = state.retention.read().cutoff;
        if after < cutoff && ancestor.as_ref().is_none_or(|ancestor| ancestor.lsn < upto) {
            if state.begins_detached_at(cutoff) {
                return Err(StorageError::Invalid(format!(
                    "what has changed since LSN {after} is not known any more: the timeline was detached from its \
                     ancestor at LSN {cutoff}, where its history begins"
                )));
            }
            return Err(StorageError::Invalid(format!(
                "what has changed since LSN {after} is not known any more: history below LSN {cutoff} has been \
                 removed, but for single LSNs; a longer window (pitr_interval, gc_horizon, history_max_bytes) would \
                 have kept it"
            )));
        }
        for layer in layers.open.iter().chain(layers.frozen.iter().map(|frozen| &frozen.layer)) {
            layer.versions().into_iter().for_each(|(key, lsn, _)| add(Key::from_compact(key), lsn));
        }
        let is_in = |range: &Range<Lsn>| range.start <= upto && after < range.end;
        for layer in layers.map.iter().filter(|layer| layer.desc().is_delta && is_in(&layer.desc().lsn_range)) {
            layer.versions(ctx).await?.into_iter().for_each(|(key, lsn, ..)| add(key, lsn));
        }
        if found.len() > KEYS_MAX {
            return Err(StorageError::Invalid(format!("more than {KEYS_MAX} keys changed after LSN {after}")));
        }
        let Some(ancestor) = ancestor.filter(|ancestor| after < ancestor.lsn) else { return Ok(found) };
        upto = upto.min(ancestor.lsn);
        inherited = Some(ancestor);
    }
}
