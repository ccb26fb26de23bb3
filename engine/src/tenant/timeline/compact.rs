//! Compaction: keeps the number of layers that a read searches small, whatever the history.
//!
//! L0 layers are sorted by key, sorted layers are merged where too many lie above each other, and images end the search
//! where as much has changed as an image takes. [`plan`] decides what is due; a job writes new layers beside the old
//! ones and replaces them in one step ([`publish::replaced`]). A crash leaves either the old ones or the new ones.

mod embed;
mod image;
pub(super) mod inherited;
mod ongoing;
mod outputs;
pub(super) mod owed;
pub(super) mod plan;
mod rewrite;
pub(super) mod trim;
mod urgency;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use self::outputs::Done;
use self::plan::{Job, Region};
use self::urgency::Urgency;
use super::debt::{CompactionCounts, Failure, JobCounts};
use super::publish;
use super::state::TimelineState;
use super::work::{Busy, Doing, Lane};
use crate::context::{DownloadBehavior, RequestContext};
use crate::disk_budget::Hold;
use crate::task_mgr::TaskKind;
use crate::tenant::layer_map::{Layer, LayerMap, debt};
use crate::turns::{Turn, Turns};
use errors::{ErrorKind, StorageError};
use metrics::METRICS;
use utils::lsn::Lsn;

/// Pauses after failures: the first, and the longest.
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Bytes of disk space taken at once for what a job writes.
const ROOM_PIECE: u64 = 4 << 20;

/// Runs jobs until none is due. Returns what was done.
///
/// # Errors
/// That of a job that failed, or was not made since a layer is damaged. Nothing is lost then.
pub(super) async fn compact(state: &Arc<TimelineState>) -> Result<CompactionCounts, StorageError> {
    let before = *state.compaction.counts.lock();
    let doing = {
        let state = Arc::clone(state);
        env::spawn::aside("compaction on request", async move { do_due(&state).await }, drop)
    };
    doing.await.unwrap_or_else(|error| match error.is_cancelled() {
        true => Err(StorageError::Shutdown),
        false => Err(StorageError::Internal(format!("compaction: {error}"))),
    })?;
    if let Some(reason) = state.compaction.damage.lock().reason() {
        return Err(StorageError::Invalid(format!("all is done but for jobs that need a damaged layer: {reason}")));
    }
    let after = *state.compaction.counts.lock();
    Ok(after.since(&before))
}

/// Runs jobs of both lanes in turn, so that images are made of what is sorted.
async fn do_due(state: &Arc<TimelineState>) -> Result<(), StorageError> {
    loop {
        let edition = state.edition();
        work(state, Lane::Sorts).await?;
        work(state, Lane::Others).await?;
        if state.edition() == edition {
            return Ok(());
        }
    }
}

/// Starts jobs in the background if any are due.
pub(super) fn start_if_due(state: &Arc<TimelineState>) {
    for lane in [Lane::Sorts, Lane::Others] {
        if is_lane_due(state, lane) && !state.compaction.worker(lane).running.swap(true, Ordering::AcqRel) {
            start(state, lane);
        }
    }
}

fn start(state: &Arc<TimelineState>, lane: Lane) {
    let (state, panicked) = (Arc::clone(state), Arc::clone(state));
    let ended = move |state: &TimelineState| {
        state.compaction.worker(lane).running.store(false, Ordering::Release);
        state.compaction.wake();
    };
    let work = async move {
        if let Err(error) = work(&state, lane).await {
            note_failure(&state, lane, &error);
        }
        ended(&state);
    };
    env::spawn::aside("compaction", work, move |reason| {
        // The layers are as they were: only compaction ends.
        note_failure(&panicked, lane, &StorageError::Internal(reason));
        ended(&panicked);
    });
}

/// Removes the files of replaced layers that nobody reads any more.
pub(super) async fn sweep(state: &TimelineState) {
    if state.graveyard.is_empty() {
        return;
    }
    match state.graveyard.sweep().await {
        Ok(0) => {}
        Ok(_) => {
            if let Some(uploader) = &state.uploader {
                uploader.look_again();
            }
        }
        Err(error) => tracing::warn!(timeline = %state.timeline_id, "replaced layers: {error}"),
    }
}

/// Whether there may be something to do. Cheap.
pub(super) fn is_due(state: &TimelineState) -> bool {
    is_lane_due(state, Lane::Sorts) || is_lane_due(state, Lane::Others)
}

