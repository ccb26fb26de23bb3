//! A timeline in a bucket: everything uploaded is available again on an empty disk.

use std::sync::Arc;
use std::time::Duration;

use crate::stack::{IMPORT_LSN, Model, context, import, import_with, new_timeline, put_record};
use camino::Utf8Path;
use camino_tempfile::{Utf8TempDir, tempdir};
use engine::config::{AttachOnStart, CompactionPolicy, PageServerConf};
use engine::tenant::manager::{NewBranch, TenantManager};
use engine::tenant::timeline::{NewTimeline, Timeline};
use object_store::memory::InMemory;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use remote_storage::{RemoteOptions, RemoteStorage};
use simulated::bucket::FaultyStore;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

pub const UPLOAD: Duration = Duration::from_secs(20);

fn bucket() -> RemoteStorage {
    RemoteStorage::with_store(Arc::new(InMemory::new()), "memory:")
}

fn config(workdir: &Utf8Path, bucket: &RemoteStorage) -> &'static PageServerConf {
    let conf = PageServerConf {
        checkpoint_distance: 1 << 20,
        remote_storage: Some(bucket.clone()),
        ..PageServerConf::dummy_conf(workdir.to_owned())
    };
    Box::leak(Box::new(conf))
}

pub async fn put(timeline: &Timeline, model: &mut Model, records: u32) {
    for record in 0..records {
        let (mut batch, lsn) = (SerializedValueBatch::default(), timeline.last_record_lsn() + 8);
        put_record(model, &mut batch, lsn, &[(record as usize * 5, record * 31 + lsn.0 as u32)]);
        timeline.put_batch(batch, &context()).await.unwrap();
        timeline.finish_write(lsn, lsn - 8);
    }
}

pub async fn check(timeline: &Timeline, model: &Model, lsn: Lsn) {
    let found = timeline.get_vectored(&KeySpace::single(Key::MIN..Key::MAX), lsn, &context()).await.unwrap();
    let found: Vec<_> = found.into_iter().map(|(key, value)| (key, value.unwrap())).collect();
    let expected: Vec<_> = model.values(&(Key::MIN..Key::MAX), lsn).into_iter().collect();
    assert!(found == expected, "{} keys found, {} expected", found.len(), expected.len());
}

pub struct World {
    dir: Utf8TempDir,
    bucket: RemoteStorage,
    pub manager: TenantManager,
    pub new: NewTimeline,
    pub model: Model,
}

impl World {
    async fn new() -> Self {
        Self::on(bucket()).await
    }

    pub async fn on(bucket: RemoteStorage) -> Self {
        let (dir, new) = (tempdir().unwrap(), new_timeline());
        let conf = config(dir.path(), &bucket);
        let manager = TenantManager::load_idle(conf).await.unwrap();
        manager.create_tenant(new.tenant_shard_id).await.unwrap();
        let (timeline, model) = import_with(conf, new, manager.remote_of(new.tenant_shard_id)).await.unwrap();
        manager.add(timeline).await.unwrap();
        Self { dir, bucket, manager, new, model }
    }

    pub fn timeline(&self) -> Timeline {
        self.manager.get(self.new.tenant_shard_id, self.new.timeline_id).unwrap()
    }

    pub async fn flush(&self) {
        self.timeline().flush(&context()).await.unwrap();
        assert!(self.timeline().wait_uploaded(UPLOAD).await);
    }

    /// Its settings, with this policy.
    pub fn config_with(&self, compaction: CompactionPolicy) -> &'static PageServerConf {
        let conf = PageServerConf { compaction, ..config(self.dir.path(), &self.bucket).clone() };
        Box::leak(Box::new(conf))
    }

    /// Another server on the same bucket, with a disk of its own, which attaches nothing by itself.
    async fn another_server(&self) -> (TenantManager, Utf8TempDir) {
        let dir = tempdir().unwrap();
        let attach_on_start = AttachOnStart::Local;
        let conf = PageServerConf { attach_on_start, ..config(dir.path(), &self.bucket).clone() };
        (TenantManager::load_idle(Box::leak(Box::new(conf))).await.unwrap(), dir)
    }

    /// Restarts on the same disk, or on an empty one.
    pub async fn restart(&mut self, empty: bool) {
        self.manager.shutdown().await;
        if empty {
            self.dir = tempdir().unwrap();
        }
        self.manager = TenantManager::load_idle(config(self.dir.path(), &self.bucket)).await.unwrap();
        assert_eq!(self.manager.broken(), []);
    }
}

