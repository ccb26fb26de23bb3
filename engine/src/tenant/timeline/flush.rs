//! Makes history durable: freezes the open layer, writes frozen layers to disk, names them in the manifest.
//!
//! Recovery relies on the order of effects: the layer is synced under a temporary name, renamed, the directory
//! synced, the manifest replaced, and only then does the in-memory state change. A step that fails leaves all earlier
//! ones in place, and the next attempt resumes from there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::JoinHandle;

use super::publish;
use super::state::{FlushProgress, Frozen, IngestState, RecordLsn, TimelineState, layer_error};
use crate::context::{DownloadBehavior, RequestContext};
use crate::task_mgr::TaskKind;
use crate::tenant::layer_map::Layer;
use crate::tenant::storage_layer::read_identity;
use errors::StorageError;
use metrics::{self, IngestStage, METRICS, Stopwatch, StorageOperation};
use virtual_file::fs;

/// Frozen layers that may wait before ingest has to.
const MAX_FROZEN: usize = 2;

/// Freezes the open layer and writes everything out.
pub(super) async fn flush(state: &Arc<TimelineState>, _ctx: &RequestContext) -> Result<(), StorageError> {
    let _guard = state.enter()?;
    state.check_writable()?;
    let target = {
        let mut ingest = state.ingest.lock().await;
        let target = state.record_lsn();
        if ingest.max_lsn > target.last {
            let reason =
                format!("values up to LSN {} are in, but the history is final only to {}", ingest.max_lsn, target.last);
            return Err(StorageError::Invalid(reason));
        }
        freeze(state, &mut ingest).await;
        target
    };
    join(spawn_write_frozen(state, Some(target))).await
}

/// Freezes the open layer and starts writing it in the background; waits first if too many wait already.
pub(super) async fn roll(
    state: &Arc<TimelineState>,
    ingest: &mut IngestState,
    watch: &mut Stopwatch<IngestStage>,
) -> Result<(), StorageError> {
    if state.layers().frozen.len() >= MAX_FROZEN {
        watch.enter(IngestStage::WaitForSeal);
        join(spawn_write_frozen(state, None)).await?;
    }
    watch.enter(IngestStage::Freeze);
    freeze(state, ingest).await;
    spawn_write_frozen(state, None);
    Ok(())
}

/// Writes frozen layers left over from a failed attempt. Does nothing while another attempt is running.
pub(super) async fn resume(state: &Arc<TimelineState>) -> Result<(), StorageError> {
    if state.flusher.try_lock().is_err() {
        return Ok(());
    }
    join(spawn_write_frozen(state, None)).await
}

/// Advances the durable position over WAL that stores no values, at most once per `checkpoint_timeout`.
pub(super) async fn note_progress(state: &Arc<TimelineState>) -> Result<(), StorageError> {
    let (record, durable) = (state.record_lsn(), state.disk_consistent());
    let age = env::clock::now().saturating_duration_since(state.durable_since());
    if state.layers().open.is_some() || record.last == durable.last || age < state.conf.checkpoint_timeout {
        return Ok(());
    }
    flush(state, &RequestContext::new(TaskKind::LayerFlushTask, DownloadBehavior::Error)).await
}

/// Freezes the open layer, if there is one, at the last record.
async fn freeze(state: &TimelineState, ingest: &mut IngestState) {
    let Some(layer) = state.layers().open.clone() else { return };
    let end = state.record_lsn();
    let next_start = end.last + 1;
    layer.freeze(next_start).await;
    state.update_layers(|layers| {
        layers.open = None;
        layers.frozen.push(Frozen { layer, end });
    });
    (ingest.has_news, ingest.put_off) = (false, None);
    ingest.next_start = next_start + u64::from(fault::planted(fault::Bug::SkipOneLsn));
}