fn is_lane_due(state: &TimelineState, lane: Lane) -> bool {
    if state.conf.compaction.l0_layers == 0 || state.check_writable().is_err() || state.cancel.is_cancelled() {
        return false;
    }
    if state.compaction.worker(lane).pauses() {
        return false;
    }
    match lane {
        Lane::Sorts => state.layers().map.l0_layers().len() >= l0_layers_due(state),
        Lane::Others => state.compaction.idle_at.load(Ordering::Relaxed) != state.edition(),
    }
}

/// At how many L0 layers they are sorted.
fn l0_layers_due(state: &TimelineState) -> usize {
    let is_all = state.compaction.sort_all.load(Ordering::Relaxed) || state.is_archived();
    if is_all { 1 } else { state.conf.compaction.l0_layers }
}

/// Runs jobs of a lane until none is due.
async fn work(state: &Arc<TimelineState>, lane: Lane) -> Result<(), StorageError> {
    let _turn = state.compaction.worker(lane).turn.lock().await;
    let _guard = state.enter()?;
    let ctx = RequestContext::new(TaskKind::Compaction, DownloadBehavior::Download);
    let busy = state.work.begin(lane);
    loop {
        if state.cancel.is_cancelled() {
            return Err(StorageError::Shutdown);
        }
        state.check_writable()?;
        let edition = state.edition();
        let Some(job) = next_job(state, lane, &ctx).await? else {
            if lane == Lane::Others {
                state.compaction.idle_at.store(edition, Ordering::Relaxed);
                state.work.note_nothing_due(edition);
            }
            *state.compaction.worker(lane).failure.lock() = None;
            return Ok(());
        };
        // After a failed sync nothing more is written, whatever was being written.
        perform(state, lane, &job, &busy, &ctx).await.inspect_err(|error| state.note_error(error))?;
        if matches!(job, Job::Image(_)) {
            // The images before these are the newest no more.
            let (layers, bytes) = publish::thinned(state).await.inspect_err(|error| state.note_error(error))?;
            METRICS.gc_removed_layers.inc_by(layers as u64);
            METRICS.gc_removed_bytes.inc_by(bytes);
        }
        if lane == Lane::Sorts {
            // There may always be another one, and who waits for them has reason to again.
            *state.compaction.worker(lane).failure.lock() = None;
        }
        sweep(state).await;
        state.compaction.wake();
    }
}

async fn perform(
    state: &TimelineState,
    lane: Lane,
    job: &Job,
    busy: &Busy<'_>,
    ctx: &RequestContext,
) -> Result<(), StorageError> {
    busy.now(Doing::Turn);
    let turns = match lane {
        Lane::Sorts => &state.conf.resources.sorts,
        Lane::Others => &state.conf.resources.compactions,
    };
    // One of a lane at a time in the whole engine: they must not take the machine from those who wait for pages.
    let _turn = turn(state, turns, job.bytes()).await?;
    // Where room is short no two jobs take it: each would keep what the other needs.
    let is_alone = lane == Lane::Others && !state.conf.disk_budget.has_room_for(2 * job.bytes());
    let _alone = if is_alone { Some(turn(state, &state.conf.resources.sorts, 0).await?) } else { None };
    busy.now(Doing::Room);
    let room = room_for(state, job.bytes()).await?;
    busy.now(Doing::Job(job.kind()));
    match run(state, job, &room, ctx).await {
        Err(error) if is_healed(state, &error).await => Ok(()),
        done => done.or_else(|error| set_aside(state, job, error)),
    }
}

/// Waits for one of the `turns` of the whole engine, to do `bytes` of work.
async fn turn<'a>(state: &TimelineState, turns: &'a Turns, bytes: u64) -> Result<Turn<'a>, StorageError> {
    tokio::select! {
        turn = turns.take(state.tenant_shard_id, bytes) => Ok(turn),
        () = state.cancel.cancelled() => Err(StorageError::Shutdown),
    }
}

/// Takes `bytes` from the disk budget for what a job writes, in pieces, so that as much can be evicted meanwhile.
async fn room_for(state: &TimelineState, bytes: u64) -> Result<Hold, StorageError> {
    let hold = state.conf.disk_budget.hold();
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(ROOM_PIECE);
        tokio::select! {
            taken = hold.take_spare(piece) => taken?,
            () = state.cancel.cancelled() => return Err(StorageError::Shutdown),
        }
        left -= piece;
    }
    Ok(hold)
}

