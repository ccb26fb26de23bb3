//! Client of the management interface.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use camino::Utf8Path;
use serde_json::Value;
use traces::Parent;
use ureq::http::{Request, Response};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, AsSendBody};

/// Exceeds the server's default time limit for any request.
const TIMEOUT: Duration = Duration::from_secs(310);
/// How long a server may take to say which tenants it has.
const LOOK: Duration = Duration::from_secs(3);

/// What a server says that is not the owner of a tenant, or may not be.
const NOT_OWNER: [&str; 2] = ["not the owner", "another server has taken the tenant over"];

/// Client of one server, or of several that are each other's standbys. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Client {
    agent: Agent,
    limit: Duration,
    bases: Arc<[String]>,
    /// The number of the one that has answered last.
    at: Arc<AtomicUsize>,
    token: Option<String>,
    /// What its calls are part of.
    caller: Option<Parent>,
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
    /// `server` is an address such as `http://127.0.0.1:9898`, or several of them, separated by commas.
    pub(crate) fn new(server: &str, token: Option<String>, ca_file: Option<&Utf8Path>) -> anyhow::Result<Self> {
        let mut config = Agent::config_builder().http_status_as_error(false).proxy(None);
        match (server.contains("https://"), ca_file) {
            (true, Some(path)) => config = config.tls_config(trusting(path)?),
            (true, None) => bail!("{server}: say with --ca-file which certificates to trust"),
            (false, _) => {}
        }
        let bases = server.split(',').map(|base| base.trim().trim_end_matches('/').to_owned()).collect();
        Ok(Self { agent: config.build().into(), limit: TIMEOUT, bases, at: Arc::default(), token, caller: None })
    }

    /// The same client with a time limit of `limit` per call.
    pub(super) fn within(&self, limit: Duration) -> Self {
        Self { limit, ..self.clone() }
    }

    /// The same client, whose calls are part of somebody's trace.
    pub(super) fn on_behalf_of(&self, caller: Option<Parent>) -> Self {
        Self { caller, ..self.clone() }
    }

    pub(super) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call("GET", path, None)
    }

    /// The server that is asked first.
    fn base(&self) -> &str {
        self.bases.get(self.at.load(Ordering::Relaxed)).map_or("", String::as_str)
    }

    /// Makes a call and returns the JSON of the answer. Errors carry the server's message.
    pub(crate) fn call(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let bytes = self.bytes(method, path, body)?;
        serde_json::from_slice(&bytes).with_context(|| format!("{}{path}: the answer is not JSON", self.base()))
    }

    /// Makes a call and returns the bytes of the answer: of the first server that can be reached, and is the owner of
    /// what is asked about.
    pub(crate) fn bytes(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Vec<u8>> {
        let first = self.at.load(Ordering::Relaxed);
        let mut failed = None;
        for number in (0..self.bases.len()).map(|more| (first + more) % self.bases.len()) {
            let Some(base) = self.bases.get(number) else { continue };
            match self.bytes_of(base, method, path, body) {
                Err(Failed::Elsewhere(error)) => failed = failed.or(Some(error)),
                Err(Failed::Here(error)) => return Err(error),
                Ok(bytes) => {
                    self.at.store(number, Ordering::Relaxed);
                    return Ok(bytes);
                }
            }
        }
        Err(failed.unwrap_or_else(|| anyhow::anyhow!("no pageserver is given: say with --server where it is")))
    }

    fn bytes_of(&self, base: &str, method: &str, path: &str, body: Option<&Value>) -> Result<Vec<u8>, Failed> {
        let mut request = Request::builder().method(method).uri(format!("{base}{path}"));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if let Some(caller) = self.caller {
            request = request.header("traceparent", caller.to_string());
        }
        let here = |error: ureq::http::Error| Failed::Here(error.into());
        let answer = match body {
            Some(body) => {
                let request = request.header("Content-Type", "application/json").body(body.to_string());
                self.run(request.map_err(here)?)
            }
            None if method == "GET" || method == "DELETE" => self.run(request.body(()).map_err(here)?),
            None => self.run(request.body("").map_err(here)?),
        };
        let answer = answer.with_context(|| format!("cannot reach the pageserver at {base}"));
        checked(base, path, answer.map_err(Failed::Elsewhere)?)
    }

    /// Asks the server first that is the owner of a tenant, where there are several.
    pub(crate) fn find_owner(&self) {
        for (number, base) in self.bases.iter().enumerate().filter(|_| self.bases.len() > 1) {
            let asked = self.within(LOOK).bytes_of(base, "GET", "/v1/tenant", None);
            let tenants = asked.ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
            let mut tenants = tenants.iter().flat_map(|tenants| tenants.as_array()).flatten();
            if tenants.any(|tenant| tenant["state"]["slug"] == "Active") {
                return self.at.store(number, Ordering::Relaxed);
            }
        }
    }

    /// One client for each server.
    pub(super) fn each(&self) -> Vec<Self> {
        let one = |base: &String| Self { bases: Arc::new([base.clone()]), at: Arc::default(), ..self.clone() };
        self.bases.iter().map(one).collect()
    }

    /// Has the owner take in bytes.
    pub(super) fn put_bytes(&self, path: &str, bytes: &[u8]) -> anyhow::Result<Value> {
        let base = self.base();
        let mut request = Request::builder().method("PUT").uri(format!("{base}{path}"));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let request = request.header("Content-Type", "application/octet-stream").body(bytes)?;
        let answer = self.run(request).with_context(|| format!("cannot reach the pageserver at {base}"))?;
        let bytes = checked(base, path, answer).map_err(|failed| match failed {
            Failed::Elsewhere(error) | Failed::Here(error) => error,
        })?;
        serde_json::from_slice(&bytes).with_context(|| format!("{base}{path}: the answer is not JSON"))
    }

    fn run(&self, request: Request<impl AsSendBody>) -> Result<Response<ureq::Body>, ureq::Error> {
        self.agent.run(self.agent.configure_request(request).timeout_global(Some(self.limit)).build())
    }
}

/// Why a call failed.
enum Failed {
    /// Another server may answer.
    Elsewhere(anyhow::Error),
    /// This one has refused.
    Here(anyhow::Error),
}

fn checked(base: &str, path: &str, mut answer: Response<ureq::Body>) -> Result<Vec<u8>, Failed> {
    let status = answer.status();
    let bytes = answer.body_mut().with_config().limit(u64::MAX).read_to_vec();
    let bytes = bytes.with_context(|| format!("{base}{path}: the answer breaks off")).map_err(Failed::Here)?;
    if status.is_success() {
        return Ok(bytes);
    }
    let said: Option<Value> = serde_json::from_slice(&bytes).ok();
    match said.as_ref().and_then(|body| body["msg"].as_str()) {
        Some(msg) => {
            let refusal = Refusal { status: status.as_u16(), msg: msg.to_owned() }.into();
            let is_elsewhere = NOT_OWNER.iter().any(|words| msg.contains(words));
            Err(if is_elsewhere { Failed::Elsewhere(refusal) } else { Failed::Here(refusal) })
        }
        None => Err(Failed::Here(anyhow::anyhow!("{base}{path}: {status}"))),
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
