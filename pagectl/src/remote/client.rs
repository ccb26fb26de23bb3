//! Client of the management interface.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use camino::Utf8Path;
use serde_json::Value;
use ureq::http::{Request, Response};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, AsSendBody};

/// Exceeds the server's default time limit for any request.
const TIMEOUT: Duration = Duration::from_secs(310);

/// Client of one server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Client {
    agent: Agent,
    limit: Duration,
    base: String,
    token: Option<String>,
}

/// An answer that is an error, with the server's message.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    msg: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.msg, self.status)
    }
}

impl std::error::Error for Refusal {}

impl Client {
    /// `server` is an address such as `http://127.0.0.1:9898`.
    pub(crate) fn new(server: &str, token: Option<String>, ca_file: Option<&Utf8Path>) -> anyhow::Result<Self> {
        let mut config = Agent::config_builder().http_status_as_error(false).proxy(None);
        match (server.starts_with("https://"), ca_file) {
            (true, Some(path)) => config = config.tls_config(trusting(path)?),
            (true, None) => bail!("{server}: say with --ca-file which certificates to trust"),
            (false, _) => {}
        }
        let base = server.trim_end_matches('/').to_owned();
        Ok(Self { agent: config.build().into(), limit: TIMEOUT, base, token })
    }

    /// The same client with a time limit of `limit` per call.
    pub(super) fn within(&self, limit: Duration) -> Self {
        Self { limit, ..self.clone() }
    }

    pub(super) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call("GET", path, None)
    }

    /// Makes a call and returns the JSON of the answer. Errors carry the server's message.
    pub(crate) fn call(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let bytes = self.bytes(method, path, body)?;
        serde_json::from_slice(&bytes).with_context(|| format!("{}{path}: the answer is not JSON", self.base))
    }

    /// Makes a call and returns the bytes of the answer.
    pub(crate) fn bytes(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Vec<u8>> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let answer = match body {
            Some(body) => self.run(request.header("Content-Type", "application/json").body(body.to_string())?),
            None if method == "GET" || method == "DELETE" => self.run(request.body(())?),
            None => self.run(request.body("")?),
        };
        let answer = answer.with_context(|| format!("cannot reach the pageserver at {}", self.base))?;
        self.checked(path, answer)
    }

    fn run(&self, request: Request<impl AsSendBody>) -> Result<Response<ureq::Body>, ureq::Error> {
        self.agent.run(self.agent.configure_request(request).timeout_global(Some(self.limit)).build())
    }

    fn checked(&self, path: &str, mut answer: Response<ureq::Body>) -> anyhow::Result<Vec<u8>> {
        let status = answer.status();
        let bytes = answer.body_mut().with_config().limit(u64::MAX).read_to_vec();
        let bytes = bytes.with_context(|| format!("{}{path}: the answer breaks off", self.base))?;
        if status.is_success() {
            return Ok(bytes);
        }
        let said: Option<Value> = serde_json::from_slice(&bytes).ok();
        match said.as_ref().and_then(|body| body["msg"].as_str()) {
            Some(msg) => Err(Refusal { status: status.as_u16(), msg: msg.to_owned() }.into()),
            None => bail!("{}{path}: {status}", self.base),
        }
    }
}

fn trusting(path: &Utf8Path) -> anyhow::Result<TlsConfig> {
    let pem = std::fs::read(path).with_context(|| format!("cannot read {path}"))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.with_context(|| format!("{path} is not PEM"))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        bail!("{path} has no certificate");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = TlsConfig::builder().root_certs(RootCerts::Specific(Arc::new(certificates)));
    Ok(config.unversioned_rustls_crypto_provider(provider).build())
}

/// Percent-encodes `text` for a query.
pub(super) fn encoded(text: &str) -> String {
    encoded_but(text, b"-._~:/")
}

/// Percent-encodes `text` as one segment of a path.
pub(super) fn encoded_segment(text: &str) -> String {
    encoded_but(text, b"-_~")
}

fn encoded_but(text: &str, plain: &[u8]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || plain.contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_encoded() {
        assert_eq!(encoded("2026-01-31 12:30:00+02:00&x=\u{e9}"), "2026-01-31%2012:30:00%2B02:00%26x%3D%C3%A9");
        assert_eq!(encoded_segment("a/b ..?"), "a%2Fb%20%2E%2E%3F");
    }

    #[test]
    fn https_needs_to_know_whom_to_trust() {
        assert!(Client::new("https://localhost:1", None, None).is_err());
        assert!(Client::new("https://localhost:1", None, Some(Utf8Path::new("/nonexistent"))).is_err());
        assert!(Client::new("http://localhost:1", None, None).is_ok());
    }
}
