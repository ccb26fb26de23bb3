//! What ingest and compaction know of each other: how much is to be compacted, how fast that goes, and how long ingest
//! waits for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pageserver_api::key::Key;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::damage::Damage;
use super::retention::Retention;
use super::work::Lane;
use crate::tenant::layer_map::mark::Takes;
use metrics::{CompactionJob, METRICS};

/// Maximum delay of one batch.
const DELAY_MAX: Duration = Duration::from_millis(80);
/// Shorter delays are accumulated first: timers are not that precise.
const DELAY_MIN: Duration = Duration::from_millis(2);
/// Who waits for fewer L0 layers looks this often whether a job still runs,
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// and gives up if none did for this long.
const NOBODY_WORKS: Duration = Duration::from_secs(10);
/// Ingest counts as slowed for so long after a batch was.
const LATELY: Duration = Duration::from_secs(1);
/// Bytes per second that are assumed to be compacted before any job has run.
const RATE_GUESS: f64 = (64 << 20) as f64;
/// After so long a job's own rate counts.
const PROGRESS_MIN: Duration = Duration::from_millis(250);

/// Counts of one kind of job since the timeline was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct JobCounts {
    /// Jobs that ended well.
    pub jobs: u64,
    /// Bytes of the layers that they read.
    pub bytes_in: u64,
    /// Bytes of the layers that they wrote.
    pub bytes_out: u64,
    /// Milliseconds that they took.
    pub millis: u64,
}

/// Counts of all jobs since the timeline was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CompactionCounts {
    /// L0 layers sorted by key.
    pub sort: JobCounts,
    /// Sorted layers merged.
    pub merge: JobCounts,
    /// Images made at the end of what is sorted.
    pub image: JobCounts,
    /// Images made at the cutoff.
    pub fold: JobCounts,
    /// Layers below the cutoff of which little was needed.
    pub trim: JobCounts,
}

impl CompactionCounts {
    /// Those of one kind of job.
    pub fn of(&self, kind: CompactionJob) -> &JobCounts {
        match kind {
            CompactionJob::Sort => &self.sort,
            CompactionJob::Merge => &self.merge,
            CompactionJob::Image => &self.image,
            CompactionJob::Fold => &self.fold,
            CompactionJob::Trim => &self.trim,
        }
    }
}

/// What runs the jobs of a lane.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    /// A job runs in the background, or is about to.
    pub(crate) running: AtomicBool,
    /// Held by whoever runs jobs.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// The last failure, until no job is due any more.
    pub(crate) failure: Mutex<Option<Failure>>,
}

impl Worker {
    /// Whether no job is to be tried yet after a failure.
    pub(crate) fn pauses(&self) -> bool {
        self.failure.lock().as_ref().is_some_and(|failure| failure.until > env::clock::now())
    }

    /// Whether jobs fail: waiting for them is of no use.
    fn fails(&self) -> bool {
        self.failure.lock().is_some()
    }
}

/// Why no job runs, and until when.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) reason: String,
    pub(crate) until: Instant,
    /// Failures in a row.
    pub(crate) times: u32,
}

/// Bytes of L0 layers sorted per second.
#[derive(Clone, Copy, Debug, Default)]
struct SortRate {
    /// By jobs that have ended.
    before: Option<f64>,
    /// By the one that runs.
    now: Option<f64>,
}

impl SortRate {
    fn bytes_per_second(self) -> f64 {
        let rate = match (self.before, self.now) {
            (Some(before), Some(now)) => (before + now) / 2.0,
            (before, now) => before.or(now).unwrap_or(RATE_GUESS),
        };
        rate.max(1.0)
    }
}

/// Layers below the cutoff that were looked at, and of which much is needed.
#[derive(Debug, Default)]
pub(crate) struct Untrimmed {
    /// With this cutoff, and these LSNs below it, nothing is to be trimmed.
    pub(crate) at: Retention,
    /// What reads took of each when it was looked at, by its file.
    pub(crate) layers: HashMap<u64, Takes>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Compaction {
    sorts: Worker,
    others: Worker,
    pub(crate) counts: Mutex<CompactionCounts>,
    /// When the timeline was opened.
    pub(crate) opened: Instant,
    /// Layers that cannot be read.
    pub(crate) damage: Mutex<Damage>,
    /// The edition in which nothing but L0 layers could be due. At first that in which the timeline was opened: what
    /// was due then waits for the next change, so that opening a timeline reads nothing.
    pub(crate) idle_at: AtomicU64,
    /// Even few L0 layers are to be sorted: they keep history from going.
    pub(crate) sort_all: AtomicBool,
    /// What was found not to be worth trimming.
    pub(crate) untrimmed: Mutex<Untrimmed>,
    /// Keys whose pages could not be rebuilt: no images are made around them.
    pub(crate) quarantined: Mutex<Vec<Key>>,
    /// Wakes those who wait for fewer L0 layers.
    ended: watch::Sender<u64>,
    rate: Mutex<SortRate>,
    /// How much ingest is to be slowed for jobs other than sorts, from 0 to 1, as the bits of a float.
    pressure: AtomicU64,
    /// Nanoseconds of delay that are due but were too short to sleep for.
    owed: AtomicU64,
    /// Batches that are being delayed.
    delayed: AtomicUsize,
    /// When the last one was let go.
    let_go: Mutex<Option<Instant>>,
}

/// A batch that is being delayed.
struct Delayed<'a>(&'a Compaction);

