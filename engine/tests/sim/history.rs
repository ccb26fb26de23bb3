//! A scripted run of a timeline on a simulated disk, and what it must have left behind at each moment.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::{Context, ensure};
use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use engine::config::PageServerConf;
use engine::context::RequestContext;
use engine::tenant::timeline::{NewTimeline, Timeline};
use errors::{ErrorKind, StorageError};
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::value::Value;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use super::disk::{Entry, SimDisk};
use super::random::Random;
use crate::stack::{Change, IMPORT_LSN, Model, config, context, import, keys, new_timeline, put_record};

/// The parameters of a script.
#[derive(Clone, Debug)]
pub struct Script {
    pub root: Utf8PathBuf,
    pub seed: u64,
    pub ops: usize,
    /// Size in bytes at which an in-memory layer is frozen.
    pub checkpoint_distance: u64,
    /// Whether the timeline is sometimes closed and reopened.
    pub restarts: bool,
    /// Whether calls that fail with a retryable error are repeated.
    pub retries: bool,
}

/// Counts of operations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ops {
    pub puts: u64,
    pub values: u64,
    pub flushes: u64,
    pub compactions: u64,
    pub sorts: u64,
    pub merges: u64,
    pub images: u64,
    pub folds: u64,
    pub trims: u64,
    pub gcs: u64,
    pub removed: u64,
    pub holds: u64,
    pub restarts: u64,
    pub reads: u64,
    pub retries: u64,
}

/// A timeline that is running a script.
pub struct Run {
    pub disk: SimDisk,
    pub conf: &'static PageServerConf,
    pub new: NewTimeline,
    pub timeline: Timeline,
    pub model: Model,
    pub ops: Ops,
    script: Script,
    next: Lsn,
    /// LSNs with a hold.
    held: Vec<Lsn>,
    random: Random,
    ctx: RequestContext,
}

/// What a run did, and what must be found after a crash during it.
pub struct History {
    pub script: Script,
    pub conf: &'static PageServerConf,
    pub new: NewTimeline,
    pub journal: Vec<Entry>,
    pub ops: Ops,
    /// The end of the history.
    pub last: Lsn,
    /// The LSN that was finally promised to be durable.
    pub promised: Lsn,
    pub lsns: Vec<Lsn>,
    model: Model,
    expected: RefCell<HashMap<Lsn, Arc<BTreeMap<Key, Bytes>>>>,
}

impl Run {
    /// Creates a timeline on `disk`, which must be mounted.
    pub async fn start(disk: &SimDisk, script: &Script) -> anyhow::Result<Self> {
        env::random::seed_thread(Some(script.seed));
        let conf = config(&script.root, script.checkpoint_distance);
        let new = new_timeline();
        let (timeline, model) = import(conf, new).await?;
        let random = Random::new(script.seed);
        let (script, next, ops) = (script.clone(), IMPORT_LSN + 8, Ops::default());
        let (disk, ctx) = (disk.clone(), context());
        let held = Vec::new();
        let run = Self { disk, conf, new, timeline, model, ops, script, next, held, random, ctx };
        run.report_progress();
        Ok(run)
    }

    fn report_progress(&self) {
        let timeline = self.timeline.clone();
        self.disk.report(Some(Arc::new(move || timeline.disk_consistent_lsn())));
    }

    /// Runs the whole script.
    pub async fn work(&mut self) -> anyhow::Result<()> {
        for number in 0..self.script.ops {
            self.step().await.with_context(|| format!("op {number}"))?;
        }
        self.flush().await.context("last flush")
    }

    async fn step(&mut self) -> anyhow::Result<()> {
        match self.random.below(23) {
            0..=12 => self.put().await,
            13 => {
                self.timeline.finish_write(self.next, self.next - 8);
                self.next += 8;
                if self.random.coin() { self.flush().await } else { Ok(()) }
            }
            14..=16 => self.flush().await,
            17 if self.script.restarts => self.restart().await,
            18 | 19 => self.compact().await,
            20 => self.gc().await,
            21 => self.hold().await,
            _ => self.check_reads().await,
        }
    }

    fn change(&mut self) -> Change {
        (self.random.below(12) as usize, self.random.next() as u32)
    }

    async fn put(&mut self) -> anyhow::Result<()> {
        let mut batch = SerializedValueBatch::default();
        let mut prev = self.timeline.record_lsn().prev;
        for _ in 0..1 + self.random.below(5) {
            let changes: Vec<Change> = (0..1 + self.random.below(3)).map(|_| self.change()).collect();
            put_record(&mut self.model, &mut batch, self.next, &changes);
            prev = self.next - 8;
            self.next += 8 + self.random.below(8) * 8;
        }
        let last = batch.max_lsn();
        self.put_batch(batch).await?;
        if self.random.below(4) == 0 {
            // Change a key again at an LSN at which it has already changed: the later value counts.
            let key = 6 + self.random.below(6) as usize;
            for _ in 0..2 {
                let mut again = SerializedValueBatch::default();
                let change = (key, self.random.next() as u32);
                put_record(&mut self.model, &mut again, last, &[change]);
                self.put_batch(again).await?;
            }
        }
        self.timeline.finish_write(last, prev);
        self.ops.puts += 1;
        Ok(())
    }

