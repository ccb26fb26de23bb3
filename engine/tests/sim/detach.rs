//! Detaching of a branch: whenever the host crashes meanwhile, the branch reads as before, and can be detached after
//! all. Then it needs nothing of its ancestor.

use std::sync::Arc;

use anyhow::{Context, ensure};
use camino::{Utf8Path, Utf8PathBuf};
use engine::config::PageServerConf;
use engine::context::RequestContext;
use engine::tenant::timeline::{Manifest, NewTimeline, Timeline};
use pageserver_api::key::Key;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use super::block_on;
use super::disk::SimDisk;
use super::history::compare;
use super::platter::{Platter, Survival};
use super::random::Random;
use crate::stack::{IMPORT_LSN, Model, config, context, import, keys, new_timeline, put_record};

/// Records between two steps.
const RECORDS: u64 = 30;

/// Counts of what was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Moments at which the host crashed.
    pub points: u64,
    /// Disks found then on which the branch still had its ancestor,
    pub attached: u64,
    /// and on which it did not.
    pub detached: u64,
    /// Complete sets of values compared.
    pub compared: u64,
}

/// A timeline that reads as a map.
struct One {
    timeline: Timeline,
    model: Model,
}

/// A timeline, a branch of it, and a branch of that.
struct World {
    conf: &'static PageServerConf,
    root: One,
    branch: One,
    child: One,
    /// Where the branch begins.
    point: Lsn,
    ctx: RequestContext,
}

/// What is needed to open it again.
struct Known {
    conf: &'static PageServerConf,
    new: NewTimeline,
    branch: (TimelineId, Model),
    child: (TimelineId, Model),
    root: Model,
    point: Lsn,
}

async fn put(one: &mut One, random: &mut Random, flush: bool) -> anyhow::Result<()> {
    let ctx = context();
    let mut next = one.timeline.last_record_lsn();
    for _ in 0..RECORDS {
        next += 8;
        let mut batch = SerializedValueBatch::default();
        let change = (random.below(keys().len() as u64) as usize, random.next() as u32);
        put_record(&mut one.model, &mut batch, next, &[change]);
        one.timeline.put_batch(batch, &ctx).await?;
        one.timeline.finish_write(next, next - 8);
    }
    if flush {
        one.timeline.flush(&ctx).await?;
    }
    Ok(())
}

async fn branch_of(one: &One, lsn: Lsn) -> anyhow::Result<One> {
    let mut model = one.model.clone();
    model.truncate(lsn);
    Ok(One { timeline: one.timeline.branch(TimelineId::generate(), lsn).await?, model })
}

impl World {
    async fn make(root: &Utf8Path, seed: u64) -> anyhow::Result<(Self, Known)> {
        env::random::seed_thread(Some(seed));
        let conf = config(root, 1_000_000 + seed % 2);
        let mut random = Random::new(seed);
        let new = new_timeline();
        let (timeline, model) = import(conf, new).await?;
        let mut main = One { timeline, model };
        for _ in 0..3 {
            put(&mut main, &mut random, true).await?;
        }
        main.timeline.compact().await?;
        // The branch begins at what is only in memory.
        put(&mut main, &mut random, false).await?;
        let point = main.timeline.last_record_lsn();
        let mut branch = branch_of(&main, point).await?;
        put(&mut main, &mut random, true).await?;
        put(&mut branch, &mut random, true).await?;
        let middle = branch.timeline.last_record_lsn();
        put(&mut branch, &mut random, true).await?;
        let mut child = branch_of(&branch, middle).await?;
        put(&mut child, &mut random, true).await?;
        let known = Known {
            conf,
            new,
            branch: (branch.timeline.timeline_id(), branch.model.clone()),
            child: (child.timeline.timeline_id(), child.model.clone()),
            root: main.model.clone(),
            point,
        };
        Ok((Self { conf, root: main, branch, child, point, ctx: context() }, known))
    }

