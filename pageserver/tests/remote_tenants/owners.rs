//! One owner at a time; damaged, missing, unreachable or idle tenants.

use std::time::{Duration, Instant};

use camino_tempfile::{Utf8TempDir, tempdir};
use engine::tenant::manager::{ManageError, TenantManager};
use engine::tenant::remote::TenantRemote;
use engine::tenant::timeline::{NewTimeline, Timeline};
use errors::{ErrorKind, StorageError};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::remote_support::{TestStore, fast, test_store};
use crate::stack::{Model, context, import_with, new_timeline, put_record};
use crate::world::{UPLOAD, check, config, kill, load, put};

struct World {
    store: TestStore,
    dir: Utf8TempDir,
    manager: TenantManager,
    new: NewTimeline,
    model: Model,
}

async fn world() -> World {
    let (store, dir, new) = (test_store().await, tempdir().unwrap(), new_timeline());
    let manager = TenantManager::load(config(dir.path(), &store.storage)).await.unwrap();
    manager.create_tenant(new.tenant_shard_id).await.unwrap();
    let remote = manager.remote_of(new.tenant_shard_id);
    let (timeline, mut model) = import_with(manager.conf(), new, remote).await.unwrap();
    manager.add(timeline.clone()).await.unwrap();
    put(&timeline, &mut model, 10).await;
    timeline.flush(&context()).await.unwrap();
    assert!(timeline.wait_uploaded(UPLOAD).await);
    World { store, dir, manager, new, model }
}

impl World {
    fn timeline_of(&self, manager: &TenantManager) -> Timeline {
        manager.get(self.new.tenant_shard_id, self.new.timeline_id).unwrap()
    }

