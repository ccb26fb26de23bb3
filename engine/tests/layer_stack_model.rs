//! Tests the whole layer stack against a map: random puts, flushes, restarts, and reads as of random LSNs, in all I/O
//! modes and with both I/O engines.

mod stack;

use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

use camino::Utf8Path;
use camino_tempfile::{tempdir, tempdir_in};
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::find_single_timeline;
use engine::tenant::timeline::{Limits, Manifest, Timeline};
use errors::StorageError;
use fault::Bug;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::models::virtual_file::{IoEngineKind, IoMode};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use stack::{Change, IMPORT_LSN, Model, ModelKeys, config, context, import, keys, new_timeline, put_record};
use utils::id::TimelineId;
use utils::lsn::Lsn;
use virtual_file::{self, SyncMode};
use wal_decoder::serialized_batch::SerializedValueBatch;

const CASES: u32 = 24;
/// How often as many are drawn until all has happened that can.
const ROUNDS_MAX: u32 = 10;

/// I/O engine and mode are process-wide: run one combination at a time.
static PROCESS: Mutex<()> = Mutex::new(());

#[derive(Clone, Debug)]
enum Op {
    /// A batch of records, each with its changes.
    Put(Vec<Vec<Change>>),
    /// Advances the LSN without any values.
    Skip,
    Flush,
    /// Sorts, merges and images layers until nothing is due.
    Compact,
    /// Removes history that nothing keeps.
    Gc,
    /// Keeps a moment, a fraction (in 256ths) of the history.
    Hold(u8),
    /// Ends the oldest hold.
    Release,
    /// Changes how much is kept.
    Limit(u64),
    /// Archives the timeline for a while, in a quarter of the cases.
    Archive(u8),
    /// Branches off at a moment.
    Branch(u8),
    /// A record on the newest branch.
    PutOnBranch(Vec<Change>),
    /// Detaches the oldest branch that has an ancestor.
    Detach,
    /// Whatever was not flushed is lost.
    Restart,
    /// Reads all keys between two of them, as of a fraction (in 256ths) of the history.
    ReadRange(usize, usize, u8),
    /// Reads one key.
    Read(usize, u8),
}

#[derive(Debug, Default)]
struct Counts {
    puts: u64,
    flushes: u64,
    sorts: u64,
    merges: u64,
    images: u64,
    gcs: u64,
    removed: u64,
    refused: u64,
    branches: u64,
    detached: u64,
    holds: u64,
    limits: u64,
    archived: u64,
    restarts: u64,
    reads: u64,
    values: u64,
    /// Reads of pages that were not in use,
    unused: u64,
    /// and those of which nothing was left.
    forgotten: u64,
    layers: u64,
}

fn op() -> impl Strategy<Value = Op> {
    let changes = prop::collection::vec((0..12usize, any::<u32>()), 1..4);
    prop_oneof![
        8 => prop::collection::vec(changes, 1..6).prop_map(Op::Put),
        1 => Just(Op::Skip),
        3 => Just(Op::Flush),
        2 => Just(Op::Compact),
        2 => Just(Op::Gc),
        1 => any::<u8>().prop_map(Op::Hold),
        1 => Just(Op::Release),
        1 => (0..2000u64).prop_map(Op::Limit),
        1 => any::<u8>().prop_map(Op::Archive),
        1 => any::<u8>().prop_map(Op::Branch),
        2 => prop::collection::vec((0..12usize, any::<u32>()), 1..4).prop_map(Op::PutOnBranch),
        1 => Just(Op::Detach),
        1 => Just(Op::Restart),
        3 => (0..12usize, 0..13usize, any::<u8>()).prop_map(|(from, to, at)| Op::ReadRange(from, to, at)),
        3 => (0..12usize, any::<u8>()).prop_map(|(key, at)| Op::Read(key, at)),
    ]
}

/// A timeline and what it must hold.
struct Branch {
    timeline: Timeline,
    model: Model,
    next: Lsn,
}

struct Run<'c> {
    timeline: Timeline,
    model: Model,
    next: Lsn,
    branches: Vec<Branch>,
    held: Vec<(String, Lsn)>,
    ctx: RequestContext,
    counts: &'c mut Counts,
}

