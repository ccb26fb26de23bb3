//! A tenant whose servers come and go, over a faulty bucket, and a model of the expected state.

use std::time::Duration;

use camino::Utf8Path;
use camino_tempfile::{Utf8TempDir, tempdir};
use engine::config::{CompactionPolicy, PageServerConf, RetentionPolicy};
use engine::tenant::manager::{NewBranch, TenantManager};
use engine::tenant::timeline::{NewTimeline, Timeline};
use errors::StorageError;
use object_store::ObjectStoreExt;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use remote_storage::{RemoteOptions, RemotePath};
use utils::id::TimelineId;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::remote_support::{TestStore, test_store_with};
use crate::stack::{Model, context, import_with, new_timeline, put_record};

/// No request may take longer, whatever fails.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How often a start or an operation that fails because of a fault is attempted.
const TRIES: u32 = 6;

/// Counts of what happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub operations: u64,
    pub lost_disks: u64,
    pub takeovers: u64,
    pub fenced: u64,
    /// Starts and operations that had to be retried.
    pub repeated: u64,
    pub pages: u64,
    /// Jobs of compaction.
    pub compactions: u64,
    /// Layers removed as history that nothing keeps.
    pub removed: u64,
    /// Branches detached from the ancestor.
    pub detached: u64,
}

pub struct World {
    pub store: TestStore,
    dir: Utf8TempDir,
    /// Disks lost by servers; kept so that tasks that are still ending find their files.
    lost: Vec<Utf8TempDir>,
    pub manager: TenantManager,
    new: NewTimeline,
    model: Model,
    branch: Option<(TimelineId, Model)>,
    /// The highest LSN ever reported as safe in the bucket.
    reported: Lsn,
    pub counts: Counts,
}

fn config(workdir: &Utf8Path, store: &TestStore) -> &'static PageServerConf {
    let compaction = CompactionPolicy {
        l0_layers: 2,
        file_bytes: 20_000,
        height: 2,
        fold_percent: 10,
        thin_after: Duration::ZERO,
        spare_percent: 0,
        records: 3,
        l0_slow: 0,
        ..CompactionPolicy::ON
    };
    let retention = RetentionPolicy {
        pitr_interval: Duration::ZERO,
        gc_horizon: 64,
        quiet_after_attach: Duration::ZERO,
        ..RetentionPolicy::ON_REQUEST
    };
    let conf = PageServerConf {
        checkpoint_distance: 1 << 20,
        compaction,
        retention,
        remote_storage: Some(store.storage.clone()),
        ..PageServerConf::dummy_conf(workdir.to_owned())
    };
    Box::leak(Box::new(conf))
}

/// Retries what fails because of a fault.
macro_rules! insist {
    ($world:expr, $attempt:expr) => {{
        let mut tries = 0;
        loop {
            tries += 1;
            match $attempt {
                Ok(done) => break done,
                Err(error) if tries < TRIES => {
                    $world.counts.repeated += 1;
                    let _ = error;
                }
                Err(error) => panic!("after {tries} attempts: {error}"),
            }
        }
    }};
}

impl World {
    /// Creates a tenant with an import, fully uploaded.
    pub async fn new(options: RemoteOptions) -> Self {
        let (store, dir, new) = (test_store_with(options).await, tempdir().unwrap(), new_timeline());
        let conf = config(dir.path(), &store);
        let manager = TenantManager::load_idle(conf).await.unwrap();
        manager.create_tenant(new.tenant_shard_id).await.unwrap();
        let (timeline, model) = import_with(conf, new, manager.remote_of(new.tenant_shard_id)).await.unwrap();
        manager.add(timeline.clone()).await.unwrap();
        assert!(timeline.wait_uploaded(PATIENCE).await);
        let reported = timeline.remote_consistent_lsn().unwrap();
        Self { store, dir, lost: Vec::new(), manager, new, model, branch: None, reported, counts: Counts::default() }
    }