#[tokio::test]
async fn an_empty_disk_has_all_of_it_again() {
    let mut world = World::new().await;
    for empty in [true, false, true, true] {
        let (timeline, mut model) = (world.timeline(), world.model.clone());
        for _ in 0..3 {
            put(&timeline, &mut model, 10).await;
            world.flush().await;
        }
        world.model = model;
        let last = timeline.last_record_lsn();
        assert_eq!(timeline.remote_consistent_lsn(), Some(last));
        assert_eq!(timeline.durable_lsn(), last);
        drop(timeline);
        world.restart(empty).await;
        let timeline = world.timeline();
        assert!(timeline.wait_uploaded(UPLOAD).await);
        assert_eq!((timeline.last_record_lsn(), timeline.remote_consistent_lsn()), (last, Some(last)));
        check(&timeline, &world.model, last).await;
    }
    let generation = world.manager.remote_of(world.new.tenant_shard_id).unwrap().generation();
    assert_eq!(generation, 5);
    world.manager.shutdown().await;
}

#[tokio::test]
async fn branches_come_back_with_what_they_continue() {
    let mut world = World::new().await;
    let (tenant, mut model) = (world.new.tenant_shard_id, world.model.clone());
    put(&world.timeline(), &mut model, 10).await;
    let id = TimelineId::generate();
    let new = NewBranch { timeline_id: id, ancestor_id: world.new.timeline_id, lsn: None };
    let (branch, _) = world.manager.branch(tenant, new).await.unwrap();
    let mut of_branch = model.clone();
    put(&branch, &mut of_branch, 10).await;
    branch.flush(&context()).await.unwrap();
    put(&world.timeline(), &mut model, 7).await;
    world.flush().await;
    assert!(branch.wait_uploaded(UPLOAD).await);
    let lsns = (world.timeline().last_record_lsn(), branch.last_record_lsn());
    assert_eq!(branch.remote_consistent_lsn(), Some(lsns.1));
    drop(branch);
    world.restart(true).await;
    check(&world.timeline(), &model, lsns.0).await;
    let branch = world.manager.get(tenant, id).unwrap();
    check(&branch, &of_branch, lsns.1).await;
    drop(branch);
    world.manager.delete_timeline(tenant, id).await.unwrap();
    world.restart(true).await;
    assert_eq!(world.manager.timelines(tenant).unwrap().len(), 1);
    world.manager.delete_tenant(tenant).await.unwrap();
    world.restart(true).await;
    assert_eq!(world.manager.tenants(), []);
    world.manager.shutdown().await;
}

#[tokio::test]
async fn a_store_of_before_is_taken_into_the_bucket() {
    let (dir, bucket, new) = (tempdir().unwrap(), bucket(), new_timeline());
    let local = crate::stack::config(dir.path(), 1 << 20);
    let (timeline, mut model) = import(local, new).await.unwrap();
    put(&timeline, &mut model, 20).await;
    timeline.flush(&context()).await.unwrap();
    let last = timeline.last_record_lsn();
    assert!(last > IMPORT_LSN && timeline.remote_consistent_lsn().is_none());
    timeline.shutdown().await;
    for dir in [&dir, &tempdir().unwrap()] {
        let manager = TenantManager::load_idle(config(dir.path(), &bucket)).await.unwrap();
        assert_eq!(manager.broken(), []);
        let timeline = manager.get(new.tenant_shard_id, new.timeline_id).unwrap();
        check(&timeline, &model, last).await;
        assert!(timeline.wait_uploaded(UPLOAD).await);
        assert_eq!(timeline.remote_consistent_lsn(), Some(last));
        drop(timeline);
        manager.shutdown().await;
    }
    // With a different bucket nothing is invented, and nothing is removed.
    let manager = TenantManager::load_idle(config(dir.path(), &self::bucket())).await.unwrap();
    let broken = manager.broken();
    assert!(broken.len() == 1 && broken[0].2.contains("another bucket"), "{broken:?}");
    manager.shutdown().await;
    let manager = TenantManager::load_idle(config(dir.path(), &bucket)).await.unwrap();
    check(&manager.get(new.tenant_shard_id, new.timeline_id).unwrap(), &model, last).await;
    manager.shutdown().await;
}

