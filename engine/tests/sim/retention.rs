//! What must stay readable when history is removed: moments that are held or leased, where branches begin, and
//! everything from the cutoff on; and that nothing else is read.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, ensure};
use camino::Utf8PathBuf;
use engine::config::{CompactionPolicy, PageServerConf, RetentionPolicy};
use engine::context::RequestContext;
use engine::tenant::timeline::{Limits, Timeline};
use utils::id::TimelineId;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use super::disk::{ENOSPC, Failure, SimDisk};
use super::history::compare;
use super::random::Random;
use crate::stack::{IMPORT_LSN, Model, config, context, import, keys, new_timeline, put_record};

/// Records between two steps.
const RECORDS: u64 = 40;
/// How long a lease lasts.
const LEASE: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Steps after the moments that are kept.
const STEPS: usize = 6;
/// Steps in which jobs run beside the removal of history.
const STEPS_BESIDE: usize = 20;
/// The most that a call of the disk takes then.
const CALL: Duration = Duration::from_millis(1);

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Layers removed.
    pub removed: u64,
    /// Moments read.
    pub read: u64,
    /// Moments refused.
    pub refused: u64,
}

struct World {
    conf: &'static PageServerConf,
    timeline: Timeline,
    branches: Vec<(Timeline, Lsn)>,
    model: Model,
    random: Random,
    ctx: RequestContext,
}

impl World {
    async fn put(&mut self) -> anyhow::Result<Lsn> {
        let last = self.put_in_memory().await?;
        self.timeline.flush(&self.ctx).await?;
        Ok(last)
    }

    async fn put_in_memory(&mut self) -> anyhow::Result<Lsn> {
        let mut next = self.timeline.last_record_lsn();
        for _ in 0..RECORDS {
            next += 8;
            let mut batch = SerializedValueBatch::default();
            let change = (self.random.below(keys().len() as u64) as usize, self.random.next() as u32);
            put_record(&mut self.model, &mut batch, next, &[change]);
            self.timeline.put_batch(batch, &self.ctx).await?;
            self.timeline.finish_write(next, next - 8);
        }
        Ok(next)
    }

    async fn branch(&mut self, from: Option<usize>, lsn: Lsn) -> anyhow::Result<()> {
        let ancestor = from.map_or(&self.timeline, |number| &self.branches[number].0);
        let branch = ancestor.branch(TimelineId::generate(), lsn).await?;
        self.branches.push((branch, lsn));
        Ok(())
    }

    async fn remove_history(&self) -> anyhow::Result<u64> {
        let branches = self.branches.iter().map(|(branch, _)| branch.clone());
        let all: Vec<Timeline> = [self.timeline.clone()].into_iter().chain(branches).collect();
        self.timeline.compact().await?;
        let reports = Timeline::collect_garbage(&all, false).await?;
        Ok(reports.iter().map(|report| report.removed_layers as u64).sum())
    }

    /// Reads everything as of every LSN; those in `kept` must be readable.
    async fn check(&self, kept: &[Lsn], tally: &mut Tally) -> anyhow::Result<()> {
        for lsn in kept {
            ensure!(self.timeline.check_readable(*lsn).is_ok(), "{lsn} is to be kept, and not readable");
        }
        let last = self.timeline.last_record_lsn();
        for lsn in (IMPORT_LSN.0..=last.0).step_by(8).map(Lsn) {
            let readable = self.timeline.check_readable(lsn).is_ok();
            tally.read += u64::from(readable);
            tally.refused += u64::from(!readable);
            self.compare(&self.timeline, lsn).await?;
        }
        for (branch, lsn) in &self.branches {
            self.compare(branch, *lsn).await.context("a branch")?;
        }
        Ok(())
    }

    async fn compare(&self, timeline: &Timeline, lsn: Lsn) -> anyhow::Result<()> {
        let expected = self.model.values(&(pageserver_api::key::Key::MIN..pageserver_api::key::Key::MAX), lsn);
        compare(timeline, lsn, &expected, &self.ctx).await
    }

    async fn restart(&mut self) -> anyhow::Result<()> {
        let (tenant, id) = (self.timeline.tenant_shard_id(), self.timeline.timeline_id());
        let mut ids = Vec::new();
        while let Some((branch, lsn)) = self.branches.pop() {
            ids.push((branch.timeline_id(), lsn));
            branch.shutdown().await;
        }
        self.timeline.clone().shutdown().await;
        self.timeline = Timeline::open(self.conf, tenant, id, &self.ctx).await?;
        for (id, lsn) in ids.into_iter().rev() {
            // The second is a branch of the first.
            let ancestor = self.branches.first().map_or(&self.timeline, |(branch, _)| branch);
            let branch = Timeline::open_on(self.conf, tenant, id, Some(ancestor), &self.ctx).await?;
            self.branches.push((branch, lsn));
        }
        Ok(())
    }
}

