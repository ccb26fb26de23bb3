//! Who may do what.

use serde_json::{Value, json};
use utils::id::{TenantId, TimelineId};

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
