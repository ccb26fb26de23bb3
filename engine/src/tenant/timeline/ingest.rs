//! Ingests values: the open layer, and when it is rolled.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pageserver_api::key::CHECKPOINT_KEY;
use tokio::sync::MutexGuard;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use super::flush;
use super::state::{IngestState, TimelineState, layer_error};
use crate::config::CompactionPolicy;
use crate::context::RequestContext;
use crate::tenant::storage_layer::{self, InMemoryLayer};
use errors::StorageError;
use metrics::{IngestStage, METRICS, Stopwatch};

/// Bytes of an idle server's WAL that may be retained for a layer that stays open.
const IDLE_DISTANCE_MAX: u64 = 16 << 20;
/// Age at which an idle server's layer is frozen.
const IDLE_AGE_MAX: Duration = Duration::from_secs(4 * 3600);

/// When to freeze the open layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RollPolicy {
    /// At this many bytes of values, or after this many bytes of WAL.
    pub checkpoint_distance: u64,
    /// At this age, once the LSN has advanced.
    pub checkpoint_timeout: Duration,
}

/// The properties of the open layer that decide whether to roll it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenLayerStats {
    /// Bytes of values in it.
    pub size: u64,
    /// Bytes of WAL from its start to the last record.
    pub lsn_distance: u64,
    /// Time since it was created.
    pub age: Duration,
}

/// Why the open layer is frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollReason {
    /// It would grow too large.
    Size,
    /// It spans too much WAL.
    Distance,
    /// It is too old.
    Age,
}

/// Whether, and why, the open layer should be frozen before `incoming` more bytes of values go in.
pub fn should_roll(policy: RollPolicy, open: OpenLayerStats, incoming: u64) -> Option<RollReason> {
    if open.size == 0 {
        None
    } else if open.size.saturating_add(incoming) > policy.checkpoint_distance {
        Some(RollReason::Size)
    } else if open.lsn_distance >= policy.checkpoint_distance {
        Some(RollReason::Distance)
    } else if open.age >= policy.checkpoint_timeout && open.lsn_distance > 0 {
        Some(RollReason::Age)
    } else {
        None
    }
}

pub(super) async fn put_batch(
    state: &Arc<TimelineState>,
    batch: SerializedValueBatch,
    ctx: &RequestContext,
) -> Result<(), StorageError> {
    let mut watch = metrics::ingest_stopwatch().at(IngestStage::WaitForRoom);
    let Some(first) = batch.metadata().iter().map(|meta| meta.lsn).min() else { return Ok(()) };
    let _guard = state.enter()?;
    state.check_writable()?;
    // Before locking `ingest`: making room may require flushing what it guards.
    tokio::select! {
        admitted = state.conf.disk_budget.admit(batch.buffer_size() as u64) => admitted?,
        () = state.cancel.cancelled() => return Err(StorageError::Shutdown),
    }
    let mut ingest = turn(state, first, batch.buffer_size() as u64, &mut watch).await?;
    let layer = open_layer(state, &ingest, &mut watch, ctx).await?;
    watch.enter(IngestStage::IndexInsert);
    let (max_lsn, values, bytes) = (batch.max_lsn(), batch.metadata().len(), batch.buffer_size() as u64);
    let has_news = batch.metadata().iter().any(|meta| meta.key != CHECKPOINT_KEY.to_compact());
    if let Some(observer) = &state.observer {
        observer.note(batch.metadata());
    }
    layer.put_batch_timed(batch, &mut watch).await.map_err(layer_error).inspect_err(|error| state.note_error(error))?;
    // Only now: a rejected batch must not prevent the flush of the history before it. No freeze can intervene, as
    // `ingest` is locked.
    ingest.max_lsn = ingest.max_lsn.max(max_lsn);
    ingest.has_news |= has_news;
    METRICS.wal_ingest_values_committed.inc_by(values as u64);
    METRICS.wal_ingest_value_bytes.inc_by(bytes);
    state.work.note_taken_in(bytes);
    Ok(())
}

/// Waits for compaction, as far as that is behind, and for the lock, to take in `bytes` from LSN `first` on. A layer
/// that is due is frozen. Where that makes as many L0 layers as ingest waits at, it waits once more: the next one that
/// is open would be another as soon as anybody has it written.
async fn turn<'a>(
    state: &'a Arc<TimelineState>,
    first: Lsn,
    bytes: u64,
    watch: &mut Stopwatch<IngestStage>,
) -> Result<MutexGuard<'a, IngestState>, StorageError> {
    let CompactionPolicy { l0_slow, l0_wait, .. } = state.conf.compaction;
    let mut may_wait = l0_slow > 0 && !fault::planted(fault::Bug::RollPastTheLimit);
    loop {
        if l0_slow > 0 {
            tokio::select! {
                () = state.compaction.pace(bytes, (l0_slow, l0_wait), || l0_level(state)) => {}
                () = state.cancel.cancelled() => return Err(StorageError::Shutdown),
            }
        }
        watch.enter(IngestStage::WriterLock);
        let mut ingest = state.ingest.lock().await;
        state.check_not_archived()?;
        let last = state.record_lsn().last;
        if first <= last {
            return Err(StorageError::Invalid(format!(
                "a value at LSN {first} comes after the history up to {last} is final"
            )));
        }
        if roll_reason(state, &mut ingest, bytes).is_some() {
            flush::roll(state, &mut ingest, watch).await?;
        }
        let begins = state.layers().open.is_none();
        if !(may_wait && begins && l0_level(state) >= l0_wait as f64) {
            return Ok(ingest);
        }
        may_wait = false;
        watch.enter(IngestStage::WaitForRoom);
    }
}

