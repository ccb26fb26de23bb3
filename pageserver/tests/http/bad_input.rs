//! Invalid requests: each is refused with a reason, and the server stays in service.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::request;
use crate::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused_with_a_reason() {
    let server = Server::open().await;
    let tenant = format!("/v1/tenant/{}", server.tenant);
    let long_id = format!("/v1/tenant/{}", "a".repeat(5000));
    for (method, path, status, expected) in [
        ("GET", "/v1/tenants", 404, "/v1/doc"),
        ("GET", "/console/none.js", 404, "reload"),
        ("GET", "/console/computes", 404, "console_computes"),
        ("PATCH", "/v1/tenant", 405, "other methods"),
        ("GET", "/v1/tenant?limit=5", 400, "\"limit\": this path takes none"),
        ("GET", "/v1/tenant/xyz", 400, "32 hexadecimal digits"),
        ("GET", long_id.as_str(), 400, "32 hexadecimal digits"),
        ("GET", "/v1/tenant/%00%ff", 400, ""),
        ("GET", "/v1/tenant/00112233445566778899aabbccddeeff-0505", 400, "hexadecimal"),
        ("GET", "/v1/tenant/00112233445566778899aabbccddeeff/timeline", 404, "not found"),
    ] {
        let answer = server.client.call(method, path, &Value::Null).await;
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        assert!(answer.msg().contains(expected), "{method} {path}: {answer:?}");
    }
    for (below, status, expected) in [
        ("/getpage?key=&lsn=0/2000", 400, "36 hexadecimal digits"),
        ("/getpage?lsn=0/2000", 400, "key"),
        ("/getpage?key=00&lsn=5", 400, "invalid LSN"),
        ("/getpage?key=00&lsn=0/2000&lsn=0/1", 400, "duplicate"),
        ("/getpage?kye=00", 400, "\"kye\": this path takes key, lsn"),
        ("/keyspace?at_lsn=FFFFFFFF/FFFFFFFF", 412, "after the last record"),
        ("/get_timestamp_of_lsn", 400, "lsn"),
        ("/get_lsn_by_timestamp?timestamp=yesterday", 400, "RFC 3339"),
        ("/get_lsn_by_timestamp?timestamp=2026-01-01T00:00:00Z&with_lease=2", 400, "with_lease"),
        ("/follow_status", 404, "not followed"),
    ] {
        let answer = server.client.get(&server.base(below)).await;
        assert_eq!(answer.status, status, "{below}: {answer:?}");
        assert!(answer.msg().contains(expected), "{below}: {answer:?}");
    }
    let timelines = format!("{tenant}/timeline");
    let config = format!("{tenant}/location_config");
    let wait = format!("{tenant}/wait_lsn");
    let (history, archival) = (server.base("/history"), server.base("/archival_config"));
    for (method, path, body, expected) in [
        ("POST", &timelines, json!({}), "new_timeline_id"),
        ("POST", &timelines, json!([]), "JSON"),
        ("POST", &timelines, json!({"new_timeline_id": "12"}), "32 hexadecimal digits"),
        ("POST", &timelines, json!({"new_timeline_id": server.timeline, "ancestor_lsn": "0/1"}), "unknown field"),
        ("PUT", &config, json!({"mode": "Attached"}), "unknown variant"),
        ("PUT", &config, json!({"mode": "AttachedSingle", "tenant_conf": {"gc_period": "1h"}}), "unknown field"),
        ("PUT", &config, json!({"mode": "AttachedSingle", "shard_count": 2}), "shards"),
        ("PUT", &history, json!({"pitr_interval": "soon"}), "pitr_interval: \"soon\""),
        ("PUT", &history, json!({"pitr_interval": "1s 1ms"}), "no whole seconds"),
        ("PUT", &history, json!({"pitr_interval": "0s"}), "pitr_interval: must be at least 1s"),
        ("PUT", &history, json!({"pitr_interval": "101years"}), "pitr_interval: must not be above"),
        ("PUT", &history, json!({"pitr_interval": "1s", "gc_horizon": 0}), "gc_horizon: must not be 0"),
        ("PUT", &history, json!({"pitr_interval": "1s", "history_max_bytes": 63}), "at least gc_horizon, which is 64"),
        ("PUT", &history, json!({"gc_horizon": -1}), "u64"),
        ("PUT", &history, json!({"gc_horizon": "1GiB"}), "u64"),
        ("PUT", &history, json!({"gc_period": "1h"}), "unknown field"),
        ("PUT", &archival, json!({"state": "Gone"}), "unknown variant"),
        ("PUT", &archival, json!({"is_archived": true}), "unknown field"),
        ("POST", &wait, json!({"timelines": {}, "timeout": "soon"}), "timeout"),
        ("POST", &wait, json!({"timelines": {"1": "0/1"}, "timeout": "1s"}), "hexadecimal"),
    ] {
        let answer = server.client.call(method, path, &body).await;
        assert_eq!(answer.status, 400, "{path} {body}: {answer:?}");
        assert!(answer.msg().contains(expected), "{path} {body}: {answer:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_too_large_or_no_json_are_refused() {
    let server = Server::open().await;
    let path = format!("/v1/tenant/{}/timeline", server.tenant);
    let huge = server.client.raw(&request("POST", &path, None, &"x".repeat((1 << 20) + 1))).await.unwrap();
    assert_eq!(huge.status, 413);
    huge.msg();
    for body in ["", "{", "null", "\u{0}", "{\"new_timeline_id\": 1e999}"] {
        let answer = server.client.raw(&request("POST", &path, None, body)).await.unwrap();
        assert!(answer.status == 400 && answer.msg().contains("JSON"), "{body}: {answer:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_and_silence_keep_nobody_else_from_being_served() {
    let server = Server::open().await;
    let mut silent = Vec::new();
    for n in 0..50u8 {
        let mut stream = TcpStream::connect(server.client.addr).await.unwrap();
        stream.write_all(b"GET /v1/sta").await.unwrap();
        silent.push(stream);
        let garbage: Vec<u8> = (0..2000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ n).collect();
        server.client.raw(&garbage).await;
        server.client.raw(b"\x16\x03\x01\x02\x00\x01\x00").await;
    }
    assert_eq!(server.client.get("/v1/status").await.status, 200);
    let addr = server.client.addr;
    // Connections in the middle of sending a request do not delay the shutdown, since they are idle.
    drop(silent);
    server.stop().await;
    assert!(TcpStream::connect(addr).await.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_take_too_long_are_cut_off() {
    let server = Server::start(|_, options| options.request_timeout = Duration::from_millis(200)).await;
    let path = format!("/v1/tenant/{}/wait_lsn", server.tenant);
    let body = json!({"timelines": { &server.timeline: "1/0" }, "timeout": "1h"});
    let answer = server.client.call("POST", &path, &body).await;
    assert!(answer.status == 408 && answer.msg().contains("too long"), "{answer:?}");
    server.stop().await;
}