#[tokio::test]
async fn a_tenant_moves_from_server_to_server() {
    let mut world = World::new().await;
    let tenant = world.new.tenant_shard_id;
    let (mut other, _other_dir) = world.another_server().await;
    for _ in 0..4 {
        let (timeline, mut model) = (world.timeline(), world.model.clone());
        put(&timeline, &mut model, 10).await;
        let last = timeline.last_record_lsn();
        drop(timeline);
        world.manager.detach_tenant(tenant).await.unwrap();
        assert!(world.manager.timelines(tenant).is_err());
        other.attach_tenant(tenant).await.unwrap();
        (world.manager, other) = (other, world.manager);
        world.model = model;
        check(&world.timeline(), &world.model, last).await;
    }
    world.manager.shutdown().await;
    other.shutdown().await;
}

/// Found by the simulation: who still had the tenant of a former generation took it for attached.
#[tokio::test]
async fn who_does_not_know_that_the_tenant_is_lost_takes_it_back() {
    let mut world = World::new().await;
    let tenant = world.new.tenant_shard_id;
    let (mut other, _other_dir) = world.another_server().await;
    let generation = |manager: &TenantManager| manager.remote_of(tenant).unwrap().generation();
    for _ in 0..3 {
        world.flush().await;
        other.attach_tenant(tenant).await.unwrap();
        (world.manager, other) = (other, world.manager);
        assert!(world.manager.remote_of(tenant).unwrap().fenced().is_none());
        assert!(generation(&world.manager) > generation(&other));
        let (timeline, mut model) = (world.timeline(), world.model.clone());
        put(&timeline, &mut model, 10).await;
        check(&timeline, &model, timeline.last_record_lsn()).await;
        world.model = model;
    }
    let held = generation(&world.manager);
    world.manager.attach_tenant(tenant).await.unwrap();
    assert_eq!(generation(&world.manager), held, "who has it keeps it");
    world.manager.shutdown().await;
    other.shutdown().await;
}

/// Found by the simulation: nobody read the damaged file, and compaction failed again and again.
#[tokio::test]
async fn compaction_reads_from_the_bucket_what_is_damaged_here() {
    let mut world = World::new().await;
    let (timeline, mut model) = (world.timeline(), world.model.clone());
    for _ in 0..4 {
        put(&timeline, &mut model, 10).await;
        world.flush().await;
    }
    drop(timeline);
    world.manager.shutdown().await;
    let compaction = CompactionPolicy { l0_layers: 2, ..CompactionPolicy::ON };
    world.manager = TenantManager::load_idle(world.config_with(compaction)).await.unwrap();
    let timeline = world.timeline();
    assert_eq!(timeline.info().l0_layers, 4);
    let damaged: Vec<_> = timeline.layer_files().into_iter().filter(|layer| layer.desc().is_delta).take(2).collect();
    for layer in &damaged {
        let mut bytes = std::fs::read(layer.path()).unwrap();
        bytes.chunks_mut(4096).for_each(|block| block[100] ^= 1);
        std::fs::write(layer.path(), bytes).unwrap();
    }
    timeline.compact().await.unwrap();
    assert_eq!(timeline.info().l0_layers, 0);
    for lsn in model.lsns() {
        check(&timeline, &model, lsn).await;
    }
    drop(timeline);
    world.manager.shutdown().await;
}

/// Found by the simulation: nothing was uploaded any more.
#[tokio::test]
async fn a_deletion_that_cannot_begin_leaves_the_timeline_as_it_was() {
    let faults = FaultyStore::new(Arc::new(InMemory::new()));
    let options = RemoteOptions { retry_deadline: Duration::from_millis(200), ..RemoteOptions::default() };
    let world = World::on(RemoteStorage::with_options(faults.clone(), "memory:", options)).await;
    world.flush().await;
    let (tenant, timeline, mut model) = (world.new.tenant_shard_id, world.timeline(), world.model.clone());
    faults.set_gone(true);
    world.manager.delete_timeline(tenant, world.new.timeline_id).await.unwrap_err();
    faults.set_gone(false);
    put(&timeline, &mut model, 10).await;
    world.flush().await;
    assert_eq!(timeline.remote_consistent_lsn(), Some(timeline.last_record_lsn()));
    check(&timeline, &model, timeline.last_record_lsn()).await;
    drop(timeline);
    world.manager.delete_timeline(tenant, world.new.timeline_id).await.unwrap();
    assert!(world.manager.get(tenant, world.new.timeline_id).is_err());
    world.manager.shutdown().await;
}