    async fn objects(&self, below: &str) -> Vec<Path> {
        let prefix = Path::from(format!("tenants/{}/{below}", self.new.tenant_shard_id));
        let found: Vec<_> = self.store.truth.list(Some(&prefix)).try_collect().await.unwrap();
        found.into_iter().map(|meta| meta.location).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_was_overtaken_stops_and_says_so() {
    let mut world = world().await;
    let tenant = world.new.tenant_shard_id;
    let (old, other_dir) = (world.timeline_of(&world.manager), tempdir().unwrap());
    let safe = old.remote_consistent_lsn();
    let newer = load(other_dir.path(), &world.store.storage).await;
    let new_owner = world.timeline_of(&newer);
    assert!(Some(new_owner.last_record_lsn()) >= safe);
    // The old owner does not know yet, and keeps writing.
    let mut unsafe_model = world.model.clone();
    put(&old, &mut unsafe_model, 5).await;
    old.flush(&context()).await.unwrap();
    assert!(!old.wait_uploaded(UPLOAD).await, "it may call nothing safe any more");
    assert_eq!(old.remote_consistent_lsn(), safe);
    let reason = old.fenced().unwrap();
    assert!(reason.contains("generation 1") && reason.contains("generation 2 exists"), "{reason}");
    check(&old, &unsafe_model, old.last_record_lsn()).await;
    let (mut batch, lsn) = (SerializedValueBatch::default(), old.last_record_lsn() + 8);
    put_record(&mut unsafe_model, &mut batch, lsn, &[(1, 1)]);
    let error = old.put_batch(batch, &context()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    let error = world.manager.delete_timeline(tenant, world.new.timeline_id).await.unwrap_err();
    assert!(matches!(error, ManageError::Storage(StorageError::Fenced { .. })), "{error}");
    let error = world.manager.delete_tenant(tenant).await.unwrap_err();
    assert!(matches!(error, ManageError::Storage(StorageError::Fenced { .. })), "{error}");
    // The new owner continues undisturbed.
    put(&new_owner, &mut world.model, 7).await;
    new_owner.flush(&context()).await.unwrap();
    assert!(new_owner.wait_uploaded(UPLOAD).await);
    drop(old);
    // A restart does not take it back.
    world.manager.shutdown().await;
    assert!(world.dir.path().join(format!("tenants/{tenant}/detached")).exists());
    let manager = load(world.dir.path(), &world.store.storage).await;
    assert_eq!(manager.tenants(), []);
    check(&new_owner, &world.model, new_owner.last_record_lsn()).await;
    // An explicit attach does.
    manager.attach_tenant(tenant).await.unwrap();
    let back = world.timeline_of(&manager);
    assert_eq!(back.last_record_lsn(), new_owner.last_record_lsn());
    check(&back, &world.model, back.last_record_lsn()).await;
    drop((back, new_owner));
    manager.shutdown().await;
    newer.shutdown().await;
}

/// The new owner removes what it does not need. The old one, which has nothing to upload, learns of it by a read.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_was_overtaken_says_so_where_an_object_is_gone() {
    let world = world().await;
    let timeline = world.timeline_of(&world.manager);
    for layer in timeline.layer_files() {
        layer.evict().await.unwrap();
        let object = layer.remote().unwrap();
        world.store.truth.delete(&Path::from(object.path.to_string())).await.unwrap();
    }
    let all = KeySpace::single(Key::MIN..Key::MAX);
    let read = async || timeline.get_vectored(&all, timeline.last_record_lsn(), &context()).await;
    let error = read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "the tenant is still its own: {error}");
    TenantRemote::attach(world.store.storage.clone(), world.new.tenant_shard_id).await.unwrap();
    let error = read().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert!(timeline.fenced().is_some());
    world.manager.shutdown().await;
}

/// WAL keeps arriving, but there is nothing to publish yet.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_is_told_while_it_only_receives() {
    let world = world().await;
    let remote = world.manager.remote_of(world.new.tenant_shard_id).unwrap();
    remote.check().await.unwrap();
    let newer = TenantRemote::attach(world.store.storage.clone(), world.new.tenant_shard_id).await.unwrap();
    assert_eq!((remote.generation(), newer.generation()), (1, 2));
    newer.check().await.unwrap();
    let error = remote.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    // From then on it is known without a request.
    let before = world.store.faults.total_calls();
    assert_eq!(remote.check().await.unwrap_err().to_string(), error.to_string());
    assert_eq!(world.store.faults.total_calls(), before);
    world.manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_tenant_costs_nothing() {
    let world = world().await;
    let before = world.store.faults.total_calls();
    let seconds = 5;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let requests = world.store.faults.total_calls() - before;
    println!("{requests} requests in {seconds} s without WAL");
    assert_eq!(requests, 0);
    world.manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_index_part_is_named_and_the_rest_serves() {
    let world = world().await;
    let second = NewTimeline { tenant_shard_id: world.new.tenant_shard_id, ..new_timeline() };
    let remote = world.manager.remote_of(world.new.tenant_shard_id);
    let (timeline, model) = import_with(world.manager.conf(), second, remote).await.unwrap();
    world.manager.add(timeline.clone()).await.unwrap();
    assert!(timeline.wait_uploaded(UPLOAD).await);
    drop(timeline);
    kill(world.manager.clone()).await;
    let all = world.objects(&format!("timelines/{}", world.new.timeline_id)).await;
    let index = all.iter().find(|path| path.as_ref().contains("index_part")).unwrap();
    let bytes = world.store.truth.get(index).await.unwrap().bytes().await.unwrap();
    for damaged in [&bytes[..bytes.len() - 1], &[&bytes[..60], &[bytes[60] ^ 1], &bytes[61..]].concat()[..], b""] {
        world.store.truth.put(index, PutPayload::from(damaged.to_vec())).await.unwrap();
        let dir = tempdir().unwrap();
        let manager = TenantManager::load_idle(config(dir.path(), &world.store.storage)).await.unwrap();
        let broken = manager.broken();
        assert!(broken.len() == 1 && broken[0].2.contains(index.as_ref()), "{broken:?}");
        let timeline = manager.get(second.tenant_shard_id, second.timeline_id).unwrap();
        check(&timeline, &model, timeline.last_record_lsn()).await;
        drop(timeline);
        manager.shutdown().await;
    }
    world.store.truth.put(index, PutPayload::from(bytes)).await.unwrap();
    let manager = load(tempdir().unwrap().path(), &world.store.storage).await;
    let timeline = world.timeline_of(&manager);
    check(&timeline, &world.model, timeline.last_record_lsn()).await;
    drop(timeline);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_the_bucket_gives_up_in_time_and_says_why() {
    let world = world().await;
    world.manager.shutdown().await;
    let (storage, faults) =
        world.store.another(remote_storage::RemoteOptions { retry_deadline: Duration::from_millis(200), ..fast() });
    faults.set_gone(true);
    let started = Instant::now();
    let error = TenantManager::load_idle(config(world.dir.path(), &storage)).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(20));
    let text = error.to_string();
    assert!(text.contains("test://bucket") && text.contains("remote_storage_start_timeout"), "{text}");
    faults.set_gone(false);
    let manager = load(world.dir.path(), &storage).await;
    let timeline = world.timeline_of(&manager);
    check(&timeline, &world.model, timeline.last_record_lsn()).await;
    drop(timeline);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_was_deleted_can_be_used_anew() {
    let world = world().await;
    let tenant = world.new.tenant_shard_id;
    world.manager.delete_tenant(tenant).await.unwrap();
    assert_eq!(world.objects("timelines").await, []);
    let error = TenantRemote::attach(world.store.storage.clone(), tenant).await.unwrap_err();
    assert!(error.to_string().contains("was deleted"), "{error}");
    world.manager.create_tenant(tenant).await.unwrap();
    assert_eq!(world.manager.timelines(tenant).unwrap().len(), 0);
    let remote = world.manager.remote_of(tenant);
    assert_eq!(remote.as_ref().map(|remote| remote.generation()), Some(3));
    let (timeline, model) = import_with(world.manager.conf(), world.new, remote).await.unwrap();
    world.manager.add(timeline.clone()).await.unwrap();
    assert!(timeline.wait_uploaded(UPLOAD).await);
    let last = timeline.last_record_lsn();
    drop(timeline);
    world.manager.shutdown().await;
    let manager = load(tempdir().unwrap().path(), &world.store.storage).await;
    check(&world.timeline_of(&manager), &model, last).await;
    manager.shutdown().await;
}
