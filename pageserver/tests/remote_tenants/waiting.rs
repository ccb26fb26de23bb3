//! A bucket that does not answer for one tenant does not delay the others; and stale listings hide nothing.

use std::time::{Duration, Instant};

use camino_tempfile::tempdir;
use engine::tenant::manager::{NewBranch, TenantManager};
use object_store::path::Path;
use pageserver_api::shard::TenantShardId;
use utils::id::{TenantId, TimelineId};

use crate::remote_support::{Fault, Op, TestStore, test_store};
use crate::stack::{Model, import_with, new_timeline};
use crate::world::{UPLOAD, check, config, load, put};

/// Far less than the time limit of a request that hangs.
const AT_ONCE: Duration = Duration::from_secs(3);

async fn filled(store: &TestStore, manager: &TenantManager) -> (TenantShardId, TimelineId, Model) {
    let new = new_timeline();
    manager.create_tenant(new.tenant_shard_id).await.unwrap();
    let remote = manager.remote_of(new.tenant_shard_id);
    let (timeline, mut model) = import_with(manager.conf(), new, remote).await.unwrap();
    manager.add(timeline.clone()).await.unwrap();
    put(&timeline, &mut model, 10).await;
    timeline.flush(&crate::stack::context()).await.unwrap();
    assert!(timeline.wait_uploaded(UPLOAD).await && store.faults.total_calls() > 0);
    (new.tenant_shard_id, new.timeline_id, model)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_whose_requests_hang_keeps_no_other_waiting() {
    let (store, dir) = (test_store().await, tempdir().unwrap());
    let manager = TenantManager::load(config(dir.path(), &store.storage)).await.unwrap();
    let (tenant, timeline, _) = filled(&store, &manager).await;
    let [hanging, other] = [(); 2].map(|()| TenantShardId::unsharded(TenantId::generate()));
    let name = hanging.to_string();
    store.faults.set_plan(move |_, _, path: &Path| path.as_ref().contains(&name).then_some(Fault::Timeout));
    let attaching = tokio::spawn({
        let manager = manager.clone();
        async move { manager.attach_tenant(hanging).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let started = Instant::now();
    let branch = NewBranch { timeline_id: TimelineId::generate(), ancestor_id: timeline, lsn: None };
    manager.branch(tenant, branch).await.unwrap();
    manager.delete_timeline(tenant, branch.timeline_id).await.unwrap();
    manager.create_tenant(other).await.unwrap();
    manager.delete_tenant(other).await.unwrap();
    assert_eq!(manager.tenants(), [tenant]);
    let took = started.elapsed();
    println!("a branch, a tenant, and the deletion of both took {took:?} while an attach hung");
    assert!(took < AT_ONCE && !attaching.is_finished(), "{took:?}");
    store.faults.clear_plan();
    attaching.await.unwrap().unwrap();
    manager.shutdown().await;
}

/// What a listing lacks is unavailable for now, but none of it is removed; another look finds it.
#[tokio::test(flavor = "multi_thread")]
async fn timelines_that_a_list_does_not_name_are_neither_removed_nor_forgotten() {
    let (store, dir) = (test_store().await, tempdir().unwrap());
    let manager = load(dir.path(), &store.storage).await;
    let (tenant, id, model) = filled(&store, &manager).await;
    let branch = NewBranch { timeline_id: TimelineId::generate(), ancestor_id: id, lsn: None };
    let (timeline, _) = manager.branch(tenant, branch).await.unwrap();
    assert!(timeline.wait_uploaded(UPLOAD).await);
    drop(timeline);
    manager.shutdown().await;
    let objects = |store: &TestStore| {
        let truth = std::sync::Arc::clone(&store.truth);
        async move {
            use futures_util::TryStreamExt;
            let listed: Vec<_> = truth.list(None).try_collect().await.unwrap();
            listed.into_iter().map(|meta| meta.location.to_string()).filter(|name| name.contains("timelines")).count()
        }
    };
    let before = objects(&store).await;
    let timelines = format!("tenants/{tenant}/timelines");
    // Listings of directories show the state before the tenant had any.
    let no_directories = move |op, _, path: &Path| {
        let stale = op == Op::List && path.as_ref().trim_end_matches('/').ends_with(&timelines);
        stale.then_some(Fault::StaleList)
    };
    for (own_disk, start) in [(true, dir), (false, tempdir().unwrap())] {
        let (view, faults) = store.another(crate::remote_support::fast());
        faults.set_plan(no_directories.clone());
        let manager = load(start.path(), &view).await;
        let found = manager.timelines(tenant).unwrap().len();
        assert_eq!(found, if own_disk { 2 } else { 0 }, "what is here needs no list");
        faults.clear_plan();
        assert_eq!(manager.look_again(tenant).await.unwrap(), 2 - found);
        assert_eq!(manager.look_again(tenant).await.unwrap(), 0);
        let timeline = manager.get(tenant, id).unwrap();
        check(&timeline, &model, timeline.last_record_lsn()).await;
        let again = manager.get(tenant, branch.timeline_id).unwrap();
        check(&again, &model, timeline.last_record_lsn()).await;
        assert!(timeline.wait_uploaded(UPLOAD).await && again.wait_uploaded(UPLOAD).await);
        assert!(objects(&store).await >= before, "objects were removed");
        drop((timeline, again));
        manager.shutdown().await;
    }
}
