//! How much history a timeline keeps, and archived timelines.

use serde_json::{Value, json};
use utils::id::TimelineId;
use utils::lsn::Lsn;

use crate::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_a_timeline_are_set_and_given_back() {
    let server = Server::open().await;
    let (http, path) = (&server.client, server.base("/history"));
    let none = json!({"pitr_interval": null, "gc_horizon": null, "history_max_bytes": null});
    let before = http.get(&path).await.json();
    assert_eq!((&before["own"], &before["gc_horizon"], &before["history_max_bytes"]), (&none, &json!(64), &json!(0)));
    assert_eq!((&before["min_readable_lsn"], &before["is_archived"]), (&json!("0/1000"), &json!(false)));

    let set = async |body: Value| {
        let answer = http.call("PUT", &path, &body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    };
    // So far back that it is below what is sorted.
    let last: Lsn = http.get(&server.base("")).await.json()["last_record_lsn"].as_str().unwrap().parse().unwrap();
    let most = last.0 - 0x800;
    let answer = set(json!({"pitr_interval": "7d", "history_max_bytes": most})).await;
    assert_eq!(answer["own"], json!({"pitr_interval": "7days", "gc_horizon": null, "history_max_bytes": most}));
    assert_eq!((&answer["pitr_interval"], &answer["history_max_bytes"]), (&json!("7days"), &json!(most)));
    assert_eq!(answer["bound_by"], "history_max_bytes");
    let answer = set(json!({"gc_horizon": 100, "history_max_bytes": null})).await;
    assert_eq!(answer["own"], json!({"pitr_interval": "7days", "gc_horizon": 100, "history_max_bytes": null}));
    assert_eq!(answer["bound_by"], "pitr_interval");
    assert_eq!(set(json!({})).await["own"], answer["own"]);
    // What is refused changes nothing.
    let refused = http.call("PUT", &path, &json!({"gc_horizon": 200, "history_max_bytes": 150})).await;
    assert!(refused.status == 400 && refused.msg().contains("at least gc_horizon, which is 200"), "{refused:?}");
    assert_eq!(http.get(&path).await.json()["own"], answer["own"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeline_is_archived_after_its_branches_and_unarchived_before_them() {
    let server = Server::open().await;
    let http = &server.client;
    let all = format!("/v1/tenant/{}/timeline", server.tenant);
    let branch = TimelineId::generate().to_string();
    let new = |id: &str| json!({"new_timeline_id": id, "ancestor_timeline_id": server.timeline});
    assert_eq!(http.call("POST", &all, &new(&branch)).await.status, 201);
    let change = async |timeline: &str, state: &str| {
        http.call("PUT", &format!("{all}/{timeline}/archival_config"), &json!({"state": state})).await
    };
    let refused = change(&server.timeline, "Archived").await;
    assert!(refused.status == 412 && refused.msg().contains(&branch), "{refused:?}");
    assert_eq!(http.get(&server.base("")).await.json()["archived_at"], Value::Null);
    for timeline in [&branch, &server.timeline, &server.timeline] {
        let answer = change(timeline, "Archived").await;
        assert_eq!(answer.json(), json!({"is_archived": true, "left_slots": []}));
    }
    let listed = http.get(&server.base("")).await.json();
    assert!(listed["archived_at"].is_string() && listed["is_archived"] == true, "{listed}");
    assert_eq!(listed["state"], "Active", "it can be read");
    let refused = http.call("POST", &all, &new(&TimelineId::generate().to_string())).await;
    assert!(refused.status == 406 && refused.msg().contains("is archived"), "{refused:?}");
    assert_eq!(http.call("POST", &all, &new(&branch)).await.status, 201, "it exists");
    let refused = change(&branch, "Unarchived").await;
    assert!(refused.status == 412 && refused.msg().contains(&server.timeline), "{refused:?}");
    let window = http.get(&server.base("/history")).await.json();
    assert_eq!((&window["is_archived"], &window["min_readable_lsn"]), (&json!(true), &json!("0/1000")));
    for timeline in [&server.timeline, &branch, &branch] {
        let answer = change(timeline, "Unarchived").await;
        assert_eq!(answer.json(), json!({"is_archived": false, "left_slots": []}));
    }
    assert_eq!(change(&TimelineId::generate().to_string(), "Archived").await.status, 404);
    server.stop().await;
}