    async fn open(known: &Known) -> anyhow::Result<Self> {
        let (conf, ctx, tenant) = (known.conf, context(), known.new.tenant_shard_id);
        let main = Timeline::open(conf, tenant, known.new.timeline_id, &ctx).await.context("the ancestor")?;
        let dir = conf.timeline_path(&tenant, &known.branch.0);
        let manifest = Manifest::load(&dir, tenant, known.branch.0).await?;
        let ancestor = manifest.ancestor().map(|_| &main);
        let branch = Timeline::open_on(conf, tenant, known.branch.0, ancestor, &ctx).await.context("the branch")?;
        let child = Timeline::open_on(conf, tenant, known.child.0, Some(&branch), &ctx).await.context("its branch")?;
        Ok(Self {
            conf,
            root: One { timeline: main, model: known.root.clone() },
            branch: One { timeline: branch, model: known.branch.1.clone() },
            child: One { timeline: child, model: known.child.1.clone() },
            point: known.point,
            ctx,
        })
    }

    fn all(&self) -> Vec<Timeline> {
        [&self.root, &self.branch, &self.child].map(|one| one.timeline.clone()).to_vec()
    }

    /// All steps, one after the other.
    async fn detach(&self) -> anyhow::Result<()> {
        let branch = &self.branch.timeline;
        branch.prepare_detach().await.context("making its own what it inherits")?;
        ensure!(branch.decide_detach(&self.all()).await?, "something is missing, and nobody removes anything");
        branch.complete_detach().await?;
        ensure!(branch.info().ancestor_timeline_id.is_none() && branch.min_readable_lsn() >= self.point);
        Ok(())
    }

    /// Lets the ancestor go on without the branch: what only that needed of it is removed.
    async fn remove_what_only_the_branch_needed(&mut self, random: &mut Random) -> anyhow::Result<()> {
        let mut removed = 0;
        for _ in 0..3 {
            put(&mut self.root, random, true).await?;
            self.root.timeline.compact().await?;
            let reports = Timeline::collect_garbage(&self.all(), false).await?;
            removed += reports.iter().map(|report| report.removed_layers).sum::<usize>();
        }
        let refused = self.root.timeline.check_readable(self.point).is_err();
        ensure!(removed > 0 && refused, "the ancestor keeps everything: {removed} layers were removed");
        Ok(())
    }

    /// Reads the branches as of every LSN that a detached one has, or only as of some.
    async fn check(&self, every: usize, tally: &mut Tally) -> anyhow::Result<()> {
        for One { timeline, model } in [&self.branch, &self.child] {
            let last = timeline.last_record_lsn();
            for lsn in (self.point.0..=last.0).step_by(8 * every).chain([last.0]).map(Lsn) {
                let expected = model.values(&(Key::MIN..Key::MAX), lsn);
                ensure!(timeline.check_readable(lsn).is_ok(), "{lsn} is not readable");
                compare(timeline, lsn, &expected, &self.ctx).await.with_context(|| format!("at {lsn}"))?;
                tally.compared += 1;
            }
        }
        Ok(())
    }

    /// Checks that nothing below the branch point is read any more.
    fn check_below(&self) -> anyhow::Result<()> {
        for timeline in [&self.branch.timeline, &self.child.timeline] {
            for lsn in [IMPORT_LSN, self.point - 8, self.point - 1] {
                let refused = timeline.check_readable(lsn).err().map(|error| error.to_string()).unwrap_or_default();
                ensure!(refused.contains("detached"), "{lsn}: {refused:?}");
            }
        }
        Ok(())
    }

