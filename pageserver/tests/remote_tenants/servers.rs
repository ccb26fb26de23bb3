//! Servers that start on one bucket: each takes its own tenants, nothing of another's unless told to, and makes few
//! requests.

use std::time::Duration;

use camino::Utf8Path;
use camino_tempfile::tempdir;
use engine::config::{AttachOnStart, PageServerConf, ServerIdentity};
use engine::tenant::manager::TenantManager;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use pageserver_api::shard::TenantShardId;
use utils::id::TenantId;

use crate::remote_support::{Op, TestStore, fast, test_store};
use crate::world::{config, kill};

fn server(id: &str) -> ServerIdentity {
    ServerIdentity { id: id.to_owned(), former: Vec::new(), host: format!("host-{id}") }
}

async fn start_as(server: ServerIdentity, dir: &Utf8Path, store: &TestStore) -> TenantManager {
    let conf = PageServerConf { server, ..config(dir, &store.storage).clone() };
    TenantManager::load_idle(Box::leak(Box::new(conf))).await.unwrap()
}

fn new_tenant() -> TenantShardId {
    TenantShardId::unsharded(TenantId::generate())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_takes_nothing_of_the_first_unasked() {
    let (store, [dir, empty, other]) = (test_store().await, [(); 3].map(|()| tempdir().unwrap()));
    let (tenant, second) = (new_tenant(), new_tenant());
    let first = start_as(server("one"), dir.path(), &store).await;
    first.create_tenant(tenant).await.unwrap();
    // While the first server is running, and when it is dead.
    for round in 0..2 {
        let another = start_as(server("two"), other.path(), &store).await;
        assert_eq!(another.tenants(), if round == 0 { vec![] } else { vec![second] });
        another.create_tenant(second).await.unwrap();
        assert!(first.remote_of(tenant).is_none_or(|remote| remote.fenced().is_none()));
        another.shutdown().await;
        if round == 0 {
            first.remote_of(tenant).unwrap().check().await.unwrap();
            kill(first.clone()).await;
        }
    }
    // The first server gets its tenant back by itself, on its disk and on an empty one; so does a server that
    // replaces it.
    let renamed = ServerIdentity { former: vec!["one".to_owned()], ..server("three") };
    for (identity, dir) in
        [(server("one"), &dir), (server("one"), &empty), (renamed, &empty), (server("three"), &empty)]
    {
        let manager = start_as(identity, dir.path(), &store).await;
        assert_eq!(manager.tenants(), [tenant]);
        manager.shutdown().await;
    }
    // A server that is told to takes the tenant, and keeps it: the old disk does not take it back.
    let taker = start_as(server("two"), other.path(), &store).await;
    taker.take_tenant_over(tenant).await.unwrap();
    let mut both = vec![tenant, second];
    both.sort();
    assert_eq!(taker.tenants(), both);
    for dir in [&dir, &empty] {
        let manager = start_as(server("three"), dir.path(), &store).await;
        assert_eq!(manager.tenants(), []);
        manager.shutdown().await;
    }
    taker.remote_of(tenant).unwrap().check().await.unwrap();
    taker.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_owned_is_taken_and_all_means_all() {
    let (store, dir, tenant) = (test_store().await, tempdir().unwrap(), new_tenant());
    // As an earlier version wrote it.
    let old = br#"{"owner": "0123456789abcdef", "created": 1, "deleted": false, "void_through": 0}"#;
    let path = Path::from(format!("tenants/{tenant}/generations/00000001"));
    store.truth.put(&path, PutPayload::from(old.to_vec())).await.unwrap();
    let manager = start_as(server("one"), dir.path(), &store).await;
    assert_eq!(manager.tenants(), [tenant]);
    manager.shutdown().await;
    let other = tempdir().unwrap();
    for (attach_on_start, expected) in [(AttachOnStart::Own, vec![]), (AttachOnStart::All, vec![tenant])] {
        let server = server("two");
        let conf = PageServerConf { attach_on_start, server, ..config(other.path(), &store.storage).clone() };
        let manager = TenantManager::load_idle(Box::leak(Box::new(conf))).await.unwrap();
        assert_eq!(manager.tenants(), expected);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_asks_little_for_tenants_without_timelines_and_less_for_those_of_others() {
    const TENANTS: u64 = 100;
    let (store, dir, other) = (test_store().await, tempdir().unwrap(), tempdir().unwrap());
    let manager = start_as(server("one"), dir.path(), &store).await;
    for _ in 0..TENANTS {
        manager.create_tenant(new_tenant()).await.unwrap();
    }
    manager.shutdown().await;
    let empty = tempdir().unwrap();
    // Maximum number of requests per tenant: list its generations, read the newest, create the next one, list
    // timelines.
    for (case, id, dir, most) in
        [("disk", "one", &dir, 4), ("no disk", "one", &empty, 4), ("another", "two", &other, 2)]
    {
        let (storage, faults) = store.another(fast());
        let conf = PageServerConf { server: server(id), ..config(dir.path(), &storage).clone() };
        // Including everything in the background.
        let manager = TenantManager::load(Box::leak(Box::new(conf))).await.unwrap();
        let at_start = faults.total_calls();
        tokio::time::sleep(Duration::from_secs(3)).await;
        let total = faults.total_calls();
        let by_kind: Vec<_> =
            Op::ALL.iter().map(|op| (*op, faults.calls(*op))).filter(|(_, calls)| *calls > 0).collect();
        println!("{case}: {at_start} requests at the start of {TENANTS} tenants, {total} after 3 s: {by_kind:?}");
        assert!(total <= TENANTS * most + 5, "{case}: {total} requests, {by_kind:?}");
        manager.shutdown().await;
        let at_end = faults.total_calls() - total;
        assert!(at_end <= 5, "{case}: {at_end} requests at the end");
    }
}