    fn timeline(&self) -> Timeline {
        self.manager.get(self.new.tenant_shard_id, self.new.timeline_id).unwrap()
    }

    /// Performs one operation, chosen by `chance`.
    pub async fn step(&mut self, chance: u64) {
        self.counts.operations += 1;
        if std::env::var("TEST_FAULT_LOG").is_ok() {
            let last = self.timeline().last_record_lsn();
            println!("{}: {}, last {last}, reported {}", self.counts.operations, chance % 24, self.reported);
        }
        match chance % 24 {
            0..=7 => self.put(chance >> 8).await,
            8 | 9 => self.put_on_branch(chance >> 8).await,
            10 | 11 => self.publish().await,
            12 => drop(self.timeline().flush(&context()).await),
            13 => self.toggle_branch().await,
            14 | 15 => self.read_cold().await,
            16 => self.restart(false).await,
            17 => self.restart(true).await,
            18 => self.take_over().await,
            20 | 21 => self.compact().await,
            22 | 23 => self.remove_history().await,
            19 => self.detach().await,
            _ => self.check().await,
        }
        self.note_reported();
    }

    /// Checks that the reported LSN never goes back. A new owner reports nothing until its own index part exists.
    fn note_reported(&mut self) {
        let Some(now) = self.timeline().remote_consistent_lsn() else { return };
        assert!(now >= self.reported, "{now} is reported, {} was", self.reported);
        self.reported = now;
    }

    async fn put(&mut self, chance: u64) {
        put(&self.timeline(), &mut self.model, chance).await;
    }

    async fn put_on_branch(&mut self, chance: u64) {
        let Some((id, mut model)) = self.branch.take() else { return };
        let timeline = self.manager.get(self.new.tenant_shard_id, id).unwrap();
        put(&timeline, &mut model, chance).await;
        timeline.flush(&context()).await.unwrap();
        self.branch = Some((id, model));
    }

    /// Waits until everything is in the bucket.
    pub async fn publish(&mut self) {
        let timeline = self.timeline();
        timeline.flush(&context()).await.unwrap();
        assert!(timeline.wait_uploaded(PATIENCE).await, "not uploaded in time");
        assert_eq!(timeline.remote_consistent_lsn(), Some(timeline.last_record_lsn()));
    }

    async fn toggle_branch(&mut self) {
        let tenant = self.new.tenant_shard_id;
        if let Some((id, _)) = self.branch.take() {
            insist!(self, self.manager.delete_timeline(tenant, id).await);
            return;
        }
        let (timeline_id, ancestor_id) = (TimelineId::generate(), self.new.timeline_id);
        // Branch from a durable state: anything above may be lost with the disk, while the branch is not.
        self.publish().await;
        let new = NewBranch { timeline_id, ancestor_id, lsn: None };
        let (branch, _) = insist!(self, self.manager.branch(tenant, new).await);
        assert!(branch.wait_uploaded(PATIENCE).await, "the branch is not uploaded in time");
        self.branch = Some((timeline_id, self.model.clone()));
    }

    /// Detaches the branch, if there is one: from then on it is read without its ancestor.
    async fn detach(&mut self) {
        let Some((id, _)) = self.branch else { return self.check().await };
        insist!(self, self.manager.detach_timeline(self.new.tenant_shard_id, id).await);
        self.counts.detached += 1;
        let branch = self.manager.get(self.new.tenant_shard_id, id).unwrap();
        assert_eq!(branch.info().ancestor_timeline_id, None);
        self.remove_history().await;
    }

    /// Sorts, merges and images what is due.
    async fn compact(&mut self) {
        for timeline in self.manager.all_timelines() {
            let done = insist!(self, timeline.compact().await);
            self.counts.compactions += done.sort.jobs + done.merge.jobs + done.image.jobs;
        }
        self.check().await;
    }

