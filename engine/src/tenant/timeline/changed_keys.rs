//! Finds the keys that have versions in a stretch of history, from the layers' indexes alone: no value is read.

use std::collections::BTreeSet;
use std::ops::Range;

use pageserver_api::key::Key;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::state::TimelineState;
use crate::context::RequestContext;
use errors::StorageError;

/// The scan fails beyond this many keys.
const KEYS_MAX: usize = 4 << 20;

/// The timelines that a read of `state` as of `lsn` passes through, each with the last LSN read from it.
fn path(state: &TimelineState, lsn: Lsn) -> Vec<(TimelineId, Lsn)> {
    let (mut state, mut lsn, mut path) = (state, lsn, vec![]);
    loop {
        path.push((state.timeline_id, lsn));
        let Some(ancestor) = &state.ancestor else { return path };
        (state, lsn) = (&ancestor.state, lsn.min(ancestor.lsn));
    }
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
    let (mut state, mut upto, mut found) = (state, upto, BTreeSet::new());
    loop {
        let _guard = state.enter()?;
        let mut add = |key: Key, lsn: Lsn| {
            if after < lsn && lsn <= upto {
                found.insert(key);
            }
        };
        let layers = state.layers();
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
        match &state.ancestor {
            Some(ancestor) if after < ancestor.lsn => (state, upto) = (&ancestor.state, upto.min(ancestor.lsn)),
            _ => return Ok(found),
        }
    }
}