    /// Puts one image of `len` bytes, which becomes part of the history if it is accepted.
    pub async fn put_image(&mut self, len: usize) -> Result<(), StorageError> {
        let (key, value) = (keys()[8], Value::Image(Bytes::from(self.random.bytes(len))));
        let mut batch = SerializedValueBatch::default();
        batch.put_key(&key, self.next, &value).expect("an image can be serialized");
        self.timeline.put_batch(batch, &self.ctx).await?;
        self.timeline.finish_write(self.next, self.next - 8);
        self.model.put(key, self.next, value);
        self.next += 8;
        Ok(())
    }

    async fn put_batch(&mut self, batch: SerializedValueBatch) -> anyhow::Result<()> {
        self.ops.values += batch.len() as u64;
        loop {
            let result = self.timeline.put_batch(batch.clone(), &self.ctx).await;
            if !self.is_to_be_retried(result)? {
                return Ok(());
            }
            self.check_reads().await.context("after a refused put")?;
        }
    }

    pub async fn flush(&mut self) -> anyhow::Result<()> {
        self.ops.flushes += 1;
        loop {
            let result = self.timeline.flush(&self.ctx).await;
            if !self.is_to_be_retried(result)? {
                let (durable, last) = (self.timeline.disk_consistent_lsn(), self.timeline.last_record_lsn());
                ensure!(durable == last, "flushed up to {durable}, not {last}");
                return Ok(());
            }
            self.check_reads().await.context("after a refused flush")?;
        }
    }

    async fn compact(&mut self) -> anyhow::Result<()> {
        self.ops.compactions += 1;
        // Somebody who still reads what is replaced, and opens it late.
        let held = self.timeline.layer_files();
        self.run_compaction().await?;
        for layer in &held {
            layer.verify_local().await.with_context(|| format!("{} is held, and may be read", layer.path()))?;
        }
        Ok(())
    }

    async fn gc(&mut self) -> anyhow::Result<()> {
        let timelines = [self.timeline.clone()];
        let done = Timeline::collect_garbage(&timelines, false).await.map(|reports| {
            self.ops.gcs += 1;
            self.ops.removed += reports.iter().map(|report| report.removed_layers as u64).sum::<u64>();
        });
        // The next time tries again.
        self.is_to_be_retried(done)?;
        for lsn in &self.held {
            ensure!(self.timeline.check_readable(*lsn).is_ok(), "{lsn} is held, and not readable");
        }
        self.check_reads().await
    }

    /// Holds some LSN, or ends the oldest hold.
    async fn hold(&mut self) -> anyhow::Result<()> {
        if self.held.len() > 3 {
            let released = self.timeline.release(&format!("hold {}", self.held.remove(0))).await.map(drop);
            return self.is_to_be_retried(released).map(drop);
        }
        let lsn = IMPORT_LSN + self.random.below(self.timeline.disk_consistent_lsn().0 - IMPORT_LSN.0 + 1);
        if self.timeline.check_readable(lsn).is_err() || self.held.contains(&lsn) {
            return Ok(());
        }
        self.ops.holds += 1;
        let held = self.timeline.hold(&format!("hold {lsn}"), lsn).await;
        if !self.is_to_be_retried(held)? {
            self.held.push(lsn);
        }
        Ok(())
    }

    async fn run_compaction(&mut self) -> anyhow::Result<()> {
        loop {
            let done = self.timeline.compact().await;
            if let Ok(done) = &done {
                self.ops.sorts += done.sort.jobs;
                self.ops.merges += done.merge.jobs;
                self.ops.images += done.image.jobs;
                self.ops.folds += done.fold.jobs;
                self.ops.trims += done.trim.jobs;
            }
            if !self.is_to_be_retried(done.map(drop))? {
                return Ok(());
            }
            self.check_reads().await.context("after a refused compaction")?;
        }
    }

    /// Checks after a permanent error that neither values nor flushes are accepted any more.
    pub async fn try_again(&mut self) -> anyhow::Result<()> {
        let put = self.put().await;
        ensure!(put.is_err(), "values are taken in although a sync has failed");
        let flush = self.timeline.flush(&self.ctx).await;
        ensure!(flush.is_err_and(|error| error.kind() == ErrorKind::Internal), "a flush goes on after a failed sync");
        Ok(())
    }

