//! A pageserver's engine within the test process.

use std::time::{Duration, Instant};

use camino_tempfile::Utf8TempDir;
use engine::config::PageServerConf;
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::Timeline;
use pageserver::follow::{FollowJobs, FollowPhase, FollowRequest};
use pageserver::walreceiver::{WalReceiverState, WalReceivers};
use pageserver_api::shard::TenantShardId;
use serde_json::Value;
use test_postgres::Server;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

const LIMIT: Duration = Duration::from_secs(120);

pub struct World {
    _work: Utf8TempDir,
    conf: &'static PageServerConf,
    pub manager: TenantManager,
    pub receivers: WalReceivers,
    pub follow_jobs: FollowJobs,
    pub id: (TenantShardId, TimelineId),
}

impl World {
    pub async fn new() -> Self {
        Self::within(camino_tempfile::tempdir().unwrap(), ".").await
    }

    /// A world with its files in a directory below `work`.
    pub async fn within(work: Utf8TempDir, dir: &str) -> Self {
        // The engine's log is shown if the test fails.
        let _ = tracing_subscriber::fmt().with_test_writer().try_init();
        let mut conf = PageServerConf::dummy_conf(work.path().join(dir));
        conf.checkpoint_distance = 32 << 20;
        let conf: &'static PageServerConf = Box::leak(Box::new(conf));
        let (manager, receivers, follow_jobs) = load(conf).await;
        let id = (TenantShardId::unsharded(TenantId::generate()), TimelineId::generate());
        Self { _work: work, conf, manager, receivers, follow_jobs, id }
    }

    pub fn request(&self, connstr: String) -> FollowRequest {
        let (tenant_id, timeline_id) = (Some(self.id.0.tenant_id), Some(self.id.1));
        FollowRequest { connstr, tenant_id, timeline_id, slot: None }
    }

    /// Starts to follow a server, and waits until that has succeeded or failed.
    pub async fn follow(&self, request: FollowRequest) -> Result<(), String> {
        self.follow_jobs.start(request).map_err(|error| error.to_string())?;
        let (tenant, timeline) = self.id;
        let status = || self.follow_jobs.status(tenant, timeline).unwrap();
        until("the follow to end", || matches!(status().phase, FollowPhase::Streaming | FollowPhase::Failed)).await;
        status().error.map_or(Ok(()), Err)
    }

    pub fn timeline(&self) -> Timeline {
        self.manager.get(self.id.0, self.id.1).unwrap()
    }

    pub async fn wait_for(&self, lsn: Lsn) {
        let waited = tokio::time::timeout(LIMIT, self.timeline().wait_for_lsn(lsn)).await;
        assert!(waited.is_ok(), "WAL up to {lsn} does not come: {:?}", self.receivers.status(self.id.0, self.id.1));
    }

    /// Waits until the receiver has failed, and returns its error.
    pub async fn wait_for_failure(&self) -> String {
        let status = || self.receivers.status(self.id.0, self.id.1).unwrap();
        until("the receiver to fail", || status().state == WalReceiverState::Failed).await;
        status().last_error.unwrap()
    }

    /// Shuts everything down cleanly.
    pub async fn stop(&self) {
        self.follow_jobs.shutdown().await;
        self.receivers.shutdown().await;
        self.manager.shutdown().await;
    }

    /// Restarts everything, as a new process would.
    pub async fn restart(&mut self) {
        self.stop().await;
        (self.manager, self.receivers, self.follow_jobs) = load(self.conf).await;
        self.receivers.start_all().await;
    }

    /// Stops the server and compares all of its files.
    pub async fn verify(&self, server: &Server) {
        let last = server.current_lsn();
        server.stop();
        self.wait_for(last).await;
        // The server waits only until its last record, the checkpoint, is received; ingest may take a moment longer.
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.stop().await;
        let args = ["--workdir", self.conf.workdir.as_str(), "--json", "verify", "--pgdata", server.data().as_str()];
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_pagectl")).args(args).output().unwrap();
        let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "{text}{errors}");
        let result: Value = serde_json::from_str(&text).unwrap();
        println!("{text}");
        assert_eq!(result["different"], 0);
        assert!(result["compared"].as_u64().unwrap() > 1000, "{text}");
    }

    pub fn has_directory(&self) -> bool {
        self.conf.timeline_path(&self.id.0, &self.id.1).exists()
    }

    pub fn receiver_error(&self) -> Option<String> {
        self.receivers.status(self.id.0, self.id.1)?.last_error
    }

    pub fn receiver_state(&self) -> Option<WalReceiverState> {
        self.receivers.status(self.id.0, self.id.1).map(|status| status.state)
    }
}

async fn load(conf: &'static PageServerConf) -> (TenantManager, WalReceivers, FollowJobs) {
    let manager = TenantManager::load(conf).await.unwrap();
    let receivers = WalReceivers::new(manager.clone());
    let follow_jobs = FollowJobs::new(manager.clone(), receivers.clone());
    (manager, receivers, follow_jobs)
}

pub async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
