//! Manual moves of layers, and the scrub of a tenant, without a bucket.

use std::time::Duration;

use serde_json::{Value, json};

use crate::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn without_a_bucket_layers_stay() {
    let server = Server::open().await;
    let http = &server.client;
    let layers = http.get(&server.base("/layer")).await.json();
    let name = layers["historic_layers"][0]["layer_file_name"].as_str().unwrap().to_owned();
    let layer = server.base(&format!("/layer/{name}"));
    let refused = http.call("DELETE", &layer, &Value::Null).await;
    assert!(refused.status == 412 && refused.msg().contains("the bucket does not have"), "{refused:?}");
    for method in ["GET", "POST"] {
        let answer = http.call(method, &layer, &Value::Null).await;
        assert_eq!((answer.status, &answer.json()["resident"]), (200, &json!(true)));
    }
    let unknown = http.call("POST", &server.base("/layer/none"), &Value::Null).await;
    assert!(unknown.status == 404 && unknown.msg().contains("no such layer"), "{unknown:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrub_tells_how_far_it_is_and_what_it_has_found() {
    let server = Server::open().await;
    let http = &server.client;
    let path = format!("/v1/tenant/{}/scrub", server.tenant);
    assert_eq!(http.get(&path).await.status, 404, "there was none yet");
    assert_eq!(http.call("POST", &format!("{path}?mend=true"), &Value::Null).await.status, 400);
    let started = http.call("POST", &format!("{path}?repair=true"), &Value::Null).await;
    assert_eq!(started.status, 202, "{started:?}");
    let mut status = started.json();
    while status["state"] == "Running" {
        tokio::time::sleep(Duration::from_millis(5)).await;
        status = http.get(&path).await.json();
    }
    assert_eq!((&status["state"], &status["sound"]), (&json!("Done"), &json!(true)), "{status}");
    let report = &status["report"];
    assert!(report["files"].as_u64() > Some(0) && report["findings"] == json!([]), "{status}");
    assert_eq!(status["bytes"], status["planned_bytes"]);
    let none = http.call("POST", "/v1/tenant/00112233445566778899aabbccddeeff/scrub", &Value::Null).await;
    assert_eq!(none.status, 404);
    server.stop().await;
}