async fn next_job(state: &TimelineState, lane: Lane, ctx: &RequestContext) -> Result<Option<Job>, StorageError> {
    match lane {
        Lane::Sorts => {
            let layers = state.layers();
            Ok(plan::sort(layers.map.l0_layers(), l0_layers_due(state), &state.compaction_policy()))
        }
        Lane::Others => most_overdue(state, ctx).await,
    }
}

/// The job that is most overdue, if any is due. Ingest learns how much so.
async fn most_overdue(state: &TimelineState, ctx: &RequestContext) -> Result<Option<Job>, StorageError> {
    let (layers, policy) = (state.layers(), &state.compaction_policy());
    let mut due: Vec<(Urgency, Job)> = Vec::new();
    let stacks = debt::stacks(layers.map.iter());
    let known = known(state, &layers.map);
    // What a branch inherits would be copied with it: its keys are merged, but get no images of their own.
    if state.ancestor().is_none() {
        due.extend(next_fold(state, &layers.map, &known, ctx).await?);
    }
    if let Some(job) = plan::merge(&layers.map, &stacks, &known, policy) {
        let height = stacks.iter().map(debt::Stack::height).max().unwrap_or(0);
        due.push((Urgency::of_merges(height, owed::too_tall(&stacks, policy), policy), job));
    }
    if state.ancestor().is_none() {
        due.extend(next_image(state, &stacks, &known, ctx).await?);
    }
    let pressure = due.iter().map(|(urgency, _)| urgency.pressure(policy)).fold(0.0, f64::max);
    state.compaction.note_pressure(pressure);
    // Of several that are as overdue, the last.
    let most = due.into_iter().max_by(|(one, _), (other, _)| one.times.total_cmp(&other.times));
    match most {
        Some((_, job)) => Ok(Some(job)),
        // Nobody waits for space below the cutoff.
        None => trim::next(state, &layers.map, &known, ctx).await,
    }
}

/// What jobs have found out about the timeline's layers.
pub(super) fn known(state: &TimelineState, map: &LayerMap) -> plan::Known {
    plan::Known {
        quarantined: state.compaction.quarantined.lock().clone(),
        dead_images: state.live.lock().dead_images.clone(),
        damaged: {
            let mut damage = state.compaction.damage.lock();
            damage.retain(map);
            damage.files()
        },
    }
}

/// Images at the end of what is sorted, if these are due.
async fn next_image(
    state: &TimelineState,
    stacks: &[debt::Stack],
    known: &plan::Known,
    ctx: &RequestContext,
) -> Result<Option<(Urgency, Job)>, StorageError> {
    let Some(lsn) = state.sorted_lsn() else { return Ok(None) };
    let weights = plan::Weights::of(stacks, ctx).await?;
    let due = plan::image(stacks, &weights, known, &state.compaction_policy());
    let due = due.filter(|due| has_room_for_image(state, due.bytes));
    Ok(due.map(|due| (due.urgency, Job::Image(region(due, lsn)))))
}

/// Images at the cutoff, if these are due.
async fn next_fold(
    state: &TimelineState,
    map: &LayerMap,
    known: &plan::Known,
    ctx: &RequestContext,
) -> Result<Option<(Urgency, Job)>, StorageError> {
    let retention = state.retention.read().clone();
    let cutoff = retention.cutoff;
    if state.sorted_lsn().is_none() || cutoff <= state.origin.import_lsn {
        return Ok(None);
    }
    let below = plan::Below::of(map, &retention);
    let due = plan::fold(&below, &plan::Weights::of(&below.stacks, ctx).await?, known, &state.compaction_policy());
    let due = due.filter(|due| has_room_for_image(state, due.bytes));
    Ok(due.map(|due| (due.urgency, Job::Fold(region(due, cutoff)))))
}

fn region(due: plan::Due, lsn: Lsn) -> Region {
    Region { keys: due.keys, lsn, bytes: due.bytes }
}

/// Images make reads short, and take room until the history below them goes. Where nothing can be evicted, WAL needs
/// the last of it more.
fn has_room_for_image(state: &TimelineState, bytes: u64) -> bool {
    state.uploader.is_some() || state.conf.disk_budget.has_ample_room_for(bytes)
}

