//! A branch in a bucket that is detached from its ancestor: it is so for every later owner before anything of the
//! ancestor goes, and reads go on meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::stack::{IMPORT_LSN, Model, context, import_with, keys, new_timeline, put_record};
use camino::Utf8Path;
use camino_tempfile::{Utf8TempDir, tempdir};
use engine::config::{CompactionPolicy, PageServerConf, RetentionPolicy};
use engine::tenant::manager::{ManageError, NewBranch, TenantManager};
use engine::tenant::scrub::{Options, Progress, Subject, scrub};
use engine::tenant::timeline::{NewTimeline, Timeline};
use object_store::memory::InMemory;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use remote_storage::{RemotePath, RemoteStorage};
use utils::id::TimelineId;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

const UPLOAD: Duration = Duration::from_secs(60);

fn config(workdir: &Utf8Path, bucket: &RemoteStorage) -> &'static PageServerConf {
    let retention = RetentionPolicy {
        pitr_interval: Duration::ZERO,
        gc_horizon: 64,
        quiet_after_attach: Duration::ZERO,
        ..RetentionPolicy::ON_REQUEST
    };
    let conf = PageServerConf {
        checkpoint_distance: 1 << 20,
        compaction: CompactionPolicy { l0_layers: 2, file_bytes: 20_000, l0_slow: 0, ..CompactionPolicy::ON },
        retention,
        remote_storage: Some(bucket.clone()),
        ..PageServerConf::dummy_conf(workdir.to_owned())
    };
    Box::leak(Box::new(conf))
}

async fn put(timeline: &Timeline, model: &mut Model, records: u32) {
    for record in 0..records {
        let (mut batch, lsn) = (SerializedValueBatch::default(), timeline.last_record_lsn() + 8);
        put_record(model, &mut batch, lsn, &[(record as usize * 5, record * 31 + lsn.0 as u32)]);
        timeline.put_batch(batch, &context()).await.unwrap();
        timeline.finish_write(lsn, lsn - 8);
    }
    timeline.flush(&context()).await.unwrap();
    assert!(timeline.wait_uploaded(UPLOAD).await);
}

async fn check(timeline: &Timeline, model: &Model, lsn: Lsn) {
    let found = timeline.get_vectored(&KeySpace::single(Key::MIN..Key::MAX), lsn, &context()).await.unwrap();
    let found: Vec<_> = found.into_iter().map(|(key, value)| (key, value.unwrap())).collect();
    let expected: Vec<_> = model.values(&(Key::MIN..Key::MAX), lsn).into_iter().collect();
    assert!(found == expected, "{} keys found, {} expected at {lsn}", found.len(), expected.len());
}

/// A tenant with a timeline and a branch of it.
struct World {
    dir: Utf8TempDir,
    bucket: RemoteStorage,
    manager: TenantManager,
    new: NewTimeline,
    branch: TimelineId,
    model: Model,
    /// Where the branch begins.
    point: Lsn,
}

impl World {
    async fn new() -> Self {
        let (dir, new) = (tempdir().unwrap(), new_timeline());
        let bucket = RemoteStorage::with_store(Arc::new(InMemory::new()), "memory:");
        let conf = config(dir.path(), &bucket);
        let manager = TenantManager::load_idle(conf).await.unwrap();
        let tenant = new.tenant_shard_id;
        manager.create_tenant(tenant).await.unwrap();
        let (main, mut model) = import_with(conf, new, manager.remote_of(tenant)).await.unwrap();
        manager.add(main.clone()).await.unwrap();
        put(&main, &mut model, 30).await;
        main.compact().await.unwrap();
        put(&main, &mut model, 30).await;
        let branch = NewBranch { timeline_id: TimelineId::generate(), ancestor_id: new.timeline_id, lsn: None };
        let (timeline, _) = manager.branch(tenant, branch).await.unwrap();
        let (mut other, point) = (model.clone(), timeline.last_record_lsn());
        put(&timeline, &mut model, 30).await;
        put(&main, &mut other, 30).await;
        Self { dir, bucket, manager, new, branch: branch.timeline_id, model, point }
    }

    fn branch(&self) -> Timeline {
        self.manager.get(self.new.tenant_shard_id, self.branch).unwrap()
    }

    async fn detach(&self) {
        self.manager.detach_timeline(self.new.tenant_shard_id, self.branch).await.unwrap();
    }

    async fn check(&self) {
        let branch = self.branch();
        for lsn in (self.point.0..=branch.last_record_lsn().0).step_by(8) {
            check(&branch, &self.model, Lsn(lsn)).await;
        }
    }

