//! Rewrites delta layers as others with the same versions, in order of (key, LSN): L0 layers, which are in the order of
//! arrival, or sorted ones that lie above each other.

use std::ops::Range;
use std::sync::Arc;

use pageserver_api::key::Key;
use utils::lsn::Lsn;

use super::embed::Embedder;
use super::outputs::{Cuts, Done, Finished, Outputs};
use crate::context::{Pace, RequestContext};
use crate::disk_budget::Hold;
use crate::tenant::layer_map::invariants::STORED_KEYS_END;
use crate::tenant::layer_map::{Layer, debt};
use crate::tenant::storage_layer::{VersionStream, Window};
use crate::tenant::timeline::publish;
use crate::tenant::timeline::state::TimelineState;
use errors::{ErrorKind, StorageError};

/// So many times as many records may follow each other in a merged layer as in a sorted one.
const MERGED_RECORDS: usize = 2;
/// Versions written between two chances for other tasks.
const VERSIONS_AT_ONCE: usize = 512;

/// Writes new layers with all versions of `inputs`, delta layers that have the rectangle around them for themselves,
/// and replaces the inputs.
pub(super) async fn rewrite(
    state: &TimelineState,
    inputs: &[Arc<Layer>],
    room: &Hold,
    ctx: &RequestContext,
) -> Result<Done, StorageError> {
    let (keys, lsns) = around(inputs);
    let finished = write(state, inputs, (keys, lsns), room, ctx).await?;
    let (bytes_in, bytes_out) = (inputs.iter().map(|layer| layer.desc().file_size).sum(), finished.bytes());
    let published = publish_or_abandon(state, inputs, finished, room, || true).await?;
    Ok(Done { bytes_in, bytes_out, published })
}

/// The smallest rectangle around the layers.
pub(super) fn around(layers: &[Arc<Layer>]) -> (Range<Key>, Range<Lsn>) {
    let keys = |layer: &Arc<Layer>| layer.desc().key_range.clone();
    let lsns = |layer: &Arc<Layer>| layer.desc().lsn_range.clone();
    let start = layers.iter().map(|layer| keys(layer).start).min().unwrap_or(Key::MIN);
    let end = layers.iter().map(|layer| keys(layer).end).max().unwrap_or(Key::MIN);
    let from = layers.iter().map(|layer| lsns(layer).start).min().unwrap_or_default();
    let to = layers.iter().map(|layer| lsns(layer).end).max().unwrap_or_default();
    let from = from + u64::from(fault::planted(fault::Bug::MergeOffByOneLsn));
    // A layer up to `Key::MAX` could be taken for an L0 layer.
    (start..end.min(STORED_KEYS_END), from..to)
}

/// Where the layers directly below the rectangle begin and end, and the newest images of its keys.
fn bounds_below(state: &TimelineState, keys: &Range<Key>, lsns: &Range<Lsn>) -> Vec<Key> {
    let layers = state.layers();
    let below = layers.map.search(keys, lsns.start);
    let below = below.iter().map(|result| &result.layer);
    let stacks = debt::stacks(layers.map.iter());
    let images = stacks.iter().filter_map(|stack| stack.image.as_ref());
    let bounds = below.chain(images).flat_map(|layer| [layer.desc().key_range.start, layer.desc().key_range.end]);
    bounds.filter(|key| keys.contains(key)).collect()
}

async fn write(
    state: &TimelineState,
    inputs: &[Arc<Layer>],
    (keys, lsns): (Range<Key>, Range<Lsn>),
    room: &Hold,
    ctx: &RequestContext,
) -> Result<Finished, StorageError> {
    let mut cursors = Vec::with_capacity(inputs.len());
    for input in inputs {
        cursors.push(input.cursor(&keys, ctx).await?);
    }
    let cuts = Cuts::ranked(bounds_below(state, &keys, &lsns), state.compaction_policy().file_bytes);
    let from = lsns.start;
    let mut outputs = Outputs::new(state, keys, lsns, cuts, room, ctx);
    let stream = VersionStream::new(cursors, state.conf.compaction.memory);
    // Merges make no images of what sorts have left, unless several of these together are long.
    let is_sort = inputs.iter().all(|input| input.desc().is_l0());
    let records = state.conf.compaction.records * if is_sort { 1 } else { MERGED_RECORDS };
    let (started, bytes) = (env::clock::now(), inputs.iter().map(|input| input.desc().file_size).sum::<u64>() as f64);
    let note = |done: f64| {
        if is_sort {
            let took = env::clock::now().saturating_duration_since(started);
            state.compaction.note_sorting(bytes * done, took);
        }
    };
    let copied = copy(state, stream, Embedder::new(state, from, records, ctx), &mut outputs, note).await;
    outputs.finish(copied).await
}