    /// Writes enough that layers are replaced, and removed, also in a run of few operations.
    pub async fn replace_layers(&mut self) {
        for round in 0..3 {
            for chance in 0..4 {
                self.put(round * 4 + chance).await;
                insist!(self, self.timeline().flush(&context()).await);
            }
            self.compact().await;
            self.remove_history().await;
        }
    }

    /// Removes history that nothing keeps.
    async fn remove_history(&mut self) {
        let reports = insist!(self, self.manager.collect_garbage(self.new.tenant_shard_id, false).await);
        self.counts.removed += reports.iter().map(|report| report.removed_layers as u64).sum::<u64>();
        for timeline in self.manager.all_timelines() {
            let _ = timeline.tend().await;
        }
        self.check().await;
    }

    /// Checks every page, read from the bucket wherever it has the layer.
    async fn read_cold(&mut self) {
        for timeline in self.manager.all_timelines() {
            for layer in timeline.layer_files() {
                if layer.is_remote() && layer.is_local() {
                    insist!(self, layer.evict().await);
                }
            }
        }
        self.check().await;
    }

    /// Checks every key of every timeline as of its end.
    pub async fn check(&mut self) {
        let timeline = self.timeline();
        let last = timeline.last_record_lsn();
        self.check_one(&timeline, &self.model.clone(), last).await;
        if let Some((id, model)) = self.branch.clone() {
            let branch = self.manager.get(self.new.tenant_shard_id, id).unwrap();
            self.check_one(&branch, &model, branch.last_record_lsn()).await;
        }
    }

    async fn check_one(&mut self, timeline: &Timeline, model: &Model, lsn: Lsn) {
        let everything = KeySpace::single(Key::MIN..Key::MAX);
        let found = insist!(self, timeline.get_vectored(&everything, lsn, &context()).await);
        let found: Vec<_> = found.into_iter().map(|(key, value)| (key, value.unwrap())).collect();
        let expected: Vec<_> = model.values(&(Key::MIN..Key::MAX), lsn).into_iter().collect();
        let wrong: Vec<_> = found.iter().zip(&expected).filter(|(found, expected)| found != expected).collect();
        assert!(
            found.len() == expected.len() && wrong.is_empty(),
            "operation {}: wrong values of {} at {lsn}: {} keys, {} expected; wrong: {:?}",
            self.counts.operations,
            timeline.timeline_id(),
            found.len(),
            expected.len(),
            wrong.iter().map(|(found, _)| found.0).collect::<Vec<_>>()
        );
        self.counts.pages += found.len() as u64;
    }

    /// Restarts the server, on its disk or on an empty one.
    pub async fn restart(&mut self, lose_disk: bool) {
        let durable = self.timeline().disk_consistent_lsn();
        self.manager.shutdown().await;
        if lose_disk {
            self.lost.push(std::mem::replace(&mut self.dir, tempdir().unwrap()));
            self.counts.lost_disks += 1;
        }
        self.start().await;
        let last = self.timeline().last_record_lsn();
        assert!(lose_disk || last >= durable, "{last} after a restart, {durable} was durable");
        self.after_start().await;
    }

    async fn start(&mut self) {
        let conf = config(self.dir.path(), &self.store);
        let mut tries = 0;
        loop {
            tries += 1;
            let why = match TenantManager::load_idle(conf).await {
                Ok(manager) => {
                    let broken = manager.broken();
                    let branch = self.branch.as_ref().map(|(id, _)| *id);
                    let wanted = [Some(self.new.timeline_id), branch];
                    let there = |id: &TimelineId| manager.get(self.new.tenant_shard_id, *id).is_ok();
                    if broken.is_empty() && wanted.iter().flatten().all(there) {
                        self.manager = manager;
                        return;
                    }
                    manager.shutdown().await;
                    format!("broken or missing: {broken:?}")
                }
                Err(error) => error.to_string(),
            };
            assert!(tries < TRIES, "no start after {tries} attempts: {why}");
            self.counts.repeated += 1;
        }
    }