impl Run<'_> {
    /// Puts the records in one batch, or each in its own; `finish_write` is called only at the end.
    async fn put(&mut self, records: &[Vec<Change>]) -> anyhow::Result<()> {
        let mut batches = vec![SerializedValueBatch::default()];
        let (mut last, mut prev) = (self.next, self.next);
        for changes in records {
            let batch = batches.last_mut().expect("there is always one");
            put_record(&mut self.model, batch, self.next, changes);
            if records.len() % 2 == 1 {
                batches.push(SerializedValueBatch::default());
            }
            (last, prev) = (self.next, self.next - 8);
            self.next += 8 + u64::from(changes[0].1 % 64) / 8 * 8;
        }
        for batch in batches {
            self.counts.puts += batch.len() as u64;
            self.timeline.put_batch(batch, &self.ctx).await?;
        }
        self.timeline.finish_write(last, prev);
        Ok(())
    }

    async fn compact(&mut self) -> anyhow::Result<()> {
        for timeline in self.branches.iter().map(|branch| &branch.timeline).chain([&self.timeline]) {
            let done = timeline.compact().await?;
            self.counts.sorts += done.sort.jobs;
            self.counts.merges += done.merge.jobs;
            self.counts.images += done.image.jobs;
        }
        Ok(())
    }

    fn lsn(&self, at: u8) -> Lsn {
        let span = self.timeline.last_record_lsn().0 - IMPORT_LSN.0 + 16;
        // Sometimes before the beginning of the history.
        IMPORT_LSN - 8 + span * u64::from(at) / 255
    }

    /// A context under which every other read may take rebuilt pages from the cache.
    fn reader(&self) -> RequestContext {
        match self.counts.reads % 2 {
            0 => RequestContext::new(TaskKind::PageRequestHandler, DownloadBehavior::Error),
            _ => self.ctx.clone(),
        }
    }

    async fn read(&mut self, key: Key, lsn: Lsn) -> anyhow::Result<()> {
        let found = self.timeline.get(key, lsn, &self.reader()).await;
        self.counts.reads += 1;
        if is_kept(&self.timeline, lsn) && self.model.unused(lsn).contains(&key) {
            self.counts.unused += 1;
            return Ok(());
        }
        match (found, self.model.value(&key, lsn)) {
            (Err(StorageError::Invalid(_)), _) if !is_kept(&self.timeline, lsn) => self.counts.refused += 1,
            (Ok(found), Some(expected)) => anyhow::ensure!(found == expected, "{key} at {lsn} differs"),
            (Err(StorageError::MissingKey { .. }), None) => {}
            (found, expected) => anyhow::bail!("{key} at {lsn}: {found:?}, expected {:?}", expected.map(|v| v.len())),
        }
        Ok(())
    }

    async fn read_range(&mut self, from: Key, to: Key, lsn: Lsn) -> anyhow::Result<()> {
        let ctx = self.reader();
        compare(&self.timeline, &self.model, from..to.max(from), lsn, &ctx, self.counts).await
    }

    /// Reads everything as of every LSN, on all branches.
    async fn read_all(&mut self) -> anyhow::Result<()> {
        let ctx = self.ctx.clone();
        for lsn in self.model.lsns() {
            self.read_range(Key::MIN, Key::MAX, lsn).await?;
        }
        for Branch { timeline, model, .. } in &self.branches {
            for lsn in model.lsns() {
                compare(timeline, model, Key::MIN..Key::MAX, lsn, &ctx, self.counts).await?;
            }
        }
        for (name, lsn) in &self.held {
            anyhow::ensure!(self.timeline.check_readable(*lsn).is_ok(), "{name} holds {lsn}, which is not readable");
        }
        Ok(())
    }

    async fn gc(&mut self) -> anyhow::Result<()> {
        let all: Vec<Timeline> =
            self.branches.iter().map(|branch| &branch.timeline).chain([&self.timeline]).cloned().collect();
        Timeline::prepare_garbage(&all).await?;
        let would = Timeline::collect_garbage(&all, true).await?;
        let done = Timeline::collect_garbage(&all, false).await?;
        self.counts.gcs += 1;
        for (would, report) in would.iter().zip(&done) {
            // A flush in the background may move the cutoff in between.
            anyhow::ensure!(would.cutoff <= report.cutoff, "the cutoff is another than was said");
            self.counts.removed += report.removed_layers as u64;
        }
        self.read_all().await
    }

    /// A readable LSN that is durable.
    async fn moment(&mut self, at: u8) -> anyhow::Result<Option<Lsn>> {
        self.timeline.flush(&self.ctx).await?;
        let lsn = self.lsn(at).min(self.timeline.last_record_lsn());
        Ok(self.timeline.check_readable(lsn).is_ok().then_some(lsn))
    }

    async fn hold(&mut self, at: u8) -> anyhow::Result<()> {
        let Some(lsn) = self.moment(at).await? else { return Ok(()) };
        self.counts.holds += 1;
        let name = format!("hold {}", self.counts.holds);
        self.timeline.hold(&name, lsn).await?;
        self.held.push((name, lsn));
        Ok(())
    }

    async fn limit(&mut self, bytes: u64) -> anyhow::Result<()> {
        self.counts.limits += 1;
        let of = |bytes: u64| Some(bytes).filter(|bytes| *bytes < 1500);
        let limits = Limits { gc_horizon: of(bytes), history_max_bytes: of(bytes * 2 % 2000), ..Limits::default() };
        Ok(self.timeline.set_limits(limits).await?)
    }

    /// But seldom: no history before is left then.
    async fn archive(&mut self, at: u8) -> anyhow::Result<()> {
        if at >= 64 {
            return Ok(());
        }
        self.counts.archived += 1;
        self.timeline.archive().await?;
        let (mut batch, mut other) = (SerializedValueBatch::default(), self.model.clone());
        put_record(&mut other, &mut batch, self.next, &[(6, 1)]);
        let refused = self.timeline.put_batch(batch, &self.ctx).await;
        anyhow::ensure!(matches!(refused, Err(StorageError::Invalid(_))), "{refused:?}");
        let end = self.timeline.last_record_lsn();
        self.compact().await?;
        self.gc().await?;
        let cutoff = self.timeline.window().cutoff;
        anyhow::ensure!(cutoff <= end && is_kept(&self.timeline, end), "{cutoff} is after the end, {end}");
        anyhow::ensure!(self.timeline.info().l0_layers == 0, "not everything is sorted");
        self.timeline.unarchive().await?;
        Ok(())
    }

    async fn branch(&mut self, at: u8) -> anyhow::Result<()> {
        let Some(lsn) = self.moment(at).await?.filter(|_| self.branches.len() < 3) else { return Ok(()) };
        let timeline = self.timeline.branch(TimelineId::generate(), lsn).await?;
        let mut model = self.model.clone();
        model.truncate(lsn);
        self.counts.branches += 1;
        self.branches.push(Branch { timeline, model, next: lsn + 8 });
        Ok(())
    }

    async fn detach(&mut self) -> anyhow::Result<()> {
        let attached = |branch: &&Branch| branch.timeline.info().ancestor_timeline_id.is_some();
        let Some(Branch { timeline, .. }) = self.branches.iter().find(attached) else { return Ok(()) };
        let all: Vec<Timeline> =
            self.branches.iter().map(|branch| &branch.timeline).chain([&self.timeline]).cloned().collect();
        timeline.prepare_detach().await?;
        anyhow::ensure!(timeline.decide_detach(&all).await?, "something that is inherited is not the branch's own");
        timeline.complete_detach().await?;
        anyhow::ensure!(timeline.info().ancestor_timeline_id.is_none());
        self.counts.detached += 1;
        self.read_all().await
    }

    async fn put_on_branch(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        let Some(Branch { timeline, model, next }) = self.branches.last_mut() else { return Ok(()) };
        let mut batch = SerializedValueBatch::default();
        put_record(model, &mut batch, *next, changes);
        timeline.put_batch(batch, &self.ctx).await?;
        timeline.finish_write(*next, *next - 8);
        *next += 64;
        Ok(())
    }

    async fn restart(mut self, conf: &'static engine::config::PageServerConf) -> anyhow::Result<Self> {
        for branch in &self.branches {
            branch.timeline.flush(&self.ctx).await?;
            branch.timeline.clone().shutdown().await;
        }
        let durable = self.timeline.disk_consistent_lsn();
        let info = self.timeline.info();
        self.timeline.shutdown().await;
        let found = (info.tenant_shard_id, info.timeline_id);
        if self.branches.is_empty() {
            anyhow::ensure!(find_single_timeline(conf).await? == found);
        }
        self.timeline = Timeline::open(conf, found.0, found.1, &self.ctx).await?;
        for branch in &mut self.branches {
            let id = branch.timeline.timeline_id();
            let manifest = Manifest::load(branch.timeline.dir(), found.0, id).await?;
            let ancestor = manifest.ancestor().map(|_| &self.timeline);
            branch.timeline = Timeline::open_on(conf, found.0, id, ancestor, &self.ctx).await?;
        }
        let last = self.timeline.last_record_lsn();
        // A background flush may have got further than was observed.
        anyhow::ensure!(durable <= last && last <= info.last_record_lsn, "{durable} <= {last}");
        self.model.truncate(last);
        self.next = last + 8;
        self.counts.restarts += 1;
        Ok(self)
    }

    async fn step(mut self, op: &Op, conf: &'static engine::config::PageServerConf) -> anyhow::Result<Self> {
        match op {
            Op::Put(records) => self.put(records).await?,
            Op::Skip => {
                self.timeline.finish_write(self.next, self.next - 8);
                self.next += 8;
            }
            Op::Flush => {
                self.timeline.flush(&self.ctx).await?;
                anyhow::ensure!(self.timeline.disk_consistent_lsn() == self.timeline.last_record_lsn());
                self.counts.flushes += 1;
            }
            Op::Compact => self.compact().await?,
            Op::Gc => self.gc().await?,
            Op::Hold(at) => self.hold(*at).await?,
            Op::Release if self.held.is_empty() => {}
            Op::Release => {
                let (name, _) = self.held.remove(0);
                anyhow::ensure!(self.timeline.release(&name).await?, "{name} is not there");
            }
            Op::Limit(bytes) => self.limit(*bytes).await?,
            Op::Archive(at) => self.archive(*at).await?,
            Op::Branch(at) => self.branch(*at).await?,
            Op::PutOnBranch(changes) => self.put_on_branch(changes).await?,
            Op::Detach => self.detach().await?,
            Op::Restart => return self.restart(conf).await,
            Op::ReadRange(from, to, at) => {
                let all = keys();
                let end = all.get(*to).copied().unwrap_or(Key::MAX);
                self.read_range(all[*from], end, self.lsn(*at)).await?;
            }
            Op::Read(key, at) => self.read(keys()[*key], self.lsn(*at)).await?,
        }
        Ok(self)
    }
}