/// Copies all versions, and calls `note` now and then with how much is done, from 0 to 1.
async fn copy(
    state: &TimelineState,
    mut stream: VersionStream,
    mut embedder: Embedder<'_>,
    outputs: &mut Outputs<'_>,
    note: impl Fn(f64) + Send,
) -> Result<(), StorageError> {
    let (mut current, mut next) = (Window::default(), Window::default());
    let mut is_there = stream.read_into(&mut current, state.pace_of_jobs()).await?;
    while is_there {
        let done = stream.done();
        let writing = write_window(state, &current, &mut embedder, outputs);
        is_there = read_beside((&mut stream, state.pace_of_jobs()), &mut next, writing).await?;
        note(done);
        std::mem::swap(&mut current, &mut next);
    }
    Ok(())
}

async fn write_window(
    state: &TimelineState,
    window: &Window,
    embedder: &mut Embedder<'_>,
    outputs: &mut Outputs<'_>,
) -> Result<(), StorageError> {
    embedder.begin_window(window.versions());
    for (number, (version, value)) in window.iter().enumerate() {
        if number % 13 == 5 && fault::planted(fault::Bug::DropOneDelta) {
            continue;
        }
        pause(state, number, outputs).await?;
        match embedder.instead(version, value).await? {
            Some(image) => outputs.put(version.key, version.lsn, image, true).await?,
            None => outputs.put(version.key, version.lsn, value, version.will_init).await?,
        }
    }
    Ok(())
}

/// Copies the versions that are `needed`, of which there is one for each version.
pub(super) async fn copy_some(
    state: &TimelineState,
    mut stream: VersionStream,
    needed: &[bool],
    outputs: &mut Outputs<'_>,
) -> Result<(), StorageError> {
    let (mut needed, mut current, mut next) = (needed.iter(), Window::default(), Window::default());
    let mut is_there = stream.read_into(&mut current, state.pace_of_jobs()).await?;
    while is_there {
        let writing = write_needed(state, &current, &mut needed, outputs);
        is_there = read_beside((&mut stream, state.pace_of_jobs()), &mut next, writing).await?;
        std::mem::swap(&mut current, &mut next);
    }
    Ok(())
}

async fn write_needed(
    state: &TimelineState,
    window: &Window,
    needed: &mut std::slice::Iter<'_, bool>,
    outputs: &mut Outputs<'_>,
) -> Result<(), StorageError> {
    for (number, (version, value)) in window.iter().enumerate() {
        pause(state, number, outputs).await?;
        let is_needed = needed.next().copied();
        let more = || StorageError::Internal("a layer has more versions than when it was looked at".to_owned());
        if is_needed.ok_or_else(more)? {
            outputs.put(version.key, version.lsn, value, version.will_init).await?;
        }
    }
    Ok(())
}

/// Reads the next window into `next` while `writing` goes on with the one before it. Returns whether there is one.
async fn read_beside(
    (stream, pace): (&mut VersionStream, Pace),
    next: &mut Window,
    writing: impl Future<Output = Result<(), StorageError>>,
) -> Result<bool, StorageError> {
    let (is_there, written) = futures_util::join!(stream.read_into(next, pace), writing);
    written?;
    is_there
}

/// Before the version of this number: gives other tasks a chance now and then.
async fn pause(state: &TimelineState, number: usize, outputs: &mut Outputs<'_>) -> Result<(), StorageError> {
    if number.is_multiple_of(VERSIONS_AT_ONCE) {
        if state.cancel.is_cancelled() {
            return Err(StorageError::Shutdown);
        }
        outputs.note_written();
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Replaces `removed` by the finished layers if `check` still permits it; removes these if that is not possible.
/// `room` is what the job has taken for them. Returns whether it was done.
pub(super) async fn publish_or_abandon(
    state: &TimelineState,
    removed: &[Arc<Layer>],
    mut finished: Finished,
    room: &Hold,
    check: impl FnOnce() -> bool,
) -> Result<bool, StorageError> {
    let placed = match finished.place(state).await {
        Ok(placed) => placed,
        Err(error) => {
            finished.abandon().await;
            return Err(error);
        }
    };
    match publish::replaced(state, removed, placed, check).await {
        Ok(true) => {
            room.hand_over(finished.bytes());
            Ok(true)
        }
        Ok(false) => {
            finished.abandon().await;
            Ok(false)
        }
        Err(error) => {
            // After any other error the manifest on disk may name them already.
            if error.kind() == ErrorKind::Retry {
                finished.abandon().await;
            }
            Err(error)
        }
    }
}
