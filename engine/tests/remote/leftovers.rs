//! What a bucket that fails now and then is left with: no object that nobody needs, no branch without its ancestor.

use std::sync::Arc;
use std::time::Duration;

use crate::restart::{UPLOAD, World, check, put};
use engine::config::CompactionPolicy;
use engine::tenant::manager::{NewBranch, TenantManager};
use engine::tenant::timeline::Timeline;
use futures_util::TryStreamExt;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use object_store::path::Path;
use remote_storage::{RemoteOptions, RemoteStorage};
use simulated::bucket::{Fault, FaultyStore, Op};
use utils::id::TimelineId;

use crate::stack::context;

/// Longer than the engine waits before it removes what an upload that failed may have left.
const LATE: Duration = Duration::from_secs(31);

/// A bucket whose faults the test chooses, and what is in it.
fn faulty() -> (RemoteStorage, Arc<FaultyStore>, Arc<InMemory>) {
    let truth = Arc::new(InMemory::new());
    let faults = FaultyStore::new(truth.clone());
    let options = RemoteOptions { retry_deadline: Duration::from_millis(200), ..RemoteOptions::default() };
    (RemoteStorage::with_options(faults.clone(), "memory:", options), faults, truth)
}

fn is_layer(path: &Path) -> bool {
    path.filename().is_some_and(|name| name.contains("__"))
}

/// The layers in the bucket and those of the timeline, sorted.
async fn layers(truth: &InMemory, timeline: &Timeline) -> (Vec<String>, Vec<String>) {
    let objects: Vec<_> = truth.list(None).try_collect().await.unwrap();
    let objects = objects.into_iter().map(|object| object.location).filter(is_layer);
    let mut stored: Vec<String> = objects.filter_map(|path| path.filename().map(str::to_owned)).collect();
    let files = timeline.layer_files();
    let mut named: Vec<String> = files.iter().filter_map(|layer| layer.path().file_name().map(str::to_owned)).collect();
    stored.sort();
    named.sort();
    (stored, named)
}

