//! Access control.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use utils::id::{TenantId, TimelineId};

use crate::client::request;
use crate::server::{Server, Signer};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_what_its_scope_allows_and_no_more() {
    let signer = Signer::new();
    let server = Server::authenticated(&signer).await;
    let http = &server.client;
    let everything = http.with_token(&signer.token("pageserverapi", None));
    let own = http.with_token(&signer.token("tenant", Some(&server.tenant)));
    let foreign = http.with_token(&signer.token("tenant", Some(&TenantId::generate().to_string())));
    let forged = http.with_token(&Signer::new().token("pageserverapi", None));
    let other_service = http.with_token(&signer.token("safekeeperdata", None));

    assert_eq!(http.get("/v1/status").await.status, 200, "liveness needs no token");
    for (path, of_tenant) in
        [("/v1/tenant".to_owned(), false), (server.base(""), true), (server.base("/layers.svg"), true)]
    {
        assert_eq!(http.get(&path).await.status, 401, "{path}");
        assert_eq!(everything.get(&path).await.status, 200, "{path}");
        assert_eq!(own.get(&path).await.status, if of_tenant { 200 } else { 403 }, "{path}");
        assert_eq!(foreign.get(&path).await.status, 403, "{path}");
        for client in [&forged, &other_service, &http.with_token("x"), &http.with_token("")] {
            let refused = client.get(&path).await;
            assert_eq!((refused.status, refused.msg().as_str()), (401, "JWT authentication error"));
        }
    }
    let branch = json!({"new_timeline_id": TimelineId::generate().to_string(),
        "ancestor_timeline_id": server.timeline});
    let path = format!("/v1/tenant/{}/timeline", server.tenant);
    assert_eq!(foreign.call("POST", &path, &branch).await.status, 403);
    assert_eq!(foreign.call("DELETE", &server.base(""), &Value::Null).await.status, 403);
    assert_eq!(own.call("POST", &path, &branch).await.status, 201);
    assert_eq!(own.call("POST", "/v1/reload_auth_validation_keys", &Value::Null).await.status, 403);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_tenant_takes_a_scope_of_its_own() {
    let signer = Signer::new();
    let server = Server::authenticated(&signer).await;
    let http = &server.client;
    let with = |scope: &str, tenant: &str| http.with_token(&signer.token(scope, Some(tenant)));
    let (own, admin) = (with("tenant", &server.tenant), with("tenant_admin", &server.tenant));
    let other_admin = with("tenant_admin", &TenantId::generate().to_string());
    let tenant = format!("/v1/tenant/{}", server.tenant);
    let branch = TimelineId::generate().to_string();
    let made = json!({"new_timeline_id": branch, "ancestor_timeline_id": server.timeline});
    assert_eq!(own.call("POST", &format!("{tenant}/timeline"), &made).await.status, 201);
    assert_eq!(own.call("DELETE", &format!("{tenant}/timeline/{branch}"), &Value::Null).await.status, 200, "a branch");

    let attached = json!({"mode": "AttachedSingle"});
    for (method, path, body) in [
        ("DELETE", tenant.clone(), Value::Null),
        ("PUT", format!("{tenant}/location_config"), attached.clone()),
        ("DELETE", server.base(""), Value::Null),
    ] {
        for client in [&own, &other_admin] {
            let refused = client.call(method, &path, &body).await;
            assert_eq!((refused.status, refused.msg().contains("forbidden")), (403, true), "{method} {path}");
        }
        assert_eq!(http.call(method, &path, &body).await.status, 401, "{method} {path}");
    }
    assert_eq!(own.get(&server.base("")).await.status, 200, "nothing is gone");
    let absent = format!("{tenant}/timeline/{}", TimelineId::generate());
    assert_eq!(own.call("DELETE", &absent, &Value::Null).await.status, 404);

    assert_eq!(admin.call("GET", "/v1/tenant", &Value::Null).await.status, 403, "of its own tenant only");
    assert_eq!(admin.call("PUT", &format!("{tenant}/location_config"), &attached).await.status, 200);
    assert_eq!(admin.call("DELETE", &server.base(""), &Value::Null).await.status, 200);
    assert_eq!(admin.call("DELETE", &tenant, &Value::Null).await.status, 200);
    server.stop().await;
}

/// Reads until the server closes the connection, which must happen soon.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(15), stream.read_to_end(&mut bytes)).await;
    read.expect("the connection must end").unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Two connections with one token: an idle one, and one with a request that would take an hour.
async fn idle_and_busy(server: &Server, token: &str) -> [TcpStream; 2] {
    let get = format!("GET {} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n", server.base(""));
    let wait = json!({"timelines": { &server.timeline: "1/0" }, "timeout": "1h"}).to_string();
    let path = format!("/v1/tenant/{}/wait_lsn", server.tenant);
    let mut idle = TcpStream::connect(server.client.addr).await.unwrap();
    let mut busy = TcpStream::connect(server.client.addr).await.unwrap();
    for stream in [&mut idle, &mut busy] {
        stream.write_all(get.as_bytes()).await.unwrap();
        assert!(stream.read(&mut [0; 8192]).await.unwrap() > 0, "served, and kept open");
    }
    busy.write_all(&request("POST", &path, Some(token), &wait)).await.unwrap();
    [idle, busy]
}

#[tokio::test(flavor = "multi_thread")]
async fn open_connections_end_with_the_token() {
    let signer = Signer::new();
    let server = Server::authenticated(&signer).await;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    // Clocks may differ by a minute: each token is valid for that long after its expiry.
    let short = signer.token_until("tenant", Some(&server.tenant), Some(now - 57.0));
    let long = signer.token_until("tenant", Some(&server.tenant), Some(now + 3600.0));
    let [mut idle, mut busy] = idle_and_busy(&server, &short).await;
    let [mut other_idle, _other_busy] = idle_and_busy(&server, &long).await;
    assert_eq!(rest(&mut idle).await, "");
    let told = rest(&mut busy).await;
    assert!(told.starts_with("HTTP/1.1 401") && told.contains("good no more"), "{told}");
    let more = tokio::time::timeout(Duration::from_millis(500), other_idle.read(&mut [0; 10])).await;
    assert!(more.is_err(), "those of other tokens go on: {more:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_connections_end_with_the_key() {
    let (old, new) = (Signer::new(), Signer::new());
    let server = Server::authenticated(&old).await;
    let [mut idle, mut busy] = idle_and_busy(&server, &old.token("tenant", Some(&server.tenant))).await;
    let everything = server.client.with_token(&old.token("pageserverapi", None));
    let reload = "/v1/reload_auth_validation_keys";
    assert_eq!(everything.call("POST", reload, &Value::Null).await.status, 200, "the same keys");
    let more = tokio::time::timeout(Duration::from_millis(300), idle.read(&mut [0; 10])).await;
    assert!(more.is_err(), "{more:?}");
    new.write_key(&server.dir.path().join("key.pem"));
    // A caller that withdraws its own key gets either a success or a refusal.
    let last = everything.call("POST", reload, &Value::Null).await;
    assert!([200, 401].contains(&last.status), "{last:?}");
    assert_eq!(rest(&mut idle).await, "");
    let told = rest(&mut busy).await;
    assert!(told.starts_with("HTTP/1.1 401") && told.contains("good no more"), "{told}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_a_bearer_token_is_refused() {
    let server = Server::authenticated(&Signer::new()).await;
    for header in ["Basic dXNlcjpwdw==", "Bearer", "bearer ", "x\u{e9}y", "Bearer a\r\nAuthorization: Bearer b"] {
        let request =
            format!("GET /v1/tenant HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: {header}\r\n\r\n");
        let answer = server.client.raw(request.as_bytes()).await.unwrap();
        assert_eq!(answer.status, 401, "{header}: {answer:?}");
        assert!(!answer.text().contains(header), "what was given is not repeated");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_replaced_without_a_restart() {
    let (old, new) = (Signer::new(), Signer::new());
    let server = Server::authenticated(&old).await;
    let with = |signer: &Signer| server.client.with_token(&signer.token("pageserverapi", None));
    let reload = "/v1/reload_auth_validation_keys";
    assert_eq!(with(&new).get("/v1/tenant").await.status, 401);

    std::fs::write(server.dir.path().join("key.pem"), "rubbish").unwrap();
    let failed = with(&old).call("POST", reload, &Value::Null).await;
    assert!(failed.status == 412 && failed.msg().contains("key.pem"), "{failed:?}");
    assert_eq!(with(&old).get("/v1/tenant").await.status, 200, "the old key stays");

    new.write_key(&server.dir.path().join("key.pem"));
    assert_eq!(with(&old).call("POST", reload, &Value::Null).await.json(), json!({"keys": 1}));
    assert_eq!(with(&old).get("/v1/tenant").await.status, 401);
    assert_eq!(with(&new).get("/v1/tenant").await.status, 200);
    server.stop().await;

    let open = Server::open().await;
    assert_eq!(open.client.call("POST", reload, &Value::Null).await.status, 412);
    open.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_names_are_refused_only_where_no_token_is_needed() {
    let asking = |path: &str, host: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let open = Server::open().await;
    for path in ["/v1/tenant", "/v1/status", "/metrics", "/", "/console/app.js", "/nowhere"] {
        let answer = open.client.raw(asking(path, "evil.example").as_bytes()).await.unwrap();
        assert!(answer.status == 403 && answer.msg().contains("allowed_hosts"), "{path}: {answer:?}");
        assert_ne!(open.client.raw(asking(path, "127.0.0.1:1").as_bytes()).await.unwrap().status, 403, "{path}");
    }
    let absolute = "GET http://evil.example/v1/tenant HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(open.client.raw(absolute.as_bytes()).await.unwrap().status, 403);
    // A client that says nothing is no browser.
    let old = "GET /v1/tenant HTTP/1.0\r\n\r\n";
    assert_eq!(open.client.raw(old.as_bytes()).await.unwrap().status, 200);
    open.stop().await;

    let guarded = Server::authenticated(&Signer::new()).await;
    assert_eq!(guarded.client.raw(asking("/v1/status", "evil.example").as_bytes()).await.unwrap().status, 200);
    assert_eq!(guarded.client.raw(asking("/v1/tenant", "evil.example").as_bytes()).await.unwrap().status, 401);
    guarded.stop().await;
}