impl<'a> Delayed<'a> {
    fn new(compaction: &'a Compaction) -> Self {
        compaction.delayed.fetch_add(1, Ordering::Relaxed);
        Self(compaction)
    }
}

impl Drop for Delayed<'_> {
    fn drop(&mut self) {
        *self.0.let_go.lock() = Some(env::clock::now());
        self.0.delayed.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Compaction {
    /// Of a timeline that is opened in `edition`.
    pub(crate) fn new(edition: u64) -> Self {
        Self {
            sorts: Worker::default(),
            others: Worker::default(),
            counts: Mutex::default(),
            opened: env::clock::now(),
            damage: Mutex::default(),
            idle_at: AtomicU64::new(edition),
            sort_all: AtomicBool::new(false),
            untrimmed: Mutex::default(),
            quarantined: Mutex::default(),
            ended: watch::Sender::new(0),
            rate: Mutex::default(),
            pressure: AtomicU64::new(0.0f64.to_bits()),
            owed: AtomicU64::new(0),
            delayed: AtomicUsize::new(0),
            let_go: Mutex::default(),
        }
    }

    /// What runs the jobs of `lane`.
    pub(crate) fn worker(&self, lane: Lane) -> &Worker {
        match lane {
            Lane::Sorts => &self.sorts,
            Lane::Others => &self.others,
        }
    }

    /// Why no job of one lane runs; of sorts first.
    pub(crate) fn failure(&self) -> Option<Failure> {
        [&self.sorts, &self.others].into_iter().find_map(|worker| worker.failure.lock().clone())
    }

    /// Notes that the job that runs has sorted `bytes` of L0 layers in `took` by now. So the rate is known before the
    /// first job has ended: a burst of WAL is over by then.
    pub(crate) fn note_sorting(&self, bytes: f64, took: Duration) {
        self.rate.lock().now = (took >= PROGRESS_MIN).then(|| bytes / took.as_secs_f64());
    }

    /// Notes that a job has ended that sorted `bytes` of L0 layers in `took`.
    pub(crate) fn note_sorted(&self, bytes: u64, took: Duration) {
        let mut rate = self.rate.lock();
        rate.now = Some(bytes as f64 / took.as_secs_f64().max(1e-3));
        *rate = SortRate { before: Some(rate.bytes_per_second()), now: None };
    }

    /// Notes how much ingest is to be slowed for jobs other than sorts, from 0 to 1.
    pub(crate) fn note_pressure(&self, pressure: f64) {
        self.pressure.store(pressure.to_bits(), Ordering::Relaxed);
    }

    /// See [`Compaction::note_pressure`].
    pub(crate) fn pressure(&self) -> f64 {
        f64::from_bits(self.pressure.load(Ordering::Relaxed))
    }

    /// Whether ingest is slowed, or was a moment ago: nobody else waits for jobs.
    pub(crate) fn slows_ingest(&self) -> bool {
        let is_recent = |at: Instant| env::clock::now().saturating_duration_since(at) < LATELY;
        self.delayed.load(Ordering::Relaxed) > 0 || self.let_go.lock().is_some_and(is_recent)
    }

    /// Wakes those who wait for fewer L0 layers: there may be, or nobody makes any.
    pub(crate) fn wake(&self) {
        self.ended.send_modify(|ended| *ended += 1);
    }

    /// Delays the ingest of `bytes` as `level`, the number of L0 layers and a fraction, demands: not at all below
    /// `slow` of them, and at `wait` until there are fewer, unless no job makes them fewer. Other jobs that are overdue
    /// count as so many L0 layers, but less than `wait`.
    pub(crate) async fn pace(&self, bytes: u64, (slow, wait): (usize, usize), level: impl Fn() -> f64 + Send + Sync) {
        let (slow, wait) = (slow as f64, wait as f64);
        let level = || {
            let sorts = if self.sorts.fails() { 0.0 } else { level() };
            let others = if self.others.fails() { 0.0 } else { self.pressure() };
            sorts.max(slow + (wait - slow) * others)
        };
        if level() <= slow {
            return;
        }
        let (started, _delayed) = (env::clock::now(), Delayed::new(self));
        self.delay_batch(bytes, (slow, wait), level).await;
        let slowed = env::clock::now().saturating_duration_since(started);
        METRICS.compaction_slowed_seconds.inc_by(slowed.as_secs_f64());
    }

    async fn delay_batch(&self, bytes: u64, (slow, wait): (f64, f64), level: impl Fn() -> f64 + Send + Sync) {
        let mut ended = self.ended.subscribe();
        let mut seen_running = env::clock::now();
        while level() >= wait {
            let now = env::clock::now();
            if self.sorts.running.load(Ordering::Acquire) {
                seen_running = now;
            }
            if now.saturating_duration_since(seen_running) > NOBODY_WORKS {
                break;
            }
            let _ = env::clock::timeout(LOOK_AGAIN, ended.changed()).await;
        }
        let rate = self.rate.lock().bytes_per_second();
        let due = delay(bytes, (level() - slow) / (wait - slow).max(1.0), rate).as_nanos() as u64;
        let owed = self.owed.fetch_add(due, Ordering::Relaxed).saturating_add(due);
        if owed >= DELAY_MIN.as_nanos() as u64 {
            self.owed.fetch_sub(owed, Ordering::Relaxed);
            env::clock::sleep(Duration::from_nanos(owed).min(DELAY_MAX)).await;
        }
    }
}

/// How long taking in `bytes` should take, `far` on the way from the level at which that is slowed to the one at
/// which it waits: nothing at first, as long as sorting them takes half way, and without bound at the end.
fn delay(bytes: u64, far: f64, rate: f64) -> Duration {
    let far = far.clamp(0.0, 0.999);
    Duration::try_from_secs_f64(bytes as f64 / rate * far / (1.0 - far)).map_or(DELAY_MAX, |delay| delay.min(DELAY_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ingest_is_slowed_smoothly_to_the_rate_of_sorting() {
        let (mib, rate) = (1 << 20, (64 << 20) as f64);
        assert_eq!(delay(mib, 0.0, rate), Duration::ZERO);
        assert_eq!(delay(mib, 0.5, rate), Duration::from_secs_f64(1.0 / 64.0));
        let delays: Vec<Duration> = (0..120).map(|percent| delay(mib, f64::from(percent) / 100.0, rate)).collect();
        assert!(delays.is_sorted() && delays.last() == Some(&DELAY_MAX), "{delays:?}");
        assert!(delays.windows(2).take(70).all(|pair| pair[1] - pair[0] < Duration::from_millis(3)), "{delays:?}");
    }

    #[test]
    fn the_rate_of_sorting_is_known_before_the_first_job_has_ended() {
        let (compaction, second) = (Compaction::new(0), Duration::from_secs(1));
        let rate = || compaction.rate.lock().bytes_per_second();
        assert_eq!(rate(), RATE_GUESS);
        compaction.note_sorting(1e6, Duration::from_millis(10));
        assert_eq!(rate(), RATE_GUESS, "too early to tell");
        compaction.note_sorting(3e8, second);
        assert_eq!(rate(), 3e8);
        compaction.note_sorted(200_000_000, second);
        assert_eq!(rate(), 2e8);
        compaction.note_sorting(4e8, second);
        assert_eq!(rate(), 3e8, "both count");
        compaction.note_sorting(0.0, Duration::ZERO);
        assert_eq!(rate(), 2e8, "another job has begun");
        compaction.note_sorting(0.0, second);
        compaction.note_sorted(0, second);
        assert!(rate() >= 1.0, "{}", rate());
    }

    #[tokio::test]
    async fn ingest_is_slowed_while_a_batch_waits_and_a_moment_longer() {
        let compaction = Compaction::new(0);
        compaction.pace(1, (6, 12), || 6.0).await;
        assert!(!compaction.slows_ingest(), "nothing has been delayed");
        {
            let mut pace = std::pin::pin!(compaction.pace(1, (6, 12), || 12.0));
            assert!(futures_util::poll!(&mut pace).is_pending());
            *compaction.let_go.lock() = None;
            assert!(compaction.slows_ingest(), "it waits");
        }
        assert!(compaction.slows_ingest(), "it waited just now");
        *compaction.let_go.lock() = env::clock::now().checked_sub(LATELY);
        assert!(!compaction.slows_ingest());
    }

    #[tokio::test]
    async fn at_the_limit_ingest_waits_until_a_job_ends_or_fails() {
        let compaction = Compaction::new(0);
        let level = AtomicU64::new(12);
        let mut pace = std::pin::pin!(compaction.pace(1, (6, 12), || level.load(Ordering::Relaxed) as f64));
        assert!(futures_util::poll!(&mut pace).is_pending());
        compaction.wake();
        assert!(futures_util::poll!(&mut pace).is_pending(), "as many as before");
        level.store(7, Ordering::Relaxed);
        compaction.wake();
        pace.await;
        level.store(12, Ordering::Relaxed);
        let failure = Failure { reason: "no room".to_owned(), until: env::clock::now(), times: 1 };
        *compaction.sorts.failure.lock() = Some(failure);
        compaction.pace(1, (6, 12), || level.load(Ordering::Relaxed) as f64).await;
    }
}