    fn is_to_be_retried(&mut self, result: Result<(), StorageError>) -> anyhow::Result<bool> {
        match result {
            Ok(()) => Ok(false),
            Err(error) if self.script.retries && error.kind() == ErrorKind::Retry => {
                self.ops.retries += 1;
                ensure!(self.ops.retries < 100, "still refused: {error}");
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Compares some of the timeline's history with the model.
    async fn check_reads(&mut self) -> anyhow::Result<()> {
        let last = self.timeline.last_record_lsn();
        let span = last.0 - IMPORT_LSN.0 + 1;
        let any = IMPORT_LSN + self.random.below(span);
        let held = self.held.get(self.random.below(4) as usize).copied().unwrap_or(any);
        for lsn in [last, any, held] {
            self.ops.reads += 1;
            compare(&self.timeline, lsn, &self.model.values(&(Key::MIN..Key::MAX), lsn), &self.ctx).await?;
        }
        let key = keys()[self.random.below(12) as usize];
        match (self.timeline.get(key, last, &self.ctx).await, self.model.value(&key, last)) {
            (Ok(found), Some(expected)) => ensure!(found == expected, "{key} at {last} differs"),
            (Err(StorageError::MissingKey { .. }), None) => {}
            (found, expected) => anyhow::bail!("{key} at {last}: {found:?}, expected {expected:?}"),
        }
        Ok(())
    }

    async fn restart(&mut self) -> anyhow::Result<()> {
        self.ops.restarts += 1;
        let promised = self.timeline.disk_consistent_lsn();
        self.disk.report(Some(Arc::new(move || promised)));
        self.timeline.clone().shutdown().await;
        let NewTimeline { tenant_shard_id, timeline_id, .. } = self.new;
        self.timeline = Timeline::open(self.conf, tenant_shard_id, timeline_id, &self.ctx).await?;
        let last = self.timeline.last_record_lsn();
        ensure!(promised <= last, "{promised} was promised, history ends at {last}");
        self.report_progress();
        self.model.truncate(last);
        self.next = last + 8;
        Ok(())
    }

    /// Compares the timeline's values as of every LSN with the model.
    pub async fn check_all_reads(&self) -> anyhow::Result<()> {
        for lsn in self.model.lsns().into_iter().filter(|lsn| *lsn <= self.timeline.last_record_lsn()) {
            compare(&self.timeline, lsn, &self.model.values(&(Key::MIN..Key::MAX), lsn), &self.ctx).await?;
        }
        Ok(())
    }

    /// Ends the run and closes the timeline.
    pub async fn finish(self) -> History {
        let Self { disk, conf, new, timeline, model, ops, script, .. } = self;
        let (last, promised) = (timeline.last_record_lsn(), timeline.disk_consistent_lsn());
        disk.report(None);
        timeline.shutdown().await;
        let (journal, lsns) = (disk.take_journal(), model.lsns());
        History { script, conf, new, journal, ops, last, promised, lsns, model, expected: RefCell::default() }
    }
}

/// Compares all values as of `lsn` with those expected. If it is no longer readable, there must be none.
pub async fn compare(
    timeline: &Timeline,
    lsn: Lsn,
    expected: &BTreeMap<Key, Bytes>,
    ctx: &RequestContext,
) -> anyhow::Result<()> {
    let found = timeline.get_vectored(&KeySpace::single(Key::MIN..Key::MAX), lsn, ctx).await;
    if timeline.check_readable(lsn).is_err() && lsn >= IMPORT_LSN {
        let refused = found.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid);
        ensure!(refused, "{lsn} is not readable, but read");
        return Ok(());
    }
    let found = found?;
    ensure!(found.keys().eq(expected.keys()), "other keys than expected at {lsn}");
    for (key, value) in found {
        ensure!(value? == expected[&key], "{key} at {lsn} differs");
    }
    Ok(())
}

impl History {
    /// Runs the script once, without faults.
    pub fn record(script: Script) -> anyhow::Result<Self> {
        let disk = SimDisk::new(&script.root);
        let _mounted = disk.mount();
        super::block_on(async {
            let mut run = Run::start(&disk, &script).await.context("import")?;
            run.work().await.inspect_err(|_| disk.report(None))?;
            Ok(run.finish().await)
        })
    }

    /// All values as of `lsn`.
    pub fn expected(&self, lsn: Lsn) -> Arc<BTreeMap<Key, Bytes>> {
        let compute = || Arc::new(self.model.values(&(Key::MIN..Key::MAX), lsn));
        Arc::clone(self.expected.borrow_mut().entry(lsn).or_insert_with(compute))
    }

    /// The timeline's directory.
    pub fn dir(&self) -> Utf8PathBuf {
        self.conf.timeline_path(&self.new.tenant_shard_id, &self.new.timeline_id)
    }
}

/// A root that no other concurrent scenario of this process uses, provided that names are unique.
pub fn root(name: &str) -> Utf8PathBuf {
    Utf8Path::new("/simulated").join(name)
}