    /// Checks that the branch is detached, and nothing before its beginning can be read.
    async fn check_detached(&self) {
        self.check().await;
        let branch = self.branch();
        assert_eq!(branch.info().ancestor_timeline_id, None);
        assert_eq!((branch.min_readable_lsn(), branch.info().detached_lsn), (self.point, Some(self.point)));
        let refused = branch.check_readable(self.point - 1).unwrap_err().to_string();
        assert!(refused.contains("detached") && refused.contains(&self.point.to_string()), "{refused}");
        let all = KeySpace::single(Key::MIN..Key::MAX);
        let read = branch.get_vectored(&all, self.point - 1, &context()).await.unwrap_err().to_string();
        assert_eq!(read, refused);
    }

    async fn delete_ancestor(&self) {
        self.manager.delete_timeline(self.new.tenant_shard_id, self.new.timeline_id).await.unwrap();
    }

    async fn restart(&mut self, empty: bool) {
        self.manager.shutdown().await;
        if empty {
            self.dir = tempdir().unwrap();
        }
        self.manager = TenantManager::load_idle(config(self.dir.path(), &self.bucket)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ancestor_goes_and_the_branch_stays() {
    let mut world = World::new().await;
    let (tenant, ancestor) = (world.new.tenant_shard_id, world.new.timeline_id);
    let refused = world.manager.delete_timeline(tenant, ancestor).await;
    assert!(matches!(refused, Err(ManageError::Precondition(_))), "{refused:?}");
    world.detach().await;
    world.check_detached().await;
    world.restart(false).await;
    world.check_detached().await;
    world.restart(true).await;
    world.check_detached().await;
    world.detach().await;
    world.delete_ancestor().await;
    for empty in [false, true] {
        world.check_detached().await;
        world.restart(empty).await;
        assert_eq!((world.manager.broken(), world.manager.timelines(tenant).unwrap().len()), (vec![], 1));
    }
    // It goes on as any timeline does.
    let (branch, mut model) = (world.branch(), world.model.clone());
    put(&branch, &mut model, 40).await;
    let middle = branch.last_record_lsn();
    put(&branch, &mut model, 40).await;
    let new = NewBranch { timeline_id: TimelineId::generate(), ancestor_id: world.branch, lsn: Some(middle) };
    let (child, _) = world.manager.branch(tenant, new).await.unwrap();
    branch.compact().await.unwrap();
    world.manager.collect_garbage(tenant, false).await.unwrap();
    assert!(branch.info().gc_cutoff > world.point, "history goes from the branch as from any timeline");
    check(&branch, &model, branch.last_record_lsn()).await;
    check(&child, &model, middle).await;
    drop((branch, child));
    world.manager.detach_timeline(tenant, new.timeline_id).await.unwrap();
    world.manager.delete_timeline(tenant, world.branch).await.unwrap();
    world.restart(true).await;
    let child = world.manager.get(tenant, new.timeline_id).unwrap();
    check(&child, &model, middle).await;
    drop(child);
    world.manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_go_on_while_the_branch_is_detached_and_the_ancestor_goes() {
    let world = World::new().await;
    let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut readers = Vec::new();
    for reader in 0..3_u64 {
        let (branch, model, point) = (world.branch(), world.model.clone(), world.point);
        let (stop, reads) = (Arc::clone(&stop), Arc::clone(&reads));
        readers.push(tokio::spawn(async move {
            let span = branch.last_record_lsn().0 - point.0 + 1;
            for number in (reader..).step_by(7) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (lsn, all) = (point + number * 13 % span, keys());
                let key = all[number as usize % all.len()];
                let found = branch.get(key, lsn, &context()).await.ok();
                assert!(found == model.value(&key, lsn), "{key} at {lsn}");
                reads.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    let more = |by| {
        let (reads, now) = (Arc::clone(&reads), reads.load(Ordering::Relaxed));
        async move {
            while reads.load(Ordering::Relaxed) < now + by {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    more(20).await;
    world.detach().await;
    more(20).await;
    world.delete_ancestor().await;
    more(20).await;
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }
    world.check_detached().await;
    world.manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_needs_keeps_a_branch_attached() {
    let world = World::new().await;
    let (tenant, branch) = (world.new.tenant_shard_id, world.branch());
    let refusal = async |names: &[&str]| match world.manager.detach_timeline(tenant, world.branch).await {
        Err(ManageError::Precondition(reason)) => {
            let missing: Vec<_> = names.iter().filter(|name| !reason.contains(*name)).collect();
            assert!(missing.is_empty(), "{missing:?} is not named: {reason}");
        }
        other => panic!("{other:?}"),
    };
    let (before, point) = (world.point - 8, world.point);
    branch.hold("a moment", before).await.unwrap();
    refusal(&["a moment", &before.to_string(), &point.to_string()]).await;
    assert!(branch.release("a moment").await.unwrap());
    branch.lease(before, Duration::from_secs(3600)).await.unwrap();
    let pin = branch.pin(IMPORT_LSN).unwrap();
    refusal(&["lease", "read", &IMPORT_LSN.to_string()]).await;
    drop(pin);
    // A branch of the branch, at what is the ancestor's; and one of that.
    let new = NewBranch { timeline_id: TimelineId::generate(), ancestor_id: world.branch, lsn: Some(before) };
    world.manager.branch(tenant, new).await.unwrap();
    refusal(&["branches off", &new.timeline_id.to_string()]).await;
    world.check().await;
    let unknown = world.manager.detach_timeline(tenant, TimelineId::generate()).await;
    assert!(matches!(unknown, Err(ManageError::NotFound(_))), "{unknown:?}");
    match world.manager.detach_timeline(tenant, world.new.timeline_id).await {
        Err(ManageError::Precondition(reason)) => assert!(reason.contains("not a branch"), "{reason}"),
        other => panic!("{other:?}"),
    }
    // The branch of the branch can go its own way.
    world.manager.detach_timeline(tenant, new.timeline_id).await.unwrap();
    let child = world.manager.get(tenant, new.timeline_id).unwrap();
    check(&child, &world.model, before).await;
    drop((child, branch));
    world.manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_at_the_branch_point_and_after_it_stay() {
    let mut world = World::new().await;
    let branch = world.branch();
    let after = world.point + 16;
    branch.hold("where it begins", world.point).await.unwrap();
    branch.hold("later", after).await.unwrap();
    world.detach().await;
    world.delete_ancestor().await;
    let mut model = world.model.clone();
    put(&branch, &mut model, 40).await;
    branch.compact().await.unwrap();
    world.manager.collect_garbage(world.new.tenant_shard_id, false).await.unwrap();
    assert!(branch.info().gc_cutoff > after);
    drop(branch);
    for empty in [false, true] {
        let branch = world.branch();
        check(&branch, &model, world.point).await;
        check(&branch, &model, after).await;
        check(&branch, &model, branch.last_record_lsn()).await;
        assert!(branch.check_readable(world.point + 8).is_err());
        drop(branch);
        world.restart(empty).await;
    }
    world.manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_index_part_is_rebuilt_as_that_of_a_detached_timeline() {
    let mut world = World::new().await;
    let tenant = world.new.tenant_shard_id;
    world.detach().await;
    world.delete_ancestor().await;
    let generation = world.manager.remote_of(tenant).unwrap().generation();
    world.manager.shutdown().await;
    world.bucket.delete(&[RemotePath::index_part(&tenant, &world.branch, generation)]).await.unwrap();
    world.dir = tempdir().unwrap();
    let conf = config(world.dir.path(), &world.bucket);
    world.manager = TenantManager::load_idle(conf).await.unwrap();
    let broken = world.manager.broken();
    assert!(broken.len() == 1 && broken[0].1 == world.branch, "{broken:?}");
    let generation = world.manager.remote_of(tenant).map(|remote| remote.generation());
    let subject = Subject { conf, tenant, exclusive: false, open: Vec::new(), generation };
    let options = Options { repair: true, repair_bucket: true, delete_orphans: false, grace: Duration::ZERO };
    let report = scrub(&subject, options, &Arc::new(Progress::default())).await.unwrap();
    assert!(report.fixed() > 0, "{report:?}");
    assert_eq!(world.manager.reopen(tenant).await.unwrap(), 1);
    world.check_detached().await;
    world.manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_goes_on_where_one_was_taken_over_while_detaching() {
    for decided in [false, true] {
        let mut world = World::new().await;
        world.branch().prepare_detach().await.unwrap();
        if decided {
            let all = world.manager.timelines(world.new.tenant_shard_id).unwrap();
            assert!(world.branch().decide_detach(&all).await.unwrap());
            // Whether the bucket has it by now is up to chance.
        }
        let (old, old_dir) = (world.manager.clone(), std::mem::replace(&mut world.dir, tempdir().unwrap()));
        let conf = config(world.dir.path(), &world.bucket);
        world.manager = TenantManager::load_idle(conf).await.unwrap();
        assert_eq!(world.manager.broken(), []);
        world.check().await;
        let was = old.get(world.new.tenant_shard_id, world.branch).unwrap();
        let _ = was.complete_detach().await;
        drop(was);
        old.shutdown().await;
        drop(old_dir);
        world.detach().await;
        world.delete_ancestor().await;
        world.check_detached().await;
        world.restart(true).await;
        world.check_detached().await;
        world.manager.shutdown().await;
    }
}
