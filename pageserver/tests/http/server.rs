//! A server over a store with one timeline.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use camino::Utf8Path;
use camino_tempfile::Utf8TempDir;
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::Timeline;
use pageserver::auth::{Auth, KeyRing};
use pageserver::follow::FollowJobs;
use pageserver::http::{self, ConsoleOptions, Hosts, HttpOptions, Sources};
use pageserver::walreceiver::WalReceivers;
use pageserver_api::key::COMMIT_TIME_KEY;
use pageserver_api::value::Value;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::client::Client;
use crate::stack::{config, context, import, new_timeline};

/// Microseconds from 2000 to 2026-01-01 00:00 UTC.
const YEAR_2026: i64 = 820_540_800_000_000;

pub struct Server {
    pub client: Client,
    pub manager: TenantManager,
    pub tenant: String,
    pub timeline: String,
    pub dir: Utf8TempDir,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

/// Signs tokens.
pub struct Signer(Ed25519KeyPair);

impl Signer {
    pub fn new() -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).unwrap())
    }

    pub fn write_key(&self, path: &Utf8Path) {
        let mut der = vec![0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
        der.extend(self.0.public_key().as_ref());
        let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der));
        std::fs::write(path, pem).unwrap();
    }

    /// Has a server require tokens that this signs.
    pub fn require(&self, dir: &Utf8Path, options: &mut HttpOptions) {
        self.write_key(&dir.join("key.pem"));
        let keys = Arc::new(KeyRing::load(dir.join("key.pem")).unwrap());
        options.auth = Auth::jwt(Arc::clone(&keys));
        options.keys = Some(keys);
    }

    pub fn token(&self, scope: &str, tenant: Option<&str>) -> String {
        self.token_until(scope, tenant, None)
    }

    /// A token that says who holds it.
    pub fn token_of(&self, subject: &str, scope: &str, tenant: Option<&str>) -> String {
        self.sign(&json!({"scope": scope, "tenant_id": tenant, "sub": subject}))
    }

    /// A token that expires at `exp`, in seconds since 1970.
    pub fn token_until(&self, scope: &str, tenant: Option<&str>, exp: Option<f64>) -> String {
        self.sign(&json!({"scope": scope, "tenant_id": tenant, "exp": exp}))
    }

    fn sign(&self, claims: &serde_json::Value) -> String {
        let signed =
            [json!({"alg": "EdDSA"}), claims.clone()].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(self.0.sign(signed.as_bytes())))
    }
}

impl Server {
    pub async fn open() -> Self {
        Self::start(|_, _| {}).await
    }

    /// A server that requires tokens signed by `signer`.
    pub async fn authenticated(signer: &Signer) -> Self {
        Self::start(|dir, options| signer.require(dir, options)).await
    }

    pub async fn start(adapt: impl FnOnce(&Utf8Path, &mut HttpOptions)) -> Self {
        let dir = camino_tempfile::tempdir().unwrap();
        let conf = config(dir.path(), 1 << 20);
        let new = new_timeline();
        let (timeline, _) = import(conf, new).await.unwrap();
        commits(&timeline).await;
        let manager = TenantManager::load_idle(conf).await.unwrap();
        timeline.shutdown().await;
        manager.shutdown().await;
        let manager = TenantManager::load_idle(conf).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client { addr: listener.local_addr().unwrap(), token: None };
        let mut options = HttpOptions {
            auth: Auth::trust(),
            keys: None,
            tls: None,
            max_connections: 100,
            request_timeout: Duration::from_secs(30),
            hosts: Hosts::new(["x"]),
            public_url: None,
            console: Some(ConsoleOptions::default()),
            max_branches: 0,
            audit: None,
        };
        adapt(dir.path(), &mut options);
        let cancel = CancellationToken::new();
        let receivers = WalReceivers::new(manager.clone());
        let sources = Sources::new(FollowJobs::new(manager.clone(), receivers.clone()), receivers);
        let serving = http::serve(listener, options, manager.clone(), sources, cancel.clone());
        let task = tokio::spawn(serving);
        let (tenant, timeline) = (new.tenant_shard_id.to_string(), new.timeline_id.to_string());
        Self { client, manager, tenant, timeline, dir, cancel, task }
    }

    /// The path of the timeline, followed by `below`.
    pub fn base(&self, below: &str) -> String {
        format!("/v1/tenant/{}/timeline/{}{below}", self.tenant, self.timeline)
    }

    pub async fn stop(self) {
        self.stop_and_keep().await;
    }

    /// Stops it; what it has stored is there as long as this is.
    pub async fn stop_and_keep(self) -> Utf8TempDir {
        self.cancel.cancel();
        tokio::time::timeout(Duration::from_secs(10), self.task).await.expect("the server ends").unwrap();
        self.manager.shutdown().await;
        self.dir
    }
}

/// Ten commits, one per second from the start of 2026, at LSNs 0x2000, 0x2100...; made durable.
async fn commits(timeline: &Timeline) {
    for n in 0..10 {
        let lsn = Lsn(0x2000 + n * 0x100);
        let mark = (YEAR_2026 + n as i64 * 1_000_000).to_be_bytes();
        let mut batch = SerializedValueBatch::default();
        batch.put_key(&COMMIT_TIME_KEY, lsn, &Value::Image(mark.to_vec().into())).unwrap();
        timeline.put_batch(batch, &context()).await.unwrap();
        timeline.finish_write(lsn, lsn - 8);
    }
    timeline.flush(&context()).await.unwrap();
}