/// Keeps moments in every way, removes history again and again, and checks what can be read.
pub fn keep_and_remove(root: &Utf8PathBuf, seed: u64, tally: &mut Tally) -> anyhow::Result<()> {
    let disk = SimDisk::new(root);
    let _mounted = disk.mount();
    super::block_on(async {
        let (mut world, moments) = begin(config(root, 1_000_000), seed).await?;
        world.timeline.hold("a moment", moments[0]).await?;
        world.branch(None, moments[2]).await?;
        // A branch of the branch, at an LSN that still is the ancestor's.
        world.branch(Some(0), moments[1]).await?;
        world.timeline.lease(moments[3], LEASE).await?;
        let pin = world.timeline.pin(moments[4])?;
        for step in 0..STEPS {
            world.put().await?;
            tally.removed += world.remove_history().await?;
            world.check(&moments, tally).await.with_context(|| format!("step {step}"))?;
        }
        drop(pin);
        world.restart().await?;
        world.check(&moments[..4], tally).await.context("after a restart")?;
        disk.fail(Some(Failure { of: |_| true, after: 0, times: u64::MAX, errno: ENOSPC }));
        ensure!(world.timeline.release("a moment").await.is_err(), "that cannot be stored");
        disk.fail(None);
        ensure!(world.timeline.release("a moment").await?, "the hold is gone");
        world.put().await?;
        tally.removed += world.remove_history().await?;
        world.check(&moments[1..4], tally).await.context("without the hold")?;
        ensure!(world.timeline.check_readable(moments[0]).is_err(), "nothing keeps {} any more", moments[0]);
        ensure!(world.timeline.check_readable(moments[4]).is_err(), "nobody reads {} any more", moments[4]);
        let all = Arc::new(world);
        for (branch, _) in all.branches.iter().rev() {
            branch.clone().shutdown().await;
        }
        all.timeline.clone().shutdown().await;
        Ok(())
    })
}

/// Removes history at every moment of jobs that replace and remove layers themselves.
pub fn remove_beside_jobs(root: &Utf8PathBuf, seed: u64, tally: &mut Tally) -> anyhow::Result<()> {
    let disk = SimDisk::new(root);
    let _mounted = disk.mount();
    // With images as often as can be, each of which lets an earlier one go.
    let common = config(root, 1_000_000);
    let compaction = CompactionPolicy { image_percent: 5, ..common.compaction.clone() };
    let conf = Box::leak(Box::new(PageServerConf { compaction, ..common.clone() }));
    super::block_on_paused(async {
        let (mut world, moments) = begin(conf, seed).await?;
        world.timeline.hold("a moment", moments[0]).await?;
        disk.delay_calls(seed, CALL);
        let mut effects = 0;
        for step in 0..STEPS_BESIDE {
            // Two L0 layers are sorted.
            world.put().await?;
            let last = world.put().await?;
            let (before, after) = (disk.effects(), world.random.below(effects + 1) as usize);
            let made = Cell::new(None);
            let jobs = async {
                let done = world.timeline.compact().await;
                made.set(Some((disk.effects() - before) as u64));
                done
            };
            let removal = async {
                while made.get().is_none() && disk.effects() < before + after {
                    tokio::time::sleep(CALL / 20).await;
                }
                Timeline::collect_garbage(&[world.timeline.clone()], false).await
            };
            let (done, removed) = tokio::join!(jobs, removal);
            done?;
            tally.removed += removed?.iter().map(|report| report.removed_layers as u64).sum::<u64>();
            effects = effects.max(made.get().unwrap_or_default());
            for lsn in [moments[0], world.timeline.window().cutoff.max(IMPORT_LSN), last] {
                ensure!(
                    world.timeline.check_readable(lsn).is_ok(),
                    "step {step}: {lsn} is to be kept, and not readable"
                );
                let compared = world.compare(&world.timeline, lsn).await;
                compared.with_context(|| format!("step {step}, removal after {after} effects"))?;
            }
        }
        world.restart().await?;
        world.check(&[moments[0], world.timeline.last_record_lsn()], tally).await.context("after a restart")?;
        world.timeline.shutdown().await;
        Ok(())
    })
}

