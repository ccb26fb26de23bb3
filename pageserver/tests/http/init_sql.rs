//! SQL that runs on a branch before anybody uses it: who may run it, what is refused until it is done, and what is
//! started over; and quotas of tenants.

use std::time::Duration;

use serde_json::{Value, json};

use crate::branches::new_id;
use crate::client::Answer;
use crate::server::{Server, Signer};

impl Server {
    /// Asks for the turn to run the SQL of a branch.
    async fn turn(&self, id: &str, run: &str, more: Value) -> Answer {
        let mut body = json!({"run": run, "new_timeline_id": new_id()});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.client.call("POST", &format!("{}/init", self.at(id)), &body).await
    }

    async fn ended(&self, id: &str, run: &str, how: Value) -> Answer {
        let mut body = json!({"run": run});
        body.as_object_mut().unwrap().extend(how.as_object().unwrap().clone());
        self.client.call("POST", &format!("{}/init_end", self.at(id)), &body).await
    }

    async fn state(&self, id: &str) -> Value {
        self.info(id).await["init"]["state"].clone()
    }

    async fn writer(&self, id: &str, more: Value) -> Answer {
        let start = self.info(id).await["last_record_lsn"].clone();
        let mut body = json!({"id": format!("of {id}"), "name": "c", "connstr": "host=/nonexistent user=u", "slot": "s",
            "start_lsn": start});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.client.call("PUT", &format!("{}/writer", self.at(id)), &body).await
    }

    async fn without_writer(&self, id: &str) {
        let path = format!("{}/writer?id=of%20{id}", self.at(id));
        assert_eq!(self.client.call("DELETE", &path, &Value::Null).await.status, 200);
    }
}