async fn run(state: &TimelineState, job: &Job, room: &Hold, ctx: &RequestContext) -> Result<(), StorageError> {
    let started = env::clock::now();
    let done = match job {
        Job::Sort(inputs) | Job::Merge(inputs) => rewrite::rewrite(state, inputs, room, ctx).await?,
        Job::Image(region) | Job::Fold(region) => image::make(state, region, room, ctx).await?,
        Job::Trim(trim) => trim::trim(state, trim, room, ctx).await?,
    };
    let took = env::clock::now().saturating_duration_since(started);
    tracing::debug!(
        timeline = %state.timeline_id, kind = ?job.kind(), bytes_in = done.bytes_in, bytes_out = done.bytes_out,
        published = done.published, ?took, l0 = state.layers().map.l0_layers().len(),
        pressure = state.compaction.pressure(), "compaction job"
    );
    if !done.published {
        return Ok(());
    }
    let mut counts = state.compaction.counts.lock();
    let of_kind = match job {
        Job::Sort(_) => {
            state.compaction.note_sorted(done.bytes_in, took);
            state.compaction.sort_all.store(false, Ordering::Relaxed);
            &mut counts.sort
        }
        Job::Merge(_) => &mut counts.merge,
        Job::Image(_) => &mut counts.image,
        Job::Fold(_) => &mut counts.fold,
        Job::Trim(_) => &mut counts.trim,
    };
    of_kind.add(&done, took);
    state.work.note_job(job.kind());
    METRICS.compaction_jobs.of(job.kind()).inc();
    METRICS.compaction_written_bytes.of(job.kind()).inc_by(done.bytes_out);
    METRICS.compaction_seconds.of(job.kind()).inc_by(took.as_secs_f64());
    Ok(())
}

/// Whether `error` was about a local file of which the bucket has a good copy: from now on it is read there, and the
/// job that failed is due again.
async fn is_healed(state: &TimelineState, error: &StorageError) -> bool {
    let (StorageError::Corrupt { path, .. } | StorageError::Io { path, .. }) = error else { return false };
    let layer = state.layers().map.iter().find(|layer| layer.path() == path).cloned();
    match layer {
        Some(layer) => layer.heal(error).await,
        None => false,
    }
}

/// Leaves the layer alone that has made `job` fail with `error`, if one has and the timeline can do without this job.
///
/// # Errors
/// The same error, if not.
fn set_aside(state: &TimelineState, job: &Job, error: StorageError) -> Result<(), StorageError> {
    let StorageError::Corrupt { path, .. } = &error else { return Err(error) };
    if matches!(job, Job::Sort(_)) {
        // All that is newer waits for the oldest L0 layers.
        return Err(error);
    }
    let layers = state.layers();
    let is_it = |layer: &&Arc<Layer>| path.as_str().starts_with(layer.path().as_str());
    let Some(layer) = layers.map.iter().find(is_it) else { return Err(error) };
    METRICS.compaction_failures.inc();
    let pause = state.compaction.damage.lock().note(layer, error.to_string());
    tracing::warn!(timeline = %state.timeline_id, "compaction leaves a layer alone for {pause:?}: {error}");
    Ok(())
}

fn note_failure(state: &TimelineState, lane: Lane, error: &StorageError) {
    if matches!(error.kind(), ErrorKind::Shutdown | ErrorKind::Fenced) {
        return;
    }
    METRICS.compaction_failures.inc();
    state.work.note_failure(matches!(error, StorageError::NoRoom(_)) || error.is_disk_full());
    let mut failure = state.compaction.worker(lane).failure.lock();
    let times = failure.as_ref().map_or(0, |failure| failure.times) + 1;
    let pause = PAUSE.saturating_mul(1 << (times - 1).min(8)).min(PAUSE_MAX);
    match error {
        // The bucket is away: who sends it layers says so.
        StorageError::Remote { .. } => {
            tracing::info!(timeline = %state.timeline_id, "compaction waits, again in {pause:?}: {error}");
        }
        _ => tracing::warn!(timeline = %state.timeline_id, "compaction failed, again in {pause:?}: {error}"),
    }
    *failure = Some(Failure { reason: error.to_string(), until: env::clock::now() + pause, times });
}

impl JobCounts {
    fn add(&mut self, done: &Done, took: Duration) {
        self.jobs += 1;
        self.bytes_in += done.bytes_in;
        self.bytes_out += done.bytes_out;
        self.millis += took.as_millis() as u64;
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            jobs: self.jobs - before.jobs,
            bytes_in: self.bytes_in - before.bytes_in,
            bytes_out: self.bytes_out - before.bytes_out,
            millis: self.millis - before.millis,
        }
    }
}

impl CompactionCounts {
    fn since(&self, before: &Self) -> Self {
        Self {
            sort: self.sort.since(&before.sort),
            merge: self.merge.since(&before.merge),
            image: self.image.since(&before.image),
            fold: self.fold.since(&before.fold),
            trim: self.trim.since(&before.trim),
        }
    }
}
