//! The local disk as a cache of the bucket: measures usage, evicts layers that the bucket has, and publishes how much
//! room is left for intake.
//!
//! When room is short, layers that the bucket has are evicted by recency ([`policy`]). Layers that only this disk has
//! cannot be evicted; if they take too much, intake slows down and is eventually refused ([`DiskBudget`]). This ends
//! by itself once there is room again: layers reach the bucket, or somebody frees disk space.

mod limits;
pub mod policy;
mod survey;

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::limits::Limits;
use self::policy::Want;
use self::survey::Survey;
use crate::config::PageServerConf;
use crate::context::{DownloadBehavior, RequestContext};
use crate::disk_budget::{DiskBudget, Level, Measured};
use crate::task_mgr::TaskKind;
use crate::tenant::timeline::Timeline;
use metrics::METRICS;
use virtual_file::fs::{self, DiskSpace};

/// How often the disk is measured when room is short: reads fill the cache between measurements.
const SHORT_PERIOD: Duration = Duration::from_millis(100);
/// How often when there is room.
const PERIOD: Duration = Duration::from_secs(1);
/// How often there is a round though nothing seems to have changed.
const IDLE_PERIOD: Duration = Duration::from_secs(60);
/// Minimum pause between two rounds: if the last one freed something, and if it did not.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];
/// The keeper rests as long as it worked, because there may be many layers; but no longer than this, because somebody
/// may be waiting.
const REST_MAX: Duration = Duration::from_millis(100);

/// Looks after the local disk until `cancel`. `timelines` returns the open ones.
pub(crate) async fn keep(
    conf: &'static PageServerConf,
    timelines: impl Fn() -> Vec<Timeline>,
    cancel: CancellationToken,
) {
    // Blocks cached by reads take room at once, not only from the next measurement on.
    conf.resources.blocks.set_budget(conf.disk_budget.clone());
    let mut keeper =
        Keeper { conf, rolling: None, level: Level::Open, seen: None, short: true, waited: Duration::ZERO };
    loop {
        let pressed = tokio::select! {
            () = keeper.wait() => false,
            () = conf.disk_budget.pressed() => true,
            () = cancel.cancelled() => return,
        };
        let started = env::clock::now();
        let space = keeper.space().await;
        if !pressed && keeper.is_idle(space) {
            continue;
        }
        let freed = keeper.round(timelines(), space).await;
        let worked = env::clock::now().saturating_duration_since(started);
        env::clock::sleep(PAUSES[usize::from(freed == 0)].max(worked.min(REST_MAX))).await;
    }
}

struct Keeper {
    conf: &'static PageServerConf,
    /// The task that flushes a timeline to make its memory evictable.
    rolling: Option<JoinHandle<()>>,
    /// The level that was last logged.
    level: Level,
    /// Room and free disk after the last round.
    seen: Option<(i64, Option<u64>)>,
    /// Layers may have to be evicted soon.
    short: bool,
    /// Time since the last round.
    waited: Duration,
}

impl Keeper {
    fn budget(&self) -> &'static DiskBudget {
        &self.conf.disk_budget
    }

    async fn space(&self) -> Option<DiskSpace> {
        fs::disk_space(&self.conf.workdir).await.ok().flatten()
    }

    /// Waits until a measurement is due: the first is at once.
    async fn wait(&mut self) {
        if self.seen.is_none() {
            return;
        }
        let period = if self.short { SHORT_PERIOD } else { PERIOD };
        env::clock::sleep(period).await;
        self.waited += period;
    }

    /// Whether there is room and nothing has been written or freed since the last round.
    fn is_idle(&self, space: Option<DiskSpace>) -> bool {
        let now = (self.budget().room(), space.map(|space| space.free));
        let is_open = self.level == Level::Open && self.budget().level() == Level::Open;
        is_open && self.seen == Some(now) && self.waited < IDLE_PERIOD
    }

    /// Measures, evicts, and publishes the remaining room. Returns the bytes freed.
    async fn round(&mut self, timelines: Vec<Timeline>, space: Option<DiskSpace>) -> u64 {
        let begun = self.budget().begin();
        let limits = Limits::of(self.conf, space);
        let mut survey = Survey::of(&timelines, self.budget()).await;
        let short = limits.measure(&survey.usage()).shortage();
        // Evict the oldest parts before the block cache is full, so that there is room for new blocks.
        let partial_max = self.conf.block_cache_disk / 10 * 9;
        let freed = survey.evict(Want { bytes: short, partial_max }).await;
        let space = if freed > 0 { self.space().await } else { space };
        let measured = Limits::of(self.conf, space).measure(&survey.usage());
        METRICS.resident_bytes.set(measured.resident);
        self.conf.resources.blocks.set_disk_used(survey.partial_bytes());
        if measured.room < measured.slow_below {
            self.roll(timelines);
        }
        self.short = measured.room < 2 * measured.evict_below;
        self.waited = Duration::ZERO;
        self.budget().set(measured.clone(), begun);
        self.seen = Some((self.budget().room(), space.map(|space| space.free)));
        self.log(&measured);
        freed
    }

    /// Starts flushing the timeline with the most bytes in memory: its layers can then be uploaded and evicted.
    fn roll(&mut self, timelines: Vec<Timeline>) {
        if self.rolling.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let largest = timelines.into_iter().max_by_key(|timeline| timeline.info().in_memory_bytes);
        let Some(timeline) = largest.filter(|timeline| timeline.info().in_memory_bytes > 0) else { return };
        self.rolling = Some(env::spawn::task("flush for want of room", async move {
            let ctx = RequestContext::new(TaskKind::LayerFlushTask, DownloadBehavior::Error);
            if let Err(error) = timeline.flush(&ctx).await {
                tracing::debug!(timeline = %timeline.timeline_id(), "not flushed for want of room: {error}");
            }
        }));
    }

    /// What was taken in meanwhile does not count yet: the next round may evict as much.
    fn log(&mut self, measured: &Measured) {
        METRICS.intake_level.set(self.budget().level() as u64);
        let level = measured.level();
        if level == self.level {
            return;
        }
        match level {
            Level::Open => tracing::info!("there is room on the local disk again: the intake goes on"),
            Level::Slow => tracing::warn!("the intake is slowed: {}", measured.advice),
            Level::Refuse => tracing::warn!("no more is taken in: {}", measured.advice),
        }
        self.level = level;
    }
}