/// Has L0 layers replaced while `plan` fails. Returns how many objects too many there are when everything is published.
async fn replace_layers_with(plan: fn(Op, &Path) -> Option<Fault>) -> usize {
    let (bucket, faults, truth) = faulty();
    let mut world = World::on(bucket.clone()).await;
    world.manager.shutdown().await;
    let compaction = CompactionPolicy { l0_layers: 2, ..CompactionPolicy::ON };
    world.manager = TenantManager::load_idle(world.config_with(compaction)).await.unwrap();
    let (timeline, mut model) = (world.timeline(), world.model.clone());
    assert!(timeline.wait_uploaded(UPLOAD).await);
    faults.set_plan(move |op, _, path| plan(op, path));
    for _ in 0..4 {
        put(&timeline, &mut model, 10).await;
        timeline.flush(&context()).await.unwrap();
        // Fails with some plans.
        timeline.wait_uploaded(Duration::from_millis(500)).await;
    }
    timeline.compact().await.unwrap();
    // The files go that nobody reads any more, and so may their objects.
    let failed = async {
        while timeline.info().replaced_layers > 0 || faults.failed() == 0 {
            timeline.tend().await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(UPLOAD, failed).await.expect("something that the plan makes fail");
    tokio::time::sleep(Duration::from_millis(500)).await;
    faults.clear_plan();
    assert!(timeline.wait_uploaded(UPLOAD).await);
    let (stored, named) = layers(&truth, &timeline).await;
    assert!(named.iter().all(|name| stored.contains(name)));
    tokio::time::pause();
    tokio::time::sleep(LATE).await;
    tokio::time::resume();
    let gone = async {
        while layers(&truth, &timeline).await.0 != named {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(UPLOAD, gone).await.expect("just the layers that are needed");
    check(&timeline, &model, timeline.last_record_lsn()).await;
    drop(timeline);
    world.manager.shutdown().await;
    stored.len() - named.len()
}

#[tokio::test]
async fn objects_that_could_not_be_removed_are_removed_without_another_publication() {
    let left = replace_layers_with(|op, _| (op == Op::Delete).then_some(Fault::ErrorBefore)).await;
    assert!(left >= 4, "{left} objects were left");
}

/// As a server has them that owned the tenant once, when it owns it again.
#[tokio::test]
async fn files_of_former_layers_go_while_the_timeline_is_served() {
    let (bucket, _faults, _truth) = faulty();
    let mut world = World::on(bucket).await;
    let (timeline, mut model) = (world.timeline(), world.model.clone());
    put(&timeline, &mut model, 10).await;
    world.flush().await;
    let (dir, layers) = (timeline.dir().to_owned(), timeline.layer_files());
    let names: Vec<&str> = layers.iter().filter_map(|layer| layer.path().file_name()).collect();
    // Other files of the same layers; their blocks would not do.
    let renamed = |name: &&str| format!("{}{:016x}", &name[..name.len() - 16], 0x7000_0000_0000_0000_u64);
    let former: Vec<_> = names.iter().map(|name| dir.join(renamed(name))).collect();
    former.iter().for_each(|path| std::fs::write(path, b"former").unwrap());
    drop((timeline, layers));
    world.restart(false).await;
    let timeline = world.timeline();
    let gone = async {
        while former.iter().any(|path| path.exists()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(UPLOAD, gone).await.expect("former layers are removed");
    assert!(!former.is_empty() && timeline.layer_files().iter().all(|layer| layer.path().exists()));
    check(&timeline, &model, timeline.last_record_lsn()).await;
    drop(timeline);
    world.manager.shutdown().await;
}

#[tokio::test]
async fn uploads_whose_answers_were_lost_leave_no_objects() {
    let left = replace_layers_with(|op, path| (op == Op::Put && is_layer(path)).then_some(Fault::ErrorAfter)).await;
    assert!(left >= 1, "{left} objects were left");
}

/// Found by the simulation: the branch of the branch was in the bucket, and could not be opened without the other one.
#[tokio::test]
async fn a_branch_is_in_the_bucket_only_with_its_ancestor() {
    let (bucket, faults, _truth) = faulty();
    let mut world = World::on(bucket).await;
    world.flush().await;
    let (tenant, middle, leaf) = (world.new.tenant_shard_id, TimelineId::generate(), TimelineId::generate());
    let of_middle = middle.to_string();
    let is_held = move |op, path: &Path| op == Op::Put && path.as_ref().contains(&of_middle);
    faults.set_plan(move |op, _, path| is_held(op, path).then_some(Fault::ErrorBefore));
    branch(&world.manager, tenant, middle, world.new.timeline_id).await;
    let timeline = branch(&world.manager, tenant, leaf, middle).await;
    assert!(!timeline.wait_uploaded(Duration::from_secs(2)).await);
    assert!(faults.failed() > 0 && timeline.remote_consistent_lsn().is_none());
    drop(timeline);
    world.restart(true).await;
    assert_eq!(world.manager.timelines(tenant).unwrap().len(), 1, "the others were not promised");
    faults.clear_plan();
    branch(&world.manager, tenant, middle, world.new.timeline_id).await;
    let timeline = branch(&world.manager, tenant, leaf, middle).await;
    assert!(timeline.wait_uploaded(UPLOAD).await && timeline.remote_consistent_lsn().is_some());
    drop(timeline);
    world.restart(true).await;
    assert_eq!(world.manager.timelines(tenant).unwrap().len(), 3);
    world.manager.shutdown().await;
}

async fn branch(
    manager: &TenantManager,
    tenant: pageserver_api::shard::TenantShardId,
    timeline_id: TimelineId,
    ancestor_id: TimelineId,
) -> Timeline {
    manager.branch(tenant, NewBranch { timeline_id, ancestor_id, lsn: None }).await.unwrap().0
}