/// Writes all frozen layers in a task of its own, which continues if the caller is dropped. `target` is a position up
/// to which the open layer holds nothing; it is made durable too.
fn spawn_write_frozen(state: &Arc<TimelineState>, target: Option<RecordLsn>) -> JoinHandle<Result<(), StorageError>> {
    let (state, panicked) = (Arc::clone(state), Arc::clone(state));
    let work = async move {
        let mut result = write_frozen(&state, target).await;
        if result.as_ref().is_err_and(StorageError::is_disk_full) && state.conf.disk_budget.make_room().await {
            result = write_frozen(&state, target).await;
        }
        if let Err(error) = &result {
            state.note_error(error);
            METRICS.storage_operations_errors.of(StorageOperation::LayerFlush).inc();
            tracing::warn!(timeline = %state.timeline_id, "flush failed, will be tried again: {error}");
        }
        result
    };
    env::spawn::watched("flush of frozen layers", work, move |reason| panicked.note_panic(reason))
}

async fn join(task: JoinHandle<Result<(), StorageError>>) -> Result<(), StorageError> {
    task.await.unwrap_or_else(|error| Err(StorageError::Internal(format!("flush: {error}"))))
}

async fn write_frozen(state: &TimelineState, target: Option<RecordLsn>) -> Result<(), StorageError> {
    let _guard = state.enter()?;
    let ctx = RequestContext::new(TaskKind::LayerFlushTask, DownloadBehavior::Error);
    let mut progress = state.flusher.lock().await;
    while let Some(frozen) = state.layers().frozen.first().cloned() {
        state.check_writable()?;
        let _timer = metrics::timer(METRICS.storage_operations_seconds_global.of(StorageOperation::LayerFlush));
        let mut watch = metrics::ingest_stopwatch();
        let layer = place(state, &mut progress, &frozen, &mut watch, &ctx).await?;
        let bytes = layer.desc().file_size;
        watch.enter(IngestStage::Publish);
        publish::flushed(state, Some(layer), frozen.end).await?;
        METRICS.flushed_bytes.inc_by(bytes);
        state.work.note_flushed(bytes);
        *progress = None;
    }
    match target.filter(|target| target.last > state.disk_consistent().last) {
        Some(target) => publish::flushed(state, None, target).await,
        None => Ok(()),
    }
}

/// Makes the oldest frozen layer a durable file under its final name.
async fn place(
    state: &TimelineState,
    progress: &mut Option<FlushProgress>,
    frozen: &Frozen,
    watch: &mut Stopwatch<IngestStage>,
    ctx: &RequestContext,
) -> Result<Arc<Layer>, StorageError> {
    let reached = match progress.take() {
        Some(reached) => reached,
        None => write(state, frozen, ctx).await?,
    };
    watch.enter(IngestStage::Fsync);
    // Each step is recorded before the next one can fail, because it cannot be repeated.
    let layer = match progress.insert(reached) {
        FlushProgress::Named(layer) => Arc::clone(layer),
        FlushProgress::Written(desc, temp) => {
            let identity = read_identity(temp).await?;
            let layer = Arc::new(Layer::new(
                &state.conf.resources,
                &state.dir,
                desc.clone(),
                state.layer_generation(),
                identity,
            ));
            fs::rename(temp, layer.path()).await?;
            *progress = Some(FlushProgress::Named(Arc::clone(&layer)));
            layer
        }
    };
    fs::fsync_dir(&state.dir).await?;
    Ok(layer)
}

async fn write(state: &TimelineState, frozen: &Frozen, ctx: &RequestContext) -> Result<FlushProgress, StorageError> {
    let cancel = state.cancel.clone();
    let limit = state.conf.resources.flushes(state.conf.l0_flush_max_concurrency);
    let written = frozen.layer.write_to_disk(ctx, None, limit.inner(), &state.gate, cancel).await;
    let whole = || StorageError::Internal("a whole layer was written, but there is none".to_owned());
    let (desc, temp) = written.map_err(layer_error)?.ok_or_else(whole)?;
    state.copies_layers.store(frozen.layer.is_copied(), Ordering::Relaxed);
    Ok(FlushProgress::Written(desc, temp))
}