/// A timeline of which some history has arrived, and moments of it.
async fn begin(conf: &'static PageServerConf, seed: u64) -> anyhow::Result<(World, Vec<Lsn>)> {
    env::random::seed_thread(Some(seed));
    let (timeline, model) = import(conf, new_timeline()).await?;
    let random = Random::new(seed);
    let mut world = World { conf, timeline, branches: Vec::new(), model, random, ctx: context() };
    let mut moments = Vec::new();
    for _ in 0..5 {
        moments.push(world.put().await?);
    }
    Ok((world, moments))
}

/// The same with two moments that are held and leased.
async fn with_moments(root: &Utf8PathBuf, seed: u64, retention: RetentionPolicy) -> anyhow::Result<(World, Vec<Lsn>)> {
    let conf = PageServerConf { retention, ..config(root, 1_000_000).clone() };
    let (world, moments) = begin(Box::leak(Box::new(conf)), seed).await?;
    world.timeline.hold("a moment", moments[0]).await?;
    world.timeline.lease(moments[1], LEASE).await?;
    Ok((world, moments))
}

/// Removes history until nothing more goes; what bounds the cutoff then.
async fn remove_all(world: &World, tally: &mut Tally) -> anyhow::Result<&'static str> {
    // One round sorts what keeps the cutoff, and the next one removes what lies below it.
    for _ in 0..4 {
        tally.removed += world.remove_history().await?;
    }
    Ok(world.timeline.window().bound_by)
}

/// Changes how much is kept, of a timeline of which its age lets nothing go.
pub fn limit(root: &Utf8PathBuf, seed: u64, tally: &mut Tally) -> anyhow::Result<()> {
    let disk = SimDisk::new(root);
    let _mounted = disk.mount();
    super::block_on(async {
        let retention = RetentionPolicy { gc_horizon: 64, ..RetentionPolicy::ON_REQUEST };
        let (mut world, moments) = with_moments(root, seed, retention).await?;
        let mut none = Tally::default();
        ensure!(remove_all(&world, &mut none).await? == "pitr_interval" && none.removed == 0, "{none:?}");
        world.check(&moments, tally).await.context("the whole history")?;

        let bytes = 2 * RECORDS * 8;
        let limits = Limits { history_max_bytes: Some(bytes), ..Limits::default() };
        world.timeline.set_limits(limits).await?;
        ensure!(remove_all(&world, tally).await? == "history_max_bytes", "{:?}", world.timeline.window());
        let first = world.timeline.window().cutoff;
        ensure!(first == world.timeline.last_record_lsn() - bytes, "the cutoff is {first}");
        world.check(&[moments[0], moments[1], moments[3], moments[4]], tally).await.context("two moments are held")?;
        ensure!(world.timeline.check_readable(moments[2] - 8).is_err(), "nothing keeps it");

        world.restart().await?;
        ensure!(world.timeline.window().limits == limits, "{:?}", world.timeline.window());
        for _ in 0..STEPS {
            world.put().await?;
            ensure!(remove_all(&world, tally).await? == "history_max_bytes", "{:?}", world.timeline.window());
        }
        let second = world.timeline.window().cutoff;
        ensure!(second == world.timeline.last_record_lsn() - bytes, "the cutoff is {second}");
        world.check(&moments[..2], tally).await.context("after a restart")?;

        // A longer window brings nothing back, and a cutoff never goes back.
        for history_max_bytes in [None, Some(3 * bytes)] {
            world.timeline.set_limits(Limits { history_max_bytes, ..limits }).await?;
            world.put().await?;
            remove_all(&world, tally).await?;
            ensure!(world.timeline.window().cutoff == second, "{:?}", world.timeline.window());
        }
        world.check(&moments[..2], tally).await.context("with a longer window")?;
        world.timeline.shutdown().await;
        Ok(())
    })
}

