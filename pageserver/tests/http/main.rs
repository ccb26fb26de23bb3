//! The management interface over real connections: its answers, its access control, and what it refuses.

mod access;
mod bad_input;
mod branches;
mod client;
mod crowds;
mod init_sql;
mod kept;
mod server;
#[path = "../../../engine/tests/stack/mod.rs"]
mod stack;
mod stored;
mod tls;

use serde_json::{Value, json};
use server::Server;
use utils::id::TimelineId;

#[tokio::test(flavor = "multi_thread")]
async fn tenants_are_made_listed_and_deleted() {
    let server = Server::open().await;
    let http = &server.client;
    let status = http.get("/v1/status").await;
    assert_eq!((status.status, &status.json()["id"]), (200, &json!(1)));
    assert!(status.headers.contains("pageserver_launch_timestamp: 20"), "{}", status.headers);

    let new = "00112233445566778899aabbccddeeff";
    let path = format!("/v1/tenant/{new}");
    let config = json!({"mode": "AttachedSingle", "generation": 1, "secondary_conf": null, "tenant_conf": {}});
    for _ in 0..2 {
        let answer = http.call("PUT", &format!("{path}/location_config"), &config).await;
        assert_eq!(answer.json(), json!({"shards": [{"shard_id": new, "node_id": 1}], "stripe_size": null}));
    }
    let listed: Vec<Value> = serde_json::from_slice(&http.get("/v1/tenant").await.body).unwrap();
    let ids: Vec<_> = listed.iter().map(|tenant| tenant["id"].as_str().unwrap()).collect();
    assert!(ids.len() == 2 && ids.contains(&new) && ids.contains(&server.tenant.as_str()), "{ids:?}");
    let found = http.get(&path).await.json();
    assert_eq!((&found["state"]["slug"], &found["timelines"]), (&json!("Active"), &json!([])));

    assert_eq!(http.call("DELETE", &path, &Value::Null).await.status, 200);
    assert_eq!(http.call("DELETE", &path, &Value::Null).await.status, 200, "deletion may be repeated");
    assert_eq!(http.get(&path).await.status, 404);
    for mode in ["AttachedMulti", "AttachedStale", "Detached"] {
        let answer = http.call("PUT", &format!("{path}/location_config"), &json!({"mode": mode})).await;
        assert!(answer.status == 400 && answer.msg().contains("not supported"), "{answer:?}");
    }
    let answer = http.call("PUT", &format!("{path}/location_config"), &json!({"mode": "Secondary"})).await;
    assert!(answer.status == 412 && answer.msg().contains("needs a bucket"), "{answer:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn timelines_are_branched_at_lsns_and_moments_and_deleted_from_the_leaves() {
    let server = Server::open().await;
    let http = &server.client;
    let all = format!("/v1/tenant/{}/timeline", server.tenant);
    let trunk = http.get(&server.base("")).await.json();
    assert_eq!(trunk["last_record_lsn"], "0/2900");
    assert_eq!(trunk["disk_consistent_lsn"], "0/2900");
    assert_eq!(trunk["min_readable_lsn"], "0/1000");
    assert_eq!((&trunk["state"], &trunk["pg_version"]), (&json!("Active"), &json!(15)));

    let branch_at = async |extra: Value| {
        let id = TimelineId::generate().to_string();
        let mut body = json!({"new_timeline_id": id, "ancestor_timeline_id": server.timeline});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        (id, http.call("POST", &all, &body).await, body)
    };
    for (extra, lsn) in [
        (json!({}), "0/2900"),
        (json!({"ancestor_start_lsn": "0/2200", "pg_version": 15}), "0/2200"),
        (json!({"ancestor_start_timestamp": "2026-01-01T00:00:03.5Z"}), "0/23F8"),
        (json!({"ancestor_start_timestamp": "2026-01-01T02:00:03.5+02:00"}), "0/23F8"),
        (json!({"ancestor_start_timestamp": "2026-01-02T00:00:00Z"}), "0/2900"),
    ] {
        let (id, answer, body) = branch_at(extra).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        let made = answer.json();
        assert_eq!((&made["ancestor_lsn"], &made["timeline_id"]), (&json!(lsn), &json!(id)));
        assert_eq!(http.call("POST", &all, &body).await.status, 201, "the same again");
        let other = json!({"new_timeline_id": id, "ancestor_timeline_id": server.timeline,
            "ancestor_start_lsn": "0/2010"});
        assert_eq!(http.call("POST", &all, &other).await.status, 409, "not the same");
    }
    for (extra, status) in [
        (json!({"ancestor_start_lsn": "0/10"}), 406),
        (json!({"ancestor_start_lsn": "0/99999"}), 406),
        (json!({"ancestor_start_timestamp": "2025-12-31T23:59:59Z"}), 406),
        (json!({"ancestor_start_timestamp": "9025-12-31T23:59:59Z"}), 406),
        (json!({"ancestor_start_timestamp": "soon"}), 400),
        (json!({"ancestor_start_timestamp": "2026-01-01T00:00:03Z", "ancestor_start_lsn": "0/2200"}), 400),
        (json!({"pg_version": 16}), 400),
        (json!({"read_only": true}), 400),
        (json!({"ancestor_timeline_id": null}), 400),
        (json!({"ancestor_timeline_id": TimelineId::generate().to_string()}), 404),
    ] {
        let (_, answer, body) = branch_at(extra).await;
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        answer.msg();
    }

    let children = http.get(&server.base("")).await.json()["children"].as_array().unwrap().clone();
    assert_eq!(children.len(), 5);
    let refused = http.call("DELETE", &server.base(""), &Value::Null).await;
    assert!(refused.status == 412 && refused.msg().contains("5 branches"), "{refused:?}");
    for child in children {
        let path = format!("{all}/{}", child.as_str().unwrap());
        assert_eq!(http.call("DELETE", &path, &Value::Null).await.status, 200);
        assert_eq!(http.get(&path).await.status, 404);
    }
    assert_eq!(http.call("DELETE", &server.base(""), &Value::Null).await.status, 200);
    assert_eq!(http.call("DELETE", &server.base(""), &Value::Null).await.status, 404);
    assert_eq!(http.get(&all).await.json(), json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_is_detached_and_the_trunk_goes() {
    let server = Server::open().await;
    let http = &server.client;
    let all = format!("/v1/tenant/{}/timeline", server.tenant);
    let id = TimelineId::generate().to_string();
    let body = json!({"new_timeline_id": id, "ancestor_timeline_id": server.timeline, "ancestor_start_lsn": "0/2200"});
    assert_eq!(http.call("POST", &all, &body).await.status, 201);
    let branch = format!("{all}/{id}");
    let detach = async |path: &str| http.call("PUT", &format!("{path}/detach_ancestor"), &Value::Null).await;
    let hold = http.call("PUT", &format!("{branch}/holds/early"), &json!({"lsn": "0/2010"})).await;
    assert_eq!(hold.status, 200, "{hold:?}");
    let reparent = format!("{branch}/detach_ancestor?detach_behavior=no-ancestor-and-reparent");
    assert_eq!(http.call("PUT", &reparent, &Value::Null).await.status, 400);
    for (path, status, says) in [
        (server.base(""), 412, "not a branch"),
        (format!("{all}/{}", TimelineId::generate()), 404, "not found"),
        (branch.clone(), 412, "early"),
    ] {
        let answer = detach(&path).await;
        assert!(answer.status == status && answer.msg().contains(says), "{path}: {answer:?}");
    }
    assert_eq!(http.call("DELETE", &format!("{branch}/holds/early"), &Value::Null).await.status, 200);
    for _ in 0..2 {
        let answer = detach(&branch).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json(), json!({"reparented_timelines": []}));
        let info = http.get(&branch).await.json();
        assert_eq!((&info["ancestor_timeline_id"], &info["detach"]), (&Value::Null, &Value::Null));
        assert_eq!((&info["detached_lsn"], &info["min_readable_lsn"]), (&json!("0/2200"), &json!("0/2200")));
    }
    let early = http.call("POST", &format!("{branch}/lsn_lease"), &json!({"lsn": "0/2010"})).await;
    assert!(early.status == 412 && early.msg().contains("detached"), "{early:?}");
    assert_eq!(http.get(&server.base("")).await.json()["children"], json!([]));
    assert_eq!(http.call("DELETE", &server.base(""), &Value::Null).await.status, 200);
    assert_eq!(http.get(&branch).await.json()["state"], "Active");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lsns_are_found_leased_and_waited_for() {
    let server = Server::open().await;
    let http = &server.client;
    let find = async |moment: &str, more: &str| {
        http.get(&server.base(&format!("/get_lsn_by_timestamp?timestamp={moment}{more}"))).await.json()
    };
    for (moment, lsn, kind) in [
        ("2026-01-01T00:00:02Z", "0/22F8", "present"),
        ("2026-01-01T02:00:02%2B02:00", "0/22F8", "present"),
        ("2025-01-01T00:00:00Z", "0/1000", "past"),
        ("2027-01-01T00:00:00Z", "0/2900", "future"),
    ] {
        assert_eq!(find(moment, "").await, json!({"lsn": lsn, "kind": kind, "valid_until": null}), "{moment}");
    }
    let leased = find("2026-01-01T00:00:02Z", "&with_lease=true").await;
    assert!(leased["valid_until"].as_str().unwrap().ends_with('Z'), "{leased}");

    let when = async |lsn: &str| http.get(&server.base(&format!("/get_timestamp_of_lsn?lsn={lsn}"))).await;
    assert_eq!(when("0/2250").await.json(), "2026-01-01T00:00:02.000000Z");
    assert_eq!(when("0/1800").await.status, 412, "no commit yet");
    assert_eq!(when("0/9999999").await.status, 412, "not yet there");
    assert_eq!(when("0/10").await.status, 412, "before the copy was consistent");

    let lease = async |lsn: &str| http.call("POST", &server.base("/lsn_lease"), &json!({"lsn": lsn})).await;
    assert!(lease("0/2200").await.json()["valid_until"].is_string());
    assert_eq!(lease("0/10").await.status, 412);

    let path = format!("/v1/tenant/{}/wait_lsn", server.tenant);
    let other = TimelineId::generate().to_string();
    let wait = async |timelines: Value| {
        http.call("POST", &path, &json!({"timelines": timelines, "timeout": "50ms"})).await.status
    };
    assert_eq!(wait(json!({ &server.timeline: "0/2900" })).await, 200);
    assert_eq!(wait(json!({ &server.timeline: "0/2901" })).await, 404);
    assert_eq!(wait(json!({ &server.timeline: "0/2900", &other: "0/1" })).await, 202);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_and_pages_are_shown() {
    let server = Server::open().await;
    let http = &server.client;
    let layers = http.get(&server.base("/layer")).await.json();
    let historic = layers["historic_layers"].as_array().unwrap();
    let images: Vec<_> = historic.iter().filter(|layer| layer["kind"] == "Image").collect();
    assert_eq!((historic.len(), images.len()), (3, 2), "{layers}");
    assert!(images.iter().all(|layer| layer["lsn_start"] == "0/1000" && layer["lsn_end"].is_null()));
    let picture = http.get(&server.base("/layers.svg")).await;
    assert!(picture.headers.contains("content-type: image/svg+xml") && picture.text().contains("L0 delta: 1"));

    let key = stack::keys()[0];
    let page = http.get(&server.base(&format!("/getpage?key={key}&lsn=0/2000"))).await;
    assert_eq!((page.status, page.body.len(), page.body[0]), (200, 8192, 0x55));
    let touched = http.get(&server.base(&format!("/touchpage?key={key}"))).await;
    assert_eq!(touched.json(), json!({"bytes": 8192}));
    let absent = "017F00000000000000000000000000000000";
    assert_eq!(http.get(&server.base(&format!("/getpage?key={absent}"))).await.status, 404);
    assert_eq!(http.get(&server.base(&format!("/getpage?key={key}&lsn=0/10"))).await.status, 412);
    assert_eq!(http.get(&server.base("/getpage?key=12")).await.status, 400);

    let durable = http.call("PUT", &server.base("/checkpoint"), &Value::Null).await.json();
    assert_eq!(durable, json!({"disk_consistent_lsn": "0/2900"}));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_documentation_are_open_to_all() {
    let server = Server::authenticated(&server::Signer::new()).await;
    let http = &server.client;
    let metrics = http.get("/metrics").await;
    assert!(metrics.headers.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{}", metrics.headers);
    let labels = format!("tenant_id=\"{}\",shard_id=\"0000\",timeline_id=\"{}\"", server.tenant, server.timeline);
    for line in [
        format!("pageserver_last_record_lsn{{{labels}}} 10496"),
        format!("pageserver_layers{{{labels},level=\"l1\",kind=\"image\"}} 2"),
        "pageserver_tenant_states{state=\"Active\"} 1".to_owned(),
        "# TYPE pageserver_http_requests_total counter".to_owned(),
    ] {
        assert!(metrics.text().lines().any(|found| found == line), "{line} is not in\n{}", metrics.text());
    }
    let asked =
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: application/openmetrics-text\r\n\r\n";
    let open = http.raw(asked).await.unwrap();
    assert!(open.headers.contains("content-type: application/openmetrics-text; version=1.0.0"), "{}", open.headers);
    assert!(open.text().ends_with("# EOF\n") && metrics.text().ends_with("# EOF\n"));
    let document = http.get("/v1/openapi.json").await.json();
    assert_eq!(document["openapi"].as_str().map(|version| &version[..2]), Some("3."));
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 20 && paths.contains_key("/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/layers.svg"));
    assert_eq!(http.get("/swagger.yml").await.json(), document);
    let page = http.get("/v1/doc").await;
    assert!(paths.keys().all(|path| page.text().contains(path.as_str())));
    server.stop().await;
}
