//! Keys that are in use at an LSN, as far as somebody knows ([`LiveKeys`](crate::live_keys::LiveKeys)), and files of
//! which most keys are not.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use utils::lsn::Lsn;

use super::read;
use super::state::TimelineState;
use crate::context::{DownloadBehavior, RequestContext};
use crate::live_keys::{Answer, Values};
use crate::task_mgr::TaskKind;
use crate::tenant::layer_map::debt;
use errors::StorageError;

/// Keys sampled of each image layer.
const SAMPLES: usize = 64;

#[derive(Debug)]
struct ValuesAt<'a> {
    state: &'a TimelineState,
    lsn: Lsn,
    ctx: &'a RequestContext,
}

impl Values for ValuesAt<'_> {
    fn get_many<'a>(&'a self, keys: &'a KeySpace) -> Answer<'a, BTreeMap<Key, Bytes>> {
        Box::pin(async {
            let found = read::get_vectored(self.state, keys, self.lsn, self.ctx).await?;
            found.into_iter().map(|(key, value)| Ok((key, value?))).collect()
        })
    }
}

/// The keys that are in use as of `lsn`; `None` if nobody knows.
///
/// # Errors
/// Those of reads.
pub(super) async fn at(
    state: &TimelineState,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<Option<KeySpace>, StorageError> {
    let Some(known) = state.conf.live_keys else { return Ok(None) };
    known.of(&ValuesAt { state, lsn, ctx }).await.map(Some)
}

/// Finds out which keys are in use at `lsns`, which are about to be all that is kept below some LSN, and which of the
/// newest images have become a waste of space. Reads nothing that was read before and has not changed since.
pub(super) async fn learn(state: &TimelineState, lsns: BTreeSet<Lsn>) -> Result<(), StorageError> {
    let (edition, cutoff) = (state.edition(), state.retention.read().cutoff);
    let is_changed = edition != state.live.lock().edition;
    if state.conf.live_keys.is_none() || !(is_changed || lsns.last().is_some_and(|last| *last > cutoff)) {
        return Ok(());
    }
    let _guard = state.enter()?;
    let ctx = RequestContext::new(TaskKind::GarbageCollector, DownloadBehavior::Download);
    state.live.lock().at.retain(|lsn, _| lsns.contains(lsn));
    for lsn in lsns {
        let is_known = state.live.lock().at.contains_key(&lsn);
        if is_known || lsn < state.origin.import_lsn || state.retention.read().check(lsn).is_err() {
            continue;
        }
        if let Some(live) = at(state, lsn, &ctx).await? {
            state.live.lock().at.insert(lsn, Arc::new(live));
        }
    }
    if !is_changed {
        return Ok(());
    }
    // Of branches no images are made.
    if let Some(sorted) = state.sorted_lsn().filter(|_| state.ancestor().is_none())
        && let Some(live) = at(state, sorted, &ctx).await?
    {
        let dead = mostly_dead(state, &live, &ctx).await?;
        state.live.lock().dead_images = dead;
    }
    state.live.lock().edition = edition;
    Ok(())
}

/// The newest images of which more than half of the keys are not among `live`, by the ids of their files.
async fn mostly_dead(
    state: &TimelineState,
    live: &KeySpace,
    ctx: &RequestContext,
) -> Result<HashSet<u64>, StorageError> {
    let stacks = debt::stacks(state.layers().map.iter());
    let mut images: Vec<_> = stacks.into_iter().filter_map(|stack| stack.image).collect();
    images.dedup_by_key(|image| image.identity().file_id);
    let mut dead = HashSet::new();
    for image in images {
        let keys = &image.desc().key_range;
        if live.ranges().iter().any(|range| range.start <= keys.start && keys.end <= range.end) {
            continue;
        }
        let samples = image.sample_keys(SAMPLES, ctx).await?;
        let used = samples.iter().filter(|key| live.contains(key)).count();
        if used * 2 < samples.len() {
            dead.insert(image.identity().file_id);
        }
    }
    Ok(dead)
}