/// Archives a timeline that has a branch, and takes it back into service.
pub fn archive(root: &Utf8PathBuf, seed: u64, tally: &mut Tally) -> anyhow::Result<()> {
    let disk = SimDisk::new(root);
    let _mounted = disk.mount();
    super::block_on(async {
        let (mut world, moments) = with_moments(root, seed, RetentionPolicy::ON_REQUEST).await?;
        world.branch(None, moments[2]).await?;
        // Less than would be sorted otherwise, part of it in memory only.
        world.put().await?;
        world.timeline.finish_write(world.timeline.last_record_lsn() + 8, Lsn::INVALID);
        let end = world.timeline.last_record_lsn();
        let in_memory = world.put_in_memory().await?;
        world.timeline.archive().await?;
        ensure!(in_memory > end && world.timeline.disk_consistent_lsn() == in_memory, "its end is not durable");
        let kept = [moments[0], moments[1], moments[2], in_memory];
        for round in ["archived", "opened again"] {
            let before = world.model.clone();
            let refused = world.put_in_memory().await.map_err(|error| format!("{error:#}")).err();
            ensure!(refused.is_some_and(|reason| reason.contains("is archived")), "it takes in WAL");
            world.model = before;
            ensure!(remove_all(&world, tally).await? == "archived", "{:?}", world.timeline.window());
            ensure!(world.timeline.window().cutoff == in_memory, "{:?}", world.timeline.window());
            ensure!(world.timeline.info().l0_layers == 0, "not everything is sorted");
            ensure!(world.timeline.check_readable(moments[4]).is_err(), "more than its end is kept");
            world.check(&kept, tally).await.context(round)?;
            world.restart().await?;
            ensure!(world.timeline.is_archived() && world.timeline.info().archived_at.is_some(), "it is forgotten");
        }
        world.timeline.unarchive().await?;
        world.restart().await?;
        ensure!(!world.timeline.is_archived(), "it is archived again");
        let next = world.put().await?;
        remove_all(&world, tally).await?;
        world.check(&[kept[0], kept[1], kept[2], in_memory, next], tally).await.context("in service again")?;
        for (branch, _) in &world.branches {
            branch.clone().shutdown().await;
        }
        world.timeline.shutdown().await;
        Ok(())
    })
}

/// Sets the wall clock a day ahead, and two days back: only time that passes ends leases and windows.
pub fn set_clocks(root: &Utf8PathBuf, seed: u64, tally: &mut Tally) -> anyhow::Result<()> {
    let disk = SimDisk::new(root);
    let _mounted = disk.mount();
    env::clock::freeze_thread();
    let done = super::block_on(async {
        let pitr_interval = 2 * LEASE;
        let retention = RetentionPolicy { pitr_interval, gc_horizon: 64, ..RetentionPolicy::ON_REQUEST };
        let (mut world, moments) = with_moments(root, seed, retention).await?;
        world.timeline.release("a moment").await?;
        world.timeline.tend().await?;
        let mut none = Tally::default();
        for (by, ahead) in [(DAY, true), (2 * DAY, false), (DAY, true)] {
            env::clock::set_thread(by, ahead);
            world.put().await?;
            world.timeline.tend().await?;
            remove_all(&world, &mut none).await?;
            ensure!(none.removed == 0 && world.timeline.window().cutoff == Lsn::INVALID, "{none:?}");
            let ends = world.timeline.holds().first().and_then(|lease| lease.until).context("the lease has ended")?;
            let now = env::clock::system_now().duration_since(UNIX_EPOCH)?.as_secs();
            ensure!(ends.abs_diff(now + LEASE.as_secs()) <= 1, "the lease ends at {ends}, and it is {now}");
            world.check(&moments, tally).await.with_context(|| format!("{by:?}, ahead: {ahead}"))?;
        }
        env::clock::advance_thread(LEASE);
        ensure!(world.timeline.holds().is_empty(), "the lease has not ended");
        world.put().await?;
        env::clock::advance_thread(LEASE);
        world.timeline.tend().await?;
        remove_all(&world, tally).await?;
        let cutoff = world.timeline.window().cutoff;
        ensure!(cutoff == moments[4], "two hours ago {} had arrived, and the cutoff is {cutoff}", moments[4]);
        for ahead in [false, true] {
            env::clock::set_thread(DAY, ahead);
            world.restart().await?;
            remove_all(&world, tally).await?;
            ensure!(world.timeline.window().cutoff >= cutoff, "the cutoff goes back");
            world.check(&[world.timeline.last_record_lsn()], tally).await?;
        }
        for _ in 0..STEPS {
            env::clock::advance_thread(LEASE);
            world.put().await?;
            world.timeline.tend().await?;
            remove_all(&world, tally).await?;
        }
        ensure!(world.timeline.window().cutoff > cutoff, "the window does not move on");
        world.check(&[world.timeline.last_record_lsn()], tally).await?;
        world.timeline.shutdown().await;
        Ok(())
    });
    env::clock::thaw_thread();
    done
}