    /// P2: what was reported as safe exists. The model forgets the rest, too.
    async fn after_start(&mut self) {
        let last = self.timeline().last_record_lsn();
        assert!(last >= self.reported, "{last} after a start, {} was reported", self.reported);
        self.model.truncate(last);
        if let Some((id, model)) = &mut self.branch {
            let branch = self.manager.get(self.new.tenant_shard_id, *id).unwrap();
            model.truncate(branch.last_record_lsn());
        }
        self.check().await;
        self.note_reported_after_start();
    }

    /// After a start, a server may report less than its index part says until it has checked the generation.
    fn note_reported_after_start(&mut self) {
        self.reported = self.reported.max(self.timeline().remote_consistent_lsn().unwrap_or(Lsn::INVALID));
    }

    /// P4: another server takes the tenant over while this one continues; this one can neither hide nor delete
    /// anything.
    async fn take_over(&mut self) {
        self.counts.takeovers += 1;
        let old_dir = std::mem::replace(&mut self.dir, tempdir().unwrap());
        let old = self.manager.clone();
        let was = old.get(self.new.tenant_shard_id, self.new.timeline_id).unwrap();
        self.start().await;
        let seen = self.timeline().last_record_lsn();
        assert!(seen >= self.reported);
        self.after_start().await;
        // It may or may not know by now that it was fenced.
        let _ = try_put(&was, &mut Model::default(), 3).await;
        let _ = was.flush(&context()).await;
        let _ = was.compact().await;
        let _ = old.collect_garbage(self.new.tenant_shard_id, false).await;
        let _ = was.tend().await;
        if let Some((id, _)) = &self.branch {
            let _ = old.delete_timeline(self.new.tenant_shard_id, *id).await;
        }
        was.wait_uploaded(Duration::from_millis(200)).await;
        let reported = was.remote_consistent_lsn().unwrap_or(Lsn::INVALID);
        assert!(reported <= seen, "a server that was taken over reports {reported}, its successor has seen {seen}");
        self.counts.fenced += u64::from(was.fenced().is_some());
        drop(was);
        old.shutdown().await;
        self.lost.push(old_dir);
        self.check().await;
        self.own_index_parts().await;
    }

    /// Waits until the server has index parts of its own generation. Until then the next owner would see what the
    /// previous one wrote last: in reality a part of the same WAL, but here it is made up.
    async fn own_index_parts(&self) {
        for timeline in self.manager.all_timelines() {
            let (tenant, id) = (timeline.tenant_shard_id(), timeline.timeline_id());
            let path = RemotePath::index_part(&tenant, &id, timeline.remote().unwrap().generation());
            let written = async {
                while self.store.truth.head(path.as_path()).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(PATIENCE, written).await.expect("an index part of its own");
        }
    }

    /// Publishes everything, loses the disk, and checks that everything is there.
    pub async fn end(mut self) -> (Counts, TestStore) {
        self.publish().await;
        self.note_reported();
        self.restart(true).await;
        assert_eq!(self.timeline().last_record_lsn(), self.reported);
        self.manager.shutdown().await;
        (self.counts, self.store)
    }
}

/// Appends some records to the timeline.
async fn put(timeline: &Timeline, model: &mut Model, chance: u64) {
    try_put(timeline, model, chance).await.unwrap();
}

async fn try_put(timeline: &Timeline, model: &mut Model, chance: u64) -> Result<(), StorageError> {
    for record in 0..3 + chance % 5 {
        let (mut batch, lsn) = (SerializedValueBatch::default(), timeline.last_record_lsn() + 8);
        let change = (record as usize * 5 + chance as usize % 12, (record * 31 + lsn.0 + chance) as u32);
        put_record(model, &mut batch, lsn, &[change]);
        timeline.put_batch(batch, &context()).await?;
        timeline.finish_write(lsn, lsn - 8);
    }
    Ok(())
}