fn sql(text: &str) -> Value {
    json!({"sql": text, "database": "app"})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_is_closed_until_its_sql_is_done() {
    let server = Server::open().await;
    let (id, child) = (new_id(), new_id());
    let made = server.branch(&id, json!({"name": "dev", "init_sql": sql("UPDATE s3cret")})).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert!(!made.text().contains("s3cret"), "{made:?}");
    assert_eq!(made.json()["init"]["state"], "pending");
    let begins = made.json()["ancestor_lsn"].as_str().unwrap().to_owned();
    let of_it = json!({"new_timeline_id": child, "ancestor_timeline_id": id});
    let all = format!("/v1/tenant/{}/timeline", server.tenant);
    let closed = [
        server.client.call("POST", &all, &of_it).await,
        server.writer(&id, json!({})).await,
        server.writer(&id, json!({"init_run": "a"})).await,
        server
            .client
            .call(
                "POST",
                &format!("{}/restore", server.at(&id)),
                &json!({"lsn": begins,
            "new_timeline_id": new_id()}),
            )
            .await,
    ];
    for answer in closed {
        assert!(answer.status == 412 && answer.msg().contains("branch dev is closed"), "{answer:?}");
    }
    let granted = server.turn(&id, "a", json!({})).await;
    assert_eq!(granted.json()["granted"], true, "{granted:?}");
    assert_eq!(granted.json()["sql"][0]["sql"], "UPDATE s3cret");
    assert_eq!(granted.json()["branch"]["timeline_id"], *id, "it was not touched");
    assert_eq!(server.turn(&id, "b", json!({})).await.json()["granted"], false, "somebody is at it");
    assert_eq!(server.turn(&id, "b", json!({"retry": true})).await.json()["granted"], false);
    assert_eq!(server.writer(&id, json!({"init_run": "b"})).await.status, 412);
    assert_eq!(server.writer(&id, json!({"init_run": "a"})).await.status, 200);
    let early = server.ended(&id, "a", json!({"lsn": begins})).await;
    assert!(early.status == 409 && early.msg().contains("still writes"), "{early:?}");
    server.without_writer(&id).await;
    let ahead = server.ended(&id, "a", json!({"lsn": "F/0"})).await;
    assert!(ahead.status == 412 && ahead.msg().contains("has not come"), "{ahead:?}");
    assert_eq!(server.ended(&id, "b", json!({"lsn": begins})).await.status, 409, "it is not theirs to say");
    assert_eq!(server.ended(&id, "a", json!({})).await.status, 400);
    for _ in 0..2 {
        let done = server.ended(&id, "a", json!({"lsn": begins})).await;
        assert_eq!(done.json()["init"]["state"], "done", "{done:?}");
    }
    assert_eq!(server.ended(&id, "a", json!({"failed": "no"})).await.status, 409, "it is done");
    assert_eq!(server.client.call("POST", &all, &of_it).await.json()["init"]["lsn"], *begins, "as its parent");
    assert_eq!(server.writer(&id, json!({})).await.status, 200);
    for bad in ["", "a b", &"x".repeat(65)] {
        assert_eq!(server.turn(&id, bad, json!({})).await.status, 400, "{bad}");
    }
    assert_eq!(server.turn(&server.timeline.clone(), "a", json!({})).await.status, 412, "it has none");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_failed_begins_anew_under_its_name() {
    let server = Server::open().await;
    let root = server.timeline.clone();
    assert_eq!(server.set(&root, json!({"branches_init_sql": sql("of all")})).await.status, 200);
    let id = new_id();
    let noted = json!({"name": "dev", "protected": true, "labels": {"a": "b"}, "init_sql": sql("own")});
    let made = server.branch(&id, noted).await;
    assert_eq!(made.json()["init"]["sql"].as_array().unwrap().len(), 2, "{made:?}");
    server.turn(&id, "a", json!({})).await;
    let failed = server.ended(&id, "a", json!({"failed": "statement 1\nis wrong"})).await;
    assert_eq!(
        (&failed.json()["init"]["state"], &failed.json()["init"]["error"]),
        (&json!("failed"), &json!("statement 1 is wrong"))
    );
    assert_eq!(server.turn(&id, "b", json!({})).await.json()["granted"], false, "nobody has said so");
    // What all branches have is mended, and what it has itself is another one.
    server.set(&root, json!({"branches_init_sql": sql("of all, mended")})).await;
    // Who repairs something is not disturbed.
    assert_eq!(server.writer(&id, json!({"uninitialized": true})).await.status, 200);
    let refused = server.turn(&id, "b", json!({"retry": true})).await;
    assert!(refused.status == 409 && refused.msg().contains("compute c writes"), "{refused:?}");
    server.without_writer(&id).await;
    let again = server.turn(&id, "b", json!({"retry": true, "init_sql": sql("own, mended")})).await.json();
    assert_eq!(again["granted"], true, "{again}");
    let texts: Vec<_> = again["sql"].as_array().unwrap().iter().map(|one| one["sql"].as_str().unwrap()).collect();
    assert_eq!(texts, ["of all, mended", "own, mended"]);
    let (branch, new) = (&again["branch"], again["branch"]["timeline_id"].as_str().unwrap().to_owned());
    assert!(new != id && branch["name"] == "dev" && branch["protected"] == true && branch["labels"]["a"] == "b");
    assert_eq!(branch["ancestor_lsn"], made.json()["ancestor_lsn"]);
    server.until_gone(&id).await;
    // It was given up: anybody may try again.
    server.ended(&new, "b", json!({"gave_up": "no room"})).await;
    assert_eq!(server.state(&new).await, "pending");
    assert_eq!(server.turn(&new, "c", json!({})).await.json()["branch"]["timeline_id"], *new);
    // Without any SQL there is nothing to wait for.
    server.ended(&new, "c", json!({"failed": "no"})).await;
    server.set(&root, json!({"branches_init_sql": null})).await;
    let plain = new_id();
    assert_eq!(server.branch(&plain, json!({"name": "plain"})).await.json()["init"], Value::Null);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_ends_when_nothing_is_heard() {
    let server = Server::open().await;
    let id = new_id();
    server.branch(&id, json!({"name": "dev", "init_sql": sql("SELECT 1")})).await;
    server.turn(&id, "a", json!({})).await;
    let begun = std::time::Instant::now();
    let heard = format!("{}/init?run=a", server.at(&id));
    while begun.elapsed() < Duration::from_secs(12) {
        assert_eq!(server.client.get(&heard).await.json()["granted"], true);
        assert_eq!(server.turn(&id, "b", json!({})).await.json()["granted"], false);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let taken = async {
        loop {
            let answer = server.turn(&id, "b", json!({})).await.json();
            if answer["granted"] == true {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let taken = tokio::time::timeout(Duration::from_secs(20), taken).await.expect("the turn ends");
    assert_ne!(taken["branch"]["timeline_id"], *id, "what was begun is not gone on with");
    let late = server.ended(&id, "a", json!({"lsn": taken["branch"]["ancestor_lsn"]})).await;
    assert_eq!(late.status, 404, "{late:?}");
    assert_eq!(taken["branch"]["init"]["state"], "running");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_may_have_so_much() {
    let signer = Signer::new();
    let mut server = Server::authenticated(&signer).await;
    let path = format!("/v1/tenant/{}/quota", server.tenant);
    let all = signer.token("pageserverapi", None);
    let own = signer.token("tenant_admin", Some(&server.tenant));
    server.client.token = Some(own.clone());
    assert_eq!(server.client.call("PUT", &path, &json!({"branches": 9})).await.status, 403, "not who uses it");
    assert_eq!(server.client.get(&path).await.json()["branches"], Value::Null);
    server.client.token = Some(all.clone());
    let set = server.client.call("PUT", &path, &json!({"branches": 2, "computes": 1})).await;
    assert_eq!((&set.json()["branches"], &set.json()["used"]["branches"]), (&json!(2), &json!(0)), "{set:?}");
    let (one, two) = (new_id(), new_id());
    for id in [&one, &two, &two] {
        assert_eq!(server.branch(id, json!({})).await.status, 201);
    }
    let refused = server.branch(&new_id(), json!({})).await;
    assert!(refused.status == 412 && refused.msg().contains("its quota is 2"), "{refused:?}");
    assert_eq!(server.writer(&one, json!({})).await.status, 200);
    assert_eq!(server.writer(&one, json!({})).await.status, 200, "it has its place already");
    let refused = server.writer(&two, json!({})).await;
    assert!(refused.status == 412 && refused.msg().contains("its quota is 1"), "{refused:?}");
    server.without_writer(&one).await;
    assert_eq!(server.writer(&two, json!({})).await.status, 200);
    server.without_writer(&two).await;
    let set = server.client.call("PUT", &path, &json!({"branches": null, "bytes": 1})).await.json();
    assert_eq!((&set["branches"], &set["computes"], &set["bytes"]), (&Value::Null, &json!(1), &json!(1)));
    let refused = server.branch(&new_id(), json!({})).await;
    assert!(refused.status == 412 && refused.msg().contains("bytes of layers, and its quota is 1"), "{refused:?}");
    assert_eq!(server.branch(&two, json!({})).await.status, 201, "it is there");
    server.stop().await;
}
