//! A minimal HTTP client, so that tests can send what a proper client would not.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The message of an error.
    pub fn msg(&self) -> String {
        self.json()["msg"].as_str().unwrap_or_else(|| panic!("no msg: {self:?}")).to_owned()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// Sends `request` unchanged, and reads until the server closes the connection.
pub async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &[u8]) -> Option<Answer> {
    stream.write_all(request).await.ok()?;
    let mut bytes = Vec::new();
    // A TLS connection may end without a closing alert.
    let _ = stream.read_to_end(&mut bytes).await;
    let split = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let headers = String::from_utf8(bytes[..split].to_vec()).unwrap();
    let status = headers.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, headers: headers.to_lowercase(), body: bytes[split + 4..].to_vec() })
}

pub fn request(method: &str, path: &str, token: Option<&str>, body: &str) -> Vec<u8> {
    let auth = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{auth}Content-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// A server, and the token to use with it.
#[derive(Clone)]
pub struct Client {
    pub addr: SocketAddr,
    pub token: Option<String>,
}

impl Client {
    pub async fn raw(&self, bytes: &[u8]) -> Option<Answer> {
        exchange(TcpStream::connect(self.addr).await.unwrap(), bytes).await
    }

    pub async fn call(&self, method: &str, path: &str, body: &Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.raw(&request(method, path, self.token.as_deref(), &body)).await.expect("an answer")
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &Value::Null).await
    }

    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }
}