    /// Removes the ancestor with its directory, and reads the branches without it, before and after a restart.
    async fn without_ancestor(self, known: &Known, tally: &mut Tally) -> anyhow::Result<()> {
        self.root.timeline.clone().shutdown().await;
        self.check(1, tally).await.context("without the ancestor")?;
        self.check_below()?;
        let (conf, ctx, tenant) = (self.conf, context(), known.new.tenant_shard_id);
        self.child.timeline.shutdown().await;
        self.branch.timeline.shutdown().await;
        virtual_file::fs::remove_tree(&conf.timeline_path(&tenant, &known.new.timeline_id)).await?;
        let mut branch = Timeline::open(conf, tenant, known.branch.0, &ctx).await.context("the branch alone")?;
        let child = Timeline::open_on(conf, tenant, known.child.0, Some(&branch), &ctx).await?;
        let mut again = Self {
            child: One { timeline: child, model: self.child.model },
            branch: One { timeline: branch.clone(), model: self.branch.model },
            root: One { timeline: branch.clone(), model: Model::default() },
            ..self
        };
        again.check(3, tally).await.context("after a restart without the ancestor")?;
        again.check_below()?;
        put(&mut again.branch, &mut Random::new(7), true).await?;
        // Images, and removal of history, are as those of any timeline.
        branch.compact().await?;
        let all = [again.branch.timeline.clone(), again.child.timeline.clone()];
        Timeline::collect_garbage(&all, false).await?;
        branch = again.branch.timeline.clone();
        let last = branch.last_record_lsn();
        compare(&branch, last, &again.branch.model.values(&(Key::MIN..Key::MAX), last), &ctx).await?;
        let (child, end) = (&again.child.timeline, again.child.timeline.last_record_lsn());
        compare(child, end, &again.child.model.values(&(Key::MIN..Key::MAX), end), &ctx).await?;
        again.child.timeline.shutdown().await;
        branch.shutdown().await;
        Ok(())
    }
}

/// Detaches a branch, and reads it without its ancestor.
pub fn detach_and_forget(root: &Utf8PathBuf, seed: u64, tally: &mut Tally) -> anyhow::Result<()> {
    let disk = SimDisk::new(root);
    let _mounted = disk.mount();
    block_on(async {
        let (world, known) = World::make(root, seed).await?;
        world.check(1, tally).await.context("before")?;
        world.branch.timeline.prepare_detach().await?;
        world.check(1, tally).await.context("with images of what is inherited")?;
        world.detach().await?;
        // Doing so again changes nothing.
        world.detach().await?;
        world.without_ancestor(&known, tally).await
    })
}

/// Crashes after every effect of detaching.
pub fn crash_while_detaching(root: &Utf8PathBuf, seed: u64, tally: &mut Tally) -> anyhow::Result<()> {
    let disk = SimDisk::new(root);
    let (known, mut platter, journal) = {
        let _mounted = disk.mount();
        block_on(async {
            let (mut world, known) = World::make(root, seed).await?;
            disk.take_journal();
            let before = disk.platter();
            world.detach().await?;
            world.remove_what_only_the_branch_needed(&mut Random::new(seed)).await?;
            let journal = disk.take_journal();
            for timeline in world.all().into_iter().rev() {
                timeline.shutdown().await;
            }
            anyhow::Ok((Arc::new(known), before, journal))
        })?
    };
    for at in 0..=journal.len() {
        tally.points += 1;
        let seed = seed ^ at as u64;
        for survival in [Survival::Synced, Survival::Everything, Survival::Torn(seed)] {
            let image = platter.survivor(survival);
            let whole = at.is_multiple_of(5);
            block_on(reopen(root, image, &known, whole, tally)).with_context(|| {
                let next = journal.get(at).map(|entry| &entry.effect);
                format!("seed {seed}, crash after {at} effects, before {next:?}, {survival:?} found")
            })?;
        }
        if let Some(entry) = journal.get(at) {
            platter.apply(&entry.effect);
        }
    }
    Ok(())
}

async fn reopen(root: &Utf8Path, image: Platter, known: &Known, whole: bool, tally: &mut Tally) -> anyhow::Result<()> {
    let disk = SimDisk::of(root, image);
    let _mounted = disk.mount();
    let world = World::open(known).await.context("opening")?;
    match world.branch.timeline.info().ancestor_timeline_id {
        Some(_) => tally.attached += 1,
        None => tally.detached += 1,
    }
    world.check(if whole { 1 } else { 9 }, tally).await.context("values found after the crash")?;
    if whole {
        world.detach().await.context("detaching after the crash")?;
        return world.without_ancestor(known, tally).await;
    }
    for timeline in world.all().into_iter().rev() {
        timeline.shutdown().await;
    }
    Ok(())
}
