//! The life of branches: expiry, protection, labels, restoration, how many there may be; and who changed what.

use std::time::Duration;

use engine::tenant::manager::TenantManager;
use pageserver::http::AuditOptions;
use serde_json::{Value, json};
use utils::id::TimelineId;

use crate::client::Answer;
use crate::server::{Server, Signer};

impl Server {
    fn all(&self) -> String {
        format!("/v1/tenant/{}/timeline", self.tenant)
    }

    pub(super) fn at(&self, id: &str) -> String {
        format!("{}/{id}", self.all())
    }

    /// Asks for a branch of the timeline, with more members than these.
    pub(super) async fn branch(&self, id: &str, more: Value) -> Answer {
        let mut body = json!({"new_timeline_id": id, "ancestor_timeline_id": self.timeline});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.client.call("POST", &self.all(), &body).await
    }

    pub(super) async fn info(&self, id: &str) -> Value {
        self.client.get(&self.at(id)).await.json()
    }

    pub(super) async fn set(&self, id: &str, body: Value) -> Answer {
        self.client.call("PUT", &format!("{}/branch", self.at(id)), &body).await
    }

    pub(super) async fn delete(&self, id: &str) -> Answer {
        self.client.call("DELETE", &self.at(id), &Value::Null).await
    }

    pub(super) async fn until_gone(&self, id: &str) {
        let gone = async {
            while self.client.get(&self.at(id)).await.status != 404 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.expect("it goes");
    }
}

pub(super) fn new_id() -> String {
    TimelineId::generate().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_branch_goes_and_one_that_is_needed_stays_until_it_is_not() {
    let server = Server::open().await;
    let (short, parent, child, long) = (new_id(), new_id(), new_id(), new_id());
    let made = server.branch(&short, json!({"name": "short", "ttl": "1s"})).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert!(made.json()["expires_at"].is_string() && made.json()["expired"].is_null(), "{made:?}");
    assert_eq!(server.branch(&parent, json!({"name": "parent", "ttl": "1s"})).await.status, 201);
    let body = json!({"new_timeline_id": child, "ancestor_timeline_id": parent, "ttl": "1h"});
    assert_eq!(server.client.call("POST", &server.all(), &body).await.status, 201);
    assert_eq!(server.branch(&long, json!({"name": "long", "ttl": "1s"})).await.status, 201);
    assert_eq!(server.set(&long, json!({"ttl": null})).await.json()["expires_at"], Value::Null);
    server.until_gone(&short).await;
    assert_eq!(server.info(&parent).await["expired"], "it has a branch");
    assert_eq!(server.info(&long).await["expired"], Value::Null);
    // The child expires sooner now, and its parent goes with it.
    assert_eq!(server.set(&child, json!({"ttl": "1s"})).await.status, 200);
    server.until_gone(&child).await;
    server.until_gone(&parent).await;
    assert_eq!(server.set(&server.timeline.clone(), json!({"ttl": "1h"})).await.status, 412, "it is not a branch");
    for bad in [json!({"ttl": "0s"}), json!({"ttl": "soon"}), json!({"expires_at": "2020-01-01T00:00:00Z"})] {
        assert_eq!(server.branch(&new_id(), bad.clone()).await.status, 400, "{bad}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_noted_of_a_branch_survives_a_restart() {
    let server = Server::open().await;
    let id = new_id();
    let noted = json!({"name": "dev", "ttl": "1h", "protected": true, "labels": {"pr": "7", "team": "a"},
        "owner": "ann", "reason": "a try"});
    let made = server.branch(&id, noted).await.json();
    assert_eq!((&made["owner"], &made["labels"]["pr"]), (&json!("ann"), &json!("7")));
    let changed = server.set(&id, json!({"labels": {"team": null, "x": "y"}, "reason": null, "name": "other"})).await;
    let members = ["name", "labels", "reason", "owner", "expires_at", "protected"];
    let changed = members.map(|name| changed.json()[name].clone());
    assert_eq!(changed[..3], [json!("other"), json!({"pr": "7", "x": "y"}), Value::Null]);
    let taken = server.branch(&new_id(), json!({"name": "other"})).await;
    assert!(taken.status == 409 && taken.msg().contains("exists already"), "{taken:?}");
    assert_eq!(server.branch(&new_id(), json!({"name": "dev"})).await.status, 201, "that name is free again");
    let (conf, tenant) = (server.manager.conf(), server.tenant.parse().unwrap());
    let dir = server.stop_and_keep().await;
    let manager = TenantManager::load_idle(conf).await.unwrap();
    let told = manager.get(tenant, id.parse().unwrap()).unwrap().told().unwrap().0;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["name"], &told["branch"]["labels"]), (&changed[0], &changed[1]));
    assert_eq!(told["branch"]["protected"], true);
    manager.shutdown().await;
    drop(dir);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_protected_branch_is_not_deleted_whoever_asks_and_however_old_it_is() {
    let server = Server::open().await;
    let id = new_id();
    server.branch(&id, json!({"name": "kept", "protected": true, "ttl": "1s"})).await;
    let refused = server.delete(&id).await;
    assert!(refused.status == 409 && refused.msg().contains("pagectl branch set kept --unprotect"), "{refused:?}");
    let tenant = format!("/v1/tenant/{}", server.tenant);
    assert_eq!(server.client.call("DELETE", &tenant, &Value::Null).await.status, 409);
    let expired = async {
        while server.info(&id).await["expired"] != "it is protected" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), expired).await.expect("it expires");
    assert_eq!(server.delete(&id).await.status, 409);
    assert_eq!(server.set(&id, json!({"protected": false})).await.status, 200);
    server.until_gone(&id).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_is_restored_in_its_place_and_what_it_was_is_kept() {
    let server = Server::open().await;
    let (id, restored) = (new_id(), new_id());
    let noted = json!({"name": "main", "ancestor_start_lsn": "0/2800", "labels": {"a": "b"}, "protected": true});
    assert_eq!(server.branch(&id, noted).await.status, 201);
    let path = format!("{}/restore", server.at(&id));
    let restore = async |body: Value| server.client.call("POST", &path, &body).await;
    for (bad, status) in [
        (json!({}), 400),
        (json!({"lsn": "0/2900"}), 406),
        (json!({"lsn": "0/2500", "keep_as": "main"}), 400),
        (json!({"lsn": "0/2500", "keep_as": "-"}), 400),
    ] {
        let mut body = json!({"new_timeline_id": restored});
        body.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
        let answer = restore(body).await;
        assert_eq!(answer.status, status, "{bad}: {answer:?}");
        assert_eq!(server.info(&id).await["name"], "main", "nothing has changed");
    }
    let body = json!({"new_timeline_id": restored, "lsn": "0/2500", "keep_as": "main-before"});
    for _ in 0..2 {
        let answer = restore(body.clone()).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        let (now, kept) = (&answer.json()["branch"], &answer.json()["kept"]);
        assert_eq!((&now["name"], &now["timeline_id"]), (&json!("main"), &json!(restored)));
        assert_eq!((&now["ancestor_lsn"], &now["last_record_lsn"]), (&json!("0/2500"), &json!("0/2500")));
        assert_eq!((&now["labels"], &now["protected"]), (&json!({"a": "b"}), &json!(true)));
        assert_eq!((&kept["name"], &kept["timeline_id"]), (&json!("main-before"), &json!(id)));
        assert_eq!(kept["last_record_lsn"], "0/2800");
    }
    // Once more, by default under a name with the time.
    let path = format!("{}/restore", server.at(&restored));
    let body = json!({"new_timeline_id": new_id(), "timestamp": "2026-01-01T00:00:03Z"});
    let answer = server.client.call("POST", &path, &body).await.json();
    assert_eq!(answer["branch"]["ancestor_lsn"], "0/23F8", "the last one before the next commit: {answer}");
    assert!(answer["kept"]["name"].as_str().unwrap().starts_with("main-before-20"), "{answer}");
    let root = format!("{}/restore", server.base(""));
    let answer = server.client.call("POST", &root, &json!({"new_timeline_id": new_id(), "lsn": "0/2500"})).await;
    assert!(answer.status == 412 && answer.msg().contains("--name NAME"), "{answer:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restoration_that_was_interrupted_is_completed() {
    let server = Server::open().await;
    let (id, restored) = (new_id(), new_id());
    server.branch(&id, json!({"name": "main", "ancestor_start_lsn": "0/2800"})).await;
    // As a server has left it that ended in the middle.
    let timeline = server.manager.get(server.tenant.parse().unwrap(), id.parse().unwrap()).unwrap();
    let successor = json!({"timeline_id": restored, "name": "main", "lsn": "0/2500"});
    let told = json!({"name": "main-before", "branch": {"successor": successor}}).to_string();
    timeline.tell(engine::tenant::timeline::Told(told)).await.unwrap();
    let taken = server.branch(&new_id(), json!({"name": "main"})).await;
    assert_eq!(taken.status, 409, "nobody else gets the name: {taken:?}");
    server.branch(&new_id(), json!({"name": "other"})).await;
    let is_noted = || timeline.told().unwrap().0.contains("successor");
    let completed = async {
        while server.client.get(&server.at(&restored)).await.status != 200 || is_noted() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let completed = tokio::time::timeout(Duration::from_secs(20), completed).await;
    completed.unwrap_or_else(|_| panic!("it is not completed: {:?}", timeline.told().unwrap().0));
    let now = server.info(&restored).await;
    assert_eq!((&now["name"], &now["ancestor_lsn"]), (&json!("main"), &json!("0/2500")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_as_many_branches_as_it_may_have() {
    let server = Server::start(|_, options| options.max_branches = 2).await;
    let (first, second) = (new_id(), new_id());
    for id in [&first, &second, &second] {
        assert_eq!(server.branch(id, json!({})).await.status, 201, "repeating adds none");
    }
    let refused = server.branch(&new_id(), json!({})).await;
    assert!(refused.status == 412 && refused.msg().contains("may have 2 (max_branches)"), "{refused:?}");
    assert_eq!(server.delete(&first).await.status, 200);
    assert_eq!(server.branch(&new_id(), json!({})).await.status, 201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_changed_what_is_noted() {
    let signer = Signer::new();
    let mut server = Server::start(|dir, options| {
        signer.require(dir, options);
        options.audit = Some(AuditOptions { path: dir.join("audit.jsonl"), max_bytes: 1 << 20 });
    })
    .await;
    let token = signer.token_of("ann", "tenant", Some(&server.tenant));
    server.client.token = Some(token);
    let id = new_id();
    let made = server.branch(&id, json!({"name": "mine", "ttl": "1s", "owner": "bob"})).await;
    assert!(made.status == 201 && made.headers.contains("x-request-id: "), "{made:?}");
    assert_eq!(made.json()["owner"], "ann", "whoever holds the token");
    server.info(&id).await;
    assert_eq!(server.client.call("PUT", "/v1/io_mode", &json!("direct")).await.status, 403);
    server.client.token = None;
    assert_eq!(server.delete(&id).await.status, 401);
    server.client.token = Some(signer.token("pageserverapi", None));
    server.until_gone(&id).await;
    let tenant = server.tenant.clone();
    let dir = server.stop_and_keep().await;
    let log = std::fs::read_to_string(dir.path().join("audit.jsonl")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [made, refused, unknown, expired] = &lines[..] else { panic!("{log}") };
    assert_eq!((&made["subject"], &made["method"], &made["status"]), (&json!("ann"), &json!("POST"), &json!(201)));
    assert_eq!((&made["tenant"], &made["timeline"]), (&json!(tenant), &json!(id)));
    assert_eq!(made["operation"], "/v1/tenant/{tenant_shard_id}/timeline");
    assert!(made["peer"].as_str().unwrap().starts_with("127.0.0.1:") && made["request_id"].is_string(), "{made}");
    assert_eq!((&refused["status"], &refused["authorized"]), (&json!(403), &json!(false)));
    assert_eq!((&unknown["status"], &unknown["subject"]), (&json!(401), &Value::Null));
    assert_eq!((&expired["method"], &expired["timeline"]), (&json!("server"), &json!(id)));
}