/// Whether the timeline says that it keeps `lsn`.
fn is_kept(timeline: &Timeline, lsn: Lsn) -> bool {
    timeline.check_readable(lsn).is_ok()
}

/// Compares the values of all keys in `keys` as of `lsn` with the model; below the cutoff there must be none.
async fn compare(
    timeline: &Timeline,
    model: &Model,
    keys: Range<Key>,
    lsn: Lsn,
    ctx: &RequestContext,
    counts: &mut Counts,
) -> anyhow::Result<()> {
    let found = timeline.get_vectored(&KeySpace::single(keys.clone()), lsn, ctx).await;
    counts.reads += 1;
    let mut found = match found {
        Err(StorageError::Invalid(_)) if !is_kept(timeline, lsn) => {
            counts.refused += 1;
            return Ok(());
        }
        found => found?,
    };
    anyhow::ensure!(is_kept(timeline, lsn) || lsn < IMPORT_LSN, "values as of {lsn}, which is not kept");
    let mut expected = model.values(&keys, lsn);
    for key in model.unused(lsn) {
        // Nobody asks for it: what it has does not matter.
        let (was, is) = (expected.remove(&key), found.remove(&key));
        counts.unused += 1;
        counts.forgotten += u64::from(was.is_some() && is.is_none());
    }
    counts.values += found.len() as u64;
    anyhow::ensure!(found.keys().eq(expected.keys()), "{keys:?} at {lsn}: other keys than expected");
    for (key, value) in found {
        anyhow::ensure!(value? == expected[&key], "{key} at {lsn} differs in a vectored read");
    }
    Ok(())
}

