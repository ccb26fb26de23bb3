//! The local disk as a cache of the bucket: measures what is on it, evicts what the bucket has, and says how much may
//! still be taken in.
//!
//! When room is short, layers that the bucket has leave by recency ([`policy`]). What only this disk has cannot go, and
//! if that is too much, intake slows down and is refused in the end ([`DiskBudget`]). All of it passes by itself when
//! there is room again: layers reach the bucket, or somebody frees disk.

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

/// How often the disk is looked at when room is short: what reads cache is not subtracted meanwhile.
const TICK: Duration = Duration::from_millis(100);
/// So many ticks pass if there is room,
const TICKS: u32 = 10;
/// and so many if nothing seems to have changed.
const IDLE_TICKS: u32 = 600;
/// At least so long between two rounds, if the last one has freed something, and if it has not.
const PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(100)];
/// The keeper rests as long as it works, for layers may be many; but not longer than this, for somebody may wait.
const REST_MAX: Duration = Duration::from_millis(100);

/// Looks after the local disk until `cancel`. `timelines` gives those that are open.
pub(crate) async fn keep(
    conf: &'static PageServerConf,
    timelines: impl Fn() -> Vec<Timeline>,
    cancel: CancellationToken,
) {
    // What reads keep here takes room at once, and not when it is measured next.
    conf.resources.blocks.set_budget(conf.disk_budget.clone());
    let mut keeper = Keeper { conf, rolling: None, level: Level::Open, seen: None, short: true, waited: 0 };
    let mut ticks = env::clock::interval(TICK);
    loop {
        let pressed = tokio::select! {
            _ = ticks.tick() => false,
            () = conf.disk_budget.pressed() => true,
            () = cancel.cancelled() => return,
        };
        if !pressed && !keeper.is_due() {
            continue;
        }
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
    /// A timeline's in-memory layers on their way out.
    rolling: Option<JoinHandle<()>>,
    /// As was last logged.
    level: Level,
    /// Room and free disk after the last round.
    seen: Option<(i64, Option<u64>)>,
    /// Something may have to be evicted soon.
    short: bool,
    /// Ticks since the last round.
    waited: u32,
}

impl Keeper {
    fn budget(&self) -> &'static DiskBudget {
        &self.conf.disk_budget
    }

    async fn space(&self) -> Option<DiskSpace> {
        fs::disk_space(&self.conf.workdir).await.ok().flatten()
    }

    /// Whether it is time to look.
    fn is_due(&mut self) -> bool {
        self.waited += 1;
        self.short || self.waited.is_multiple_of(TICKS)
    }

    /// Whether nothing has been written or freed since the last round, and there is room.
    fn is_idle(&self, space: Option<DiskSpace>) -> bool {
        let now = (self.budget().room(), space.map(|space| space.free));
        self.level == Level::Open && self.seen == Some(now) && self.waited < IDLE_TICKS
    }

    /// Measures, evicts, and says how much room there is. Returns the bytes freed.
    async fn round(&mut self, timelines: Vec<Timeline>, space: Option<DiskSpace>) -> u64 {
        let begun = self.budget().begin();
        let limits = Limits::of(self.conf, space);
        let mut survey = Survey::of(&timelines, self.budget()).await;
        let short = limits.measure(&survey.usage()).shortage();
        // Of full caches the oldest parts go before there is no room for new ones.
        let partial_max = self.conf.block_cache_disk / 10 * 9;
        let freed = survey.evict(Want { bytes: short, partial_max }).await;
        let space = if freed > 0 { self.space().await } else { space };
        let measured = Limits::of(self.conf, space).measure(&survey.usage());
        METRICS.resident_bytes.set(measured.resident);
        self.conf.resources.blocks.set_disk_used(survey.partial_bytes());
        self.conf.resources.blocks.allow_disk(measured.room > measured.slow_below);
        if measured.room < measured.slow_below {
            self.roll(timelines);
        }
        self.short = measured.room < 2 * measured.evict_below;
        self.waited = 0;
        self.budget().set(measured.clone(), begun);
        self.seen = Some((self.budget().room(), space.map(|space| space.free)));
        self.log(&measured);
        freed
    }

    /// Starts to write out the timeline that has most in memory: a layer can be uploaded, and evicted then.
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

    fn log(&mut self, measured: &Measured) {
        let level = self.budget().level();
        METRICS.intake_level.set(level as u64);
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