/// See [`Timeline::tend`](super::Timeline::tend).
pub(super) async fn tend(state: &Arc<TimelineState>) -> Result<(), StorageError> {
    let _guard = state.enter()?;
    state.check_writable()?;
    storage_layer::release_unused();
    state.conf.resources.kept.release_unused();
    let (now, last) = (env::clock::steady_now(), state.record_lsn().last);
    state.keeping.lock().note_arrival(now, last, &state.conf.retention);
    // Whoever holds the lock is ingesting or flushing, and freezes the layer itself if due.
    let Ok(mut ingest) = state.ingest.try_lock() else { return Ok(()) };
    if state.layers().frozen.is_empty() {
        if roll_reason(state, &mut ingest, 0).is_some() {
            return flush::roll(state, &mut ingest, &mut Stopwatch::off()).await;
        }
        drop(ingest);
        return flush::note_progress(state).await;
    }
    drop(ingest);
    flush::resume(state).await
}

/// The number of L0 layers, with those still in memory, the open one as far as it is full.
fn l0_level(state: &TimelineState) -> f64 {
    let layers = state.layers();
    let open = layers.open.as_ref().map_or(0, |open| open.size());
    let filled = open as f64 / state.checkpoint_distance().max(1) as f64;
    (layers.map.l0_layers().len() + layers.frozen.len()) as f64 + filled.min(1.0)
}

/// Whether a layer that is due by age alone may stay open for another timeout: it holds nothing but the counters that
/// an idle server writes, no commit waits for it, and little WAL is retained for it.
fn may_put_off(has_news: bool, lsn_distance: u64, age: Duration) -> bool {
    !has_news && lsn_distance < IDLE_DISTANCE_MAX && age < IDLE_AGE_MAX
}

/// Why the open layer should be rolled now, if so; never between a record's values and its end.
fn roll_reason(state: &TimelineState, ingest: &mut IngestState, incoming: u64) -> Option<RollReason> {
    let last = state.record_lsn().last;
    let open = state.layers().open.clone().filter(|_| ingest.max_lsn <= last)?;
    let policy = RollPolicy {
        checkpoint_distance: state.checkpoint_distance(),
        checkpoint_timeout: state.conf.checkpoint_timeout,
    };
    let now = env::clock::now();
    let stats = OpenLayerStats {
        size: open.size(),
        lsn_distance: last.checked_sub(open.start_lsn()).unwrap_or(0),
        age: now.saturating_duration_since(ingest.put_off.unwrap_or(open.created())),
    };
    let reason = should_roll(policy, stats, incoming)?;
    let age = now.saturating_duration_since(open.created());
    if reason == RollReason::Age && may_put_off(ingest.has_news, stats.lsn_distance, age) {
        // Values that arrive from now on wait no longer than if the layer had been rolled.
        ingest.put_off = Some(now);
        return None;
    }
    Some(reason)
}

async fn open_layer(
    state: &TimelineState,
    ingest: &IngestState,
    watch: &mut Stopwatch<IngestStage>,
    ctx: &RequestContext,
) -> Result<Arc<InMemoryLayer>, StorageError> {
    if let Some(open) = &state.layers().open {
        return Ok(Arc::clone(open));
    }
    watch.enter(IngestStage::Freeze);
    let TimelineState { conf, timeline_id, tenant_shard_id, gate, cancel, .. } = state;
    let start: Lsn = ingest.next_start;
    let layer = InMemoryLayer::create(conf, *timeline_id, *tenant_shard_id, start, gate, cancel, ctx);
    let layer = Arc::new(layer.await.map_err(layer_error)?);
    // Where the last one was a copy, this one will likely be. That what is held back takes room is not seen yet.
    if state.copies_layers.load(Ordering::Relaxed) && conf.disk_budget.has_ample_room_for(state.checkpoint_distance()) {
        layer.hold_writes().await;
    }
    state.update_layers(|layers| layers.open = Some(Arc::clone(&layer)));
    Ok(layer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_rolled_for_size_distance_or_age_but_never_empty() {
        let policy = RollPolicy { checkpoint_distance: 100, checkpoint_timeout: Duration::from_secs(10) };
        let roll = |size, lsn_distance, age, incoming| {
            should_roll(policy, OpenLayerStats { size, lsn_distance, age: Duration::from_secs(age) }, incoming)
        };
        assert_eq!(roll(0, 1000, 1000, 1000), None);
        assert_eq!(roll(50, 99, 9, 50), None);
        assert_eq!(roll(50, 0, 0, 51), Some(RollReason::Size));
        assert_eq!(roll(50, 100, 0, 0), Some(RollReason::Distance));
        assert_eq!(roll(50, 1, 10, 0), Some(RollReason::Age));
        assert_eq!(roll(50, 0, 10, 0), None);
        assert_eq!(roll(1, 0, 0, u64::MAX), Some(RollReason::Size));
    }

    #[test]
    fn what_an_idle_server_writes_is_put_off_for_hours_and_some_wal() {
        let (little, hour) = (IDLE_DISTANCE_MAX - 1, Duration::from_secs(3600));
        assert!(may_put_off(false, little, hour));
        assert!(!may_put_off(true, 0, Duration::ZERO), "somebody may wait for it");
        assert!(!may_put_off(false, IDLE_DISTANCE_MAX, hour) && !may_put_off(false, little, IDLE_AGE_MAX));
    }
}