/// Runs one case. A failed case leaves its directory and timeline behind: background writes must still find their
/// files.
async fn case(root: &Utf8Path, ops: &[Op], checkpoint_distance: u64, counts: &mut Counts) -> anyhow::Result<()> {
    let dir = tempdir_in(root)?.keep();
    let conf = Box::leak(Box::new(config(&dir, checkpoint_distance).clone()));
    conf.live_keys = Some(&ModelKeys);
    let (timeline, model) = import(conf, new_timeline()).await?;
    let (branches, held) = Default::default();
    let mut run = Run { timeline, model, next: IMPORT_LSN + 8, branches, held, ctx: context(), counts };
    for op in ops {
        run = run.step(op, conf).await?;
    }
    // Read everything, as of every LSN, before and after a last flush, compaction, removal of history and
    // restart.
    run.read_all().await?;
    run.timeline.flush(&run.ctx).await?;
    run.compact().await?;
    let info = run.timeline.info();
    anyhow::ensure!(info.l0_layers < conf.compaction.l0_layers, "{} L0 layers are left", info.l0_layers);
    anyhow::ensure!(info.replaced_layers == 0, "nobody reads, but {} replaced layers are left", info.replaced_layers);
    run.read_all().await?;
    run.gc().await?;
    let mut run = run.restart(conf).await?;
    run.read_all().await?;
    run.counts.layers += run.timeline.info().layers as u64;
    for branch in run.branches {
        branch.timeline.shutdown().await;
    }
    run.timeline.shutdown().await;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn check(engine: IoEngineKind, mode: IoMode) {
    let _process = PROCESS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    run_all(engine, mode).unwrap();
}

fn run_all(engine: IoEngineKind, mode: IoMode) -> Result<(), TestError<(Vec<Op>, u64)>> {
    virtual_file::init(1024, engine, mode, SyncMode::Sync);
    let root = tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let counts = Mutex::new(Counts::default());
    // Layers of a few values, and some larger than the buffers through which they are written.
    let distance = prop_oneof![1000u64..60_000, 200_000u64..800_000];
    let strategy = (prop::collection::vec(op(), 1..60), distance);
    let mut result = Ok(());
    // Not all that can happen happens in so few histories each time.
    for _ in 0..ROUNDS_MAX {
        // A runner that has run its cases runs no more.
        let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
        result = runner.run(&strategy, |(ops, checkpoint_distance)| {
            let mut counts = counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let outcome = runtime.block_on(case(root.path(), &ops, checkpoint_distance, &mut counts));
            outcome.map_err(|error| TestCaseError::fail(format!("{error:#}")))
        });
        let seen_all = counts.lock().map_or(true, |counts| counts.forgotten > 0);
        if result.is_err() || seen_all {
            break;
        }
    }
    // A case that panicked has poisoned it.
    let counts = counts.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    println!("{engine} {mode}: {CASES} histories at a time, {counts:?}");
    assert!(result.is_err() || counts.forgotten > 0, "pages that are not in use are kept");
    runtime.shutdown_timeout(Duration::from_secs(60));
    result
}

/// Shows that the model would notice bugs.
#[test]
fn planted_bugs_are_noticed() {
    const { assert!(fault::CAN_BE_PLANTED, "this build cannot have bugs: it needs debug assertions") };
    let _process = PROCESS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for bug in [Bug::ReadEndsEarly, Bug::DropLastOfBatch, Bug::SkipOneLsn] {
        fault::plant(&[bug]);
        let noticed = run_all(IoEngineKind::StdFs, IoMode::Buffered);
        fault::plant(&[]);
        println!("{bug:?} {}", if noticed.is_err() { "noticed" } else { "missed" });
        assert!(noticed.is_err(), "{bug:?} was missed");
    }
}

#[test]
fn std_fs_buffered() {
    check(IoEngineKind::StdFs, IoMode::Buffered);
}

#[test]
fn std_fs_direct() {
    check(IoEngineKind::StdFs, IoMode::Direct);
}

#[test]
fn std_fs_direct_rw() {
    check(IoEngineKind::StdFs, IoMode::DirectRw);
}

#[test]
fn uring_buffered() {
    check(IoEngineKind::TokioEpollUring, IoMode::Buffered);
}

#[test]
fn uring_direct() {
    check(IoEngineKind::TokioEpollUring, IoMode::Direct);
}

#[test]
fn uring_direct_rw() {
    check(IoEngineKind::TokioEpollUring, IoMode::DirectRw);
}
