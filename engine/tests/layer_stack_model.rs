//! Tests the whole layer stack against a map: random puts, flushes, restarts, and reads as of random LSNs, in all I/O
//! modes and with both I/O engines.

mod stack;

use std::sync::Mutex;
use std::time::Duration;

use camino::Utf8Path;
use camino_tempfile::{tempdir, tempdir_in};
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::find_single_timeline;
use engine::tenant::timeline::Timeline;
use errors::StorageError;
use fault::Bug;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::models::virtual_file::{IoEngineKind, IoMode};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use stack::{Change, IMPORT_LSN, Model, config, context, import, keys, new_timeline, put_record};
use utils::lsn::Lsn;
use virtual_file::{self, SyncMode};
use wal_decoder::serialized_batch::SerializedValueBatch;

const CASES: u32 = 24;

/// I/O engine and mode are process-wide: run one combination at a time.
static PROCESS: Mutex<()> = Mutex::new(());

#[derive(Clone, Debug)]
enum Op {
    /// A batch of records, each with its changes.
    Put(Vec<Vec<Change>>),
    /// Advances the LSN without any values.
    Skip,
    Flush,
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
    restarts: u64,
    reads: u64,
    values: u64,
    layers: u64,
}

fn op() -> impl Strategy<Value = Op> {
    let changes = prop::collection::vec((0..12usize, any::<u32>()), 1..4);
    prop_oneof![
        8 => prop::collection::vec(changes, 1..6).prop_map(Op::Put),
        1 => Just(Op::Skip),
        2 => Just(Op::Flush),
        1 => Just(Op::Restart),
        3 => (0..12usize, 0..13usize, any::<u8>()).prop_map(|(from, to, at)| Op::ReadRange(from, to, at)),
        3 => (0..12usize, any::<u8>()).prop_map(|(key, at)| Op::Read(key, at)),
    ]
}

struct Run<'c> {
    timeline: Timeline,
    model: Model,
    next: Lsn,
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
        match (found, self.model.value(&key, lsn)) {
            (Ok(found), Some(expected)) => anyhow::ensure!(found == expected, "{key} at {lsn} differs"),
            (Err(StorageError::MissingKey { .. }), None) => {}
            (found, expected) => anyhow::bail!("{key} at {lsn}: {found:?}, expected {:?}", expected.map(|v| v.len())),
        }
        Ok(())
    }

    async fn read_range(&mut self, from: Key, to: Key, lsn: Lsn) -> anyhow::Result<()> {
        let space = KeySpace::single(from..to);
        let found = self.timeline.get_vectored(&space, lsn, &self.reader()).await?;
        let expected = self.model.values(&(from..to.max(from)), lsn);
        self.counts.reads += 1;
        self.counts.values += found.len() as u64;
        anyhow::ensure!(found.keys().eq(expected.keys()), "{from}..{to} at {lsn}: other keys than expected");
        for (key, value) in found {
            anyhow::ensure!(value? == expected[&key], "{key} at {lsn} differs in a vectored read");
        }
        Ok(())
    }

    async fn restart(mut self, conf: &'static engine::config::PageServerConf) -> anyhow::Result<Self> {
        let durable = self.timeline.disk_consistent_lsn();
        let info = self.timeline.info();
        self.timeline.shutdown().await;
        let found = find_single_timeline(conf).await?;
        anyhow::ensure!(found == (info.tenant_shard_id, info.timeline_id));
        self.timeline = Timeline::open(conf, found.0, found.1, &self.ctx).await?;
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

/// Runs one case. A failed case leaves its directory and timeline behind: background writes must still find their
/// files.
async fn case(root: &Utf8Path, ops: &[Op], checkpoint_distance: u64, counts: &mut Counts) -> anyhow::Result<()> {
    let dir = tempdir_in(root)?.keep();
    let conf = config(&dir, checkpoint_distance);
    let (timeline, model) = import(conf, new_timeline()).await?;
    let mut run = Run { timeline, model, next: IMPORT_LSN + 8, ctx: context(), counts };
    for op in ops {
        run = run.step(op, conf).await?;
    }
    // Read everything, as of every LSN, before and after a last flush and restart.
    for lsn in run.model.lsns() {
        run.read_range(Key::MIN, Key::MAX, lsn).await?;
    }
    run.timeline.flush(&run.ctx).await?;
    let mut run = run.restart(conf).await?;
    for lsn in run.model.lsns() {
        run.read_range(Key::MIN, Key::MAX, lsn).await?;
    }
    run.counts.layers += run.timeline.info().layers as u64;
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
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    // Layers of a few values, and some larger than the buffers through which they are written.
    let distance = prop_oneof![1000u64..60_000, 200_000u64..800_000];
    let strategy = (prop::collection::vec(op(), 1..60), distance);
    let result = runner.run(&strategy, |(ops, checkpoint_distance)| {
        let mut counts = counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let outcome = runtime.block_on(case(root.path(), &ops, checkpoint_distance, &mut counts));
        outcome.map_err(|error| TestCaseError::fail(format!("{error:#}")))
    });
    // A case that panicked has poisoned it.
    let counts = counts.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    println!("{engine} {mode}: {CASES} histories, {counts:?}");
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
