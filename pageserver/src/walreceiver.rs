//! Follows live servers: one task for each timeline that has a stored WAL source.
//!
//! A session connects, checks that the server's history is the one stored, and asks for the WAL behind the last record.
//! Reading the socket and taking in what came are separate tasks with a bounded queue between them: while the intake is
//! slow the socket is not read, and TCP holds the server back. The server is told `write` (received), `apply` (readers
//! see it) and `flush` (durable here, or with a bucket there: its slot keeps what is above). When a session fails, the
//! next one starts anew from the last record that is stored.

mod backoff;
mod failure;
mod history;
mod intake;
mod session;
mod source;
mod status;
pub(crate) mod stored;
mod writer;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use crate::metrics::METRICS;
use crate::tenant::manager::TenantManager;
use crate::tenant::timeline::Timeline;
use backoff::Backoff;
use failure::{Failure, Remedy};
use session::{Ended, Receiver};
pub use source::WalSource;
use status::StatusCell;
pub use status::{WalReceiverState, WalReceiverStatus};
pub use writer::{NewWriter, Writer};

/// While somebody must do something, it is looked again this often.
const WRONG_PERIOD: Duration = Duration::from_secs(60);

/// The receivers of all timelines. Cheap to clone.
#[derive(Clone)]
pub struct WalReceivers {
    inner: Arc<Inner>,
}

type Id = (TenantShardId, TimelineId);

struct Inner {
    manager: TenantManager,
    running: Mutex<HashMap<Id, Running>>,
    /// Held while it changes who writes a timeline.
    writers: tokio::sync::Mutex<()>,
    cancel: CancellationToken,
}

struct Running {
    receiver: Arc<Receiver>,
    task: JoinHandle<()>,
}

impl WalReceivers {
    /// None runs yet.
    pub fn new(manager: TenantManager) -> Self {
        let (running, writers, cancel) = Default::default();
        Self { inner: Arc::new(Inner { manager, running, writers, cancel }) }
    }

    /// Starts those of all timelines with a stored WAL source.
    pub async fn start_all(&self) {
        for tenant in self.inner.manager.tenants() {
            self.start_tenant(tenant).await;
        }
    }

    /// Starts those of all timelines of a tenant with a stored WAL source.
    pub async fn start_tenant(&self, tenant: TenantShardId) {
        for timeline in self.inner.manager.timelines(tenant).unwrap_or_default() {
            match WalSource::load(timeline.dir()).await {
                Ok(Some(source)) => self.start(timeline, source).await,
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(timeline = %timeline.timeline_id(), "receives no WAL: {error}");
                }
            }
        }
    }

    /// Starts the receiver of `timeline`, in place of one that may be running.
    pub async fn start(&self, timeline: Timeline, source: WalSource) {
        let id = (timeline.tenant_shard_id(), timeline.timeline_id());
        self.stop(id.0, id.1).await;
        if self.inner.cancel.is_cancelled() {
            return;
        }
        let cancel = timeline.cancelled();
        let receiver = Arc::new(Receiver { status: StatusCell::new(&source), timeline, source, cancel });
        let task = env::spawn::task("WAL receiver", run(Arc::clone(&receiver)));
        self.inner.running.lock().insert(id, Running { receiver, task });
    }

    /// How far the receiver of a timeline is, `None` if it has none.
    pub fn status(&self, tenant: TenantShardId, timeline: TimelineId) -> Option<WalReceiverStatus> {
        let running = self.inner.running.lock();
        let receiver = &running.get(&(tenant, timeline))?.receiver;
        Some(receiver.status.read(&receiver.timeline))
    }

    /// Stops the receiver of a timeline. All that has arrived is visible and, as far as the disk permits, durable.
    pub async fn stop(&self, tenant: TenantShardId, timeline: TimelineId) {
        let running = self.inner.running.lock().remove(&(tenant, timeline));
        if let Some(Running { receiver, task }) = running {
            receiver.cancel.cancel();
            finish(task).await;
        }
    }

    /// Stops all.
    pub async fn shutdown(&self) {
        self.inner.cancel.cancel();
        let all = std::mem::take(&mut *self.inner.running.lock());
        all.values().for_each(|running| running.receiver.cancel.cancel());
        for running in all.into_values() {
            finish(running.task).await;
        }
    }
}

async fn finish(task: JoinHandle<()>) {
    if let Err(error) = task.await {
        tracing::error!("a WAL receiver failed: {error}");
    }
}

/// Session after session.
async fn run(receiver: Arc<Receiver>) {
    let mut backoff = Backoff::new();
    let mut last_error = String::new();
    loop {
        let before = receiver.timeline.last_record_lsn();
        METRICS.walreceiver_started_connections.inc();
        let ended = session::run(&receiver).await;
        if receiver.timeline.last_record_lsn() > before {
            backoff.reset();
            last_error.clear();
        }
        if receiver.cancel.is_cancelled() {
            break;
        }
        let Some(delay) = after(&receiver, ended, &mut backoff, &mut last_error) else { return };
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = receiver.cancel.cancelled() => break,
        }
    }
    receiver.status.update(|status| status.state = WalReceiverState::Stopped);
}

/// When to try again, `None` for never. An error is logged once, however often it comes.
fn after(
    receiver: &Receiver,
    ended: Result<Ended, Failure>,
    backoff: &mut Backoff,
    last_error: &mut String,
) -> Option<Duration> {
    let timeline = receiver.timeline.timeline_id();
    let failure = match ended {
        Ok(Ended::NextTimeline(next, switch)) if receiver.timeline.last_record_lsn() == switch => {
            tracing::info!(%timeline, "the server goes on with its timeline {next} at {switch}, and so do we");
            receiver.status.update(|status| status.state = WalReceiverState::Connecting);
            return Some(Duration::ZERO);
        }
        Ok(Ended::NextTimeline(next, switch)) => in_mid_record(receiver, next, switch),
        Ok(Ended::Stopped) => Failure::Transient("the session ended".to_owned()),
        Err(failure) => failure,
    };
    let (error, remedy) = (failure.to_string(), failure.remedy());
    if error != *last_error {
        match remedy {
            // Computes are followed before they answer, and come and go.
            Remedy::Retry if receiver.source.writer().is_some() => {
                tracing::info!(%timeline, "WAL of a compute does not come, will try again: {error}");
            }
            Remedy::Retry => tracing::warn!(%timeline, "WAL does not come, will try again: {error}"),
            Remedy::Wait => tracing::error!(%timeline, "WAL does not come until somebody sees to it: {error}"),
            Remedy::Stop => tracing::error!(%timeline, "no more WAL is taken in: {error}"),
        }
        last_error.clone_from(&error);
    }
    let state = if remedy == Remedy::Retry { WalReceiverState::Retrying } else { WalReceiverState::Failed };
    receiver.status.failed(state, error);
    match remedy {
        Remedy::Retry => Some(backoff.delay()),
        Remedy::Wait => Some(WRONG_PERIOD),
        Remedy::Stop => None,
    }
}

fn in_mid_record(receiver: &Receiver, next: u32, switch: Lsn) -> Failure {
    let stored = receiver.timeline.last_record_lsn();
    Failure::Transient(format!(
        "the server went on with its timeline {next} at {switch}, but the last record before ends at {stored}"
    ))
}
