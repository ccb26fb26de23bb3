//! More connections than there is room for: silent, slow and working ones.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Client, request};
use crate::server::Server;

/// An answer must arrive within this time, which is far less than the time limits for silent clients.
const SOON: Duration = Duration::from_secs(8);

async fn connect(client: &Client, said: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(client.addr).await.unwrap();
    stream.write_all(said).await.unwrap();
    stream
}

async fn status_soon(client: &Client, path: &str) -> u16 {
    tokio::time::timeout(SOON, client.get(path)).await.unwrap_or_else(|_| panic!("{path}: no answer")).status
}

/// A request that takes an hour.
fn long_request(server: &Server) -> Vec<u8> {
    let body = json!({"timelines": { &server.timeline: "1/0" }, "timeout": "1h"}).to_string();
    request("POST", &format!("/v1/tenant/{}/wait_lsn", server.tenant), None, &body)
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_connections_take_nothing_from_others() {
    let server = Server::start(|_, options| options.max_connections = 16).await;
    let mut silent = Vec::new();
    for round in 0..6 {
        for said in [&b""[..], b"GET /v1/sta", b"GET /v1/status HTTP/1.1\r\nHost: x\r\n"] {
            for _ in 0..20 {
                silent.push(connect(&server.client, said).await);
            }
        }
        for path in ["/v1/status", "/metrics", "/v1/tenant"] {
            assert_eq!(status_soon(&server.client, path).await, 200, "round {round}: {path}");
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_kept_open_take_nothing_from_others() {
    let server = Server::start(|_, options| options.max_connections = 4).await;
    let mut kept = Vec::new();
    for _ in 0..200 {
        let mut stream = connect(&server.client, b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(stream.read(&mut [0; 1000]).await.unwrap() > 0, "served, and kept open");
        kept.push(stream);
    }
    assert_eq!(status_soon(&server.client, "/v1/tenant").await, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_the_limit_wait_and_probes_do_not() {
    let server = Server::start(|_, options| options.max_connections = 2).await;
    let (first, second) = (long_request(&server), long_request(&server));
    let busy = [connect(&server.client, &first).await, connect(&server.client, &second).await];
    // A request whose body does not arrive would occupy a place as well, if there were one.
    let head = format!("POST /v1/tenant/{}/timeline HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n", server.tenant);
    let slow = connect(&server.client, head.as_bytes()).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let client = server.client.clone();
    let mut waiting = tokio::spawn(async move { client.get("/v1/tenant").await.status });
    for path in ["/v1/status", "/metrics"] {
        assert_eq!(status_soon(&server.client, path).await, 200, "{path}");
    }
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut waiting).await.is_err(), "it waits");
    drop((busy, slow));
    assert_eq!(tokio::time::timeout(SOON, waiting).await.unwrap().unwrap(), 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_take_nothing_from_others() {
    let server = Server::start(|_, options| options.max_connections = 2).await;
    let mut deaf = Vec::new();
    for _ in 0..100 {
        let many = b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100);
        deaf.push(connect(&server.client, &many).await);
    }
    for path in ["/v1/status", "/metrics", "/v1/tenant"] {
        assert_eq!(status_soon(&server.client, path).await, 200, "{path}");
    }
    assert_eq!(server.client.call("GET", "/v1/tenant", &Value::Null).await.status, 200);
    server.stop().await;
}
