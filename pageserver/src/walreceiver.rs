//! Follows live servers: one task for each timeline that has a stored WAL source.
//!
//! A session connects, checks that the server's history is the stored one, and requests the WAL after the last
//! record. Reading the socket and the intake are separate tasks with a bounded queue between them: while the intake
//! is slow the socket is not read, and TCP throttles the server. The server is told the LSNs `write` (received),
//! `apply` (visible to readers) and `flush` (durable here, or, if there is a bucket, in the bucket: the server's slot
//! retains the WAL from there on; with a journal, durable in that: see `journaled`). When a session fails, the next one
//! starts over from the last stored record.

mod archival;
mod backoff;
pub(crate) mod card;
mod failure;
mod halting;
mod handover;
mod history;
pub(crate) mod init_sql;
mod intake;
mod journaled;
mod mark;
mod noting;
mod onlooker;
mod registration;
mod session;
mod slot;
mod source;
mod standby;
mod standby_reads;
mod status;
pub(crate) mod stored;
mod tail;
mod upkeep;
mod writer;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use pq_proto::sqlstate::SqlState;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use backoff::Backoff;
use engine::tenant::manager::{Journals, TenantManager};
use engine::tenant::timeline::Timeline;
use errors::StorageError;
use failure::{Failure, Remedy, WRONG_PERIOD};
use journal::Journal;
use mark::Mark;
use metrics::METRICS;
use session::{Ended, Receiver};
pub use source::{OWNER_NAME, WalSource, standby_name};
pub use standby::StandbyStatus;
use standby::{Kept, Standing};
pub use standby_reads::{StandbyRead, StandbyReads, may_be_removed};
use status::StatusCell;
pub use status::{WalReceiverState, WalReceiverStatus};
pub use stored::branch_name;
pub use writer::{NewWriter, Writer};

/// Time limit for asking the bucket who owns the tenant, after a session was terminated.
const OWNER_LOOK: Duration = Duration::from_secs(2);
/// Why a server that only reads the bucket receives nothing.
const LEFT_ALONE: &str = "this server only reads the bucket (remote_storage_scratch), and follows nobody by itself";
/// How long after its beginning a connection, and an attempt to make one, is believed to be to a server that lives.
const FRESH: Duration = Duration::from_secs(60);
const FRESH_ATTEMPT: Duration = Duration::from_secs(5);
/// Interval of the check that every timeline with a source is followed.
const LOOK_PERIOD: Duration = Duration::from_secs(5);

/// The receivers of all timelines. Cheap to clone.
#[derive(Clone)]
pub struct WalReceivers {
    inner: Arc<Inner>,
}

type Id = (TenantShardId, TimelineId);

struct Inner {
    manager: TenantManager,
    running: Mutex<HashMap<Id, Running>>,
    /// Timelines whose receivers were stopped, until they are started again.
    halted: Mutex<HashSet<Id>>,
    /// Timelines whose source is invalid.
    unfit: Mutex<HashMap<Id, WalReceiverStatus>>,
    /// Held while the writer of a timeline is changed.
    writers: tokio::sync::Mutex<()>,
    /// Another server follows what is stored.
    is_scratch: bool,
    journal: Option<Journal>,
    /// What is followed as a standby, with a journal.
    standing: Option<Arc<Standing>>,
    standby_reads: StandbyReads,
    /// It is to be looked at once whether there is more to follow.
    look: Notify,
    cancel: CancellationToken,
}

struct Running {
    receiver: Arc<Receiver>,
    task: JoinHandle<()>,
}

impl WalReceivers {
    /// Creates an empty set of receivers.
    pub fn new(manager: TenantManager) -> Self {
        Self::of(manager, false, None)
    }

    /// The same, with a journal, in which WAL is durable at once. `trim` of it is up to this set.
    pub fn with_journal(manager: TenantManager, journal: Journal) -> Self {
        Self::of(manager, false, Some(journal))
    }

    /// The same for a server that only reads the bucket: it leaves alone whoever the stored sources are, because the
    /// bucket's own server follows them. What somebody asks this server to follow, it does.
    pub fn of_scratch(manager: TenantManager) -> Self {
        Self::of(manager, true, None)
    }

    fn of(manager: TenantManager, is_scratch: bool, journal: Option<Journal>) -> Self {
        let (running, halted, unfit, writers, look) = Default::default();
        let cancel = CancellationToken::new();
        let standing = |journal: &Journal| Arc::new(Standing::new(manager.conf(), journal.clone(), cancel.clone()));
        let standing = journal.as_ref().map(standing);
        manager.begin_to_follow(standing.clone().map(|standing| Box::new(Kept(standing)) as Box<dyn Journals>));
        let standby_reads = StandbyReads::new(manager.clone(), standing.clone(), cancel.child_token());
        let inner = Inner {
            manager,
            running,
            halted,
            unfit,
            writers,
            is_scratch,
            journal,
            standing,
            standby_reads,
            look,
            cancel,
        };
        let receivers = Self { inner: Arc::new(inner) };
        receivers.take_part_in_handovers();
        receivers
    }

    /// Starts the receivers of all timelines with a stored WAL source, and from then on those of timelines that
    /// appear later, from wherever: a timeline that should follow a server does, or reports why not.
    pub async fn start_all(&self) {
        self.start_missing(&self.inner.manager.tenants()).await;
        if !self.inner.manager.conf().lease.interval.is_zero() {
            self.inner.standby_reads.begin().await;
        }
        env::spawn::vital("look after WAL receivers", self.clone().look_after());
        if let Some(journal) = &self.inner.journal {
            env::spawn::vital("size of the journal", self.clone().keep_journal_small(journal.clone()));
            if let Some(interval) = self.inner.manager.conf().bucket_tail_interval {
                env::spawn::vital("tail of the journal", self.clone().ship_tails(interval));
            }
        }
        if let Some(standing) = &self.inner.standing {
            env::spawn::vital("timelines of other servers", self.clone().stand_by(Arc::clone(standing)));
        }
    }

    async fn look_after(self) {
        let mut taken_over = self.inner.manager.watch_taken_over();
        loop {
            tokio::select! {
                () = env::clock::sleep(LOOK_PERIOD) => {}
                Ok(()) = taken_over.changed() => {}
                () = self.inner.cancel.cancelled() => return,
            }
            self.start_missing(&self.inner.manager.tenants()).await;
        }
    }

    /// Starts the receivers of all timelines of a tenant with a stored WAL source, including those that were stopped.
    pub async fn start_tenant(&self, tenant: TenantShardId) {
        self.inner.halted.lock().retain(|(halted, _)| *halted != tenant);
        self.inner.look.notify_one();
        self.start_missing(&[tenant]).await;
    }

    async fn start_missing(&self, tenants: &[TenantShardId]) {
        // A change of a timeline's writer stops its receiver temporarily.
        let _changing = self.inner.writers.lock().await;
        for timeline in tenants.iter().flat_map(|tenant| self.inner.manager.timelines(*tenant).unwrap_or_default()) {
            let id = (timeline.tenant_shard_id(), timeline.timeline_id());
            if self.is_running(&timeline) || self.inner.halted.lock().contains(&id) || timeline.is_archived() {
                continue;
            }
            match WalSource::of(&timeline) {
                Ok(Some(_)) if self.inner.is_scratch => {
                    let status = WalReceiverStatus::unfit(LEFT_ALONE.to_owned());
                    self.inner.unfit.lock().insert(id, status);
                }
                Ok(Some(source)) => self.start(timeline, source).await,
                Ok(None) => drop(self.inner.unfit.lock().remove(&id)),
                Err(error) => self.note_unfit(id, &error),
            }
        }
    }

    fn is_running(&self, timeline: &Timeline) -> bool {
        let running = self.inner.running.lock();
        let known = running.get(&(timeline.tenant_shard_id(), timeline.timeline_id()));
        // It may have been closed and reopened since.
        known.is_some_and(|known| known.receiver.timeline.instance() == timeline.instance())
    }

    fn note_unfit(&self, id: Id, error: &StorageError) {
        let status = WalReceiverStatus::unfit(error.to_string());
        if self.inner.unfit.lock().insert(id, status).is_none() {
            tracing::error!(tenant = %id.0, timeline = %id.1, "receives no WAL: {error}");
        }
    }

    /// Starts the receiver of `timeline`, replacing a running one.
    pub async fn start(&self, timeline: Timeline, source: WalSource) {
        let id = (timeline.tenant_shard_id(), timeline.timeline_id());
        self.halt(id).await;
        self.inner.halted.lock().remove(&id);
        self.inner.unfit.lock().remove(&id);
        if self.inner.cancel.is_cancelled() {
            return;
        }
        let cancel = timeline.cancelled();
        let (status, begun, hurry) = (StatusCell::new(&source), Mutex::new(None), Notify::new());
        let (conf, lane) = (self.inner.manager.conf(), self.lane(id));
        let (server, mark) = (conf.server.id.as_str(), Mark::of(conf, id));
        let receiver = Arc::new(Receiver { status, lane, mark, timeline, source, server, begun, hurry, cancel });
        let panicked = Arc::clone(&receiver);
        let task = env::spawn::watched("WAL receiver", run(Arc::clone(&receiver)), move |reason| {
            panicked.timeline.note_panic(reason.clone());
            panicked.status.failed(WalReceiverState::Failed, reason);
        });
        self.inner.running.lock().insert(id, Running { receiver, task });
    }

    /// Leaves alone a receiver that follows `source` already, if what it does may be believed to succeed; one that
    /// waits to try again tries at once. Returns whether there is such a receiver. An older connection may be to a
    /// server that is gone, and only nobody has noticed.
    fn keep(&self, timeline: &Timeline, source: &WalSource) -> bool {
        let running = self.inner.running.lock();
        let known = running.get(&(timeline.tenant_shard_id(), timeline.timeline_id()));
        let kept = known.filter(|Running { receiver, task }| {
            let is_same = receiver.timeline.instance() == timeline.instance() && receiver.source == *source;
            let is_following = receiver.read_status().is_following();
            let limit = if is_following { FRESH } else { FRESH_ATTEMPT };
            let now = env::clock::now();
            let is_fresh = receiver.begun.lock().is_none_or(|begun| now.saturating_duration_since(begun) < limit);
            is_same && is_fresh && !task.is_finished()
        });
        if let Some(Running { receiver, .. }) = kept {
            receiver.hurry.notify_one();
        }
        kept.is_some()
    }

    /// Status of a timeline's receiver; `None` if the timeline should have none.
    pub fn status(&self, tenant: TenantShardId, timeline: TimelineId) -> Option<WalReceiverStatus> {
        let running = self.inner.running.lock();
        let Some(Running { receiver, .. }) = running.get(&(tenant, timeline)) else {
            return self.inner.unfit.lock().get(&(tenant, timeline)).cloned();
        };
        Some(receiver.read_status())
    }

    /// Stops the receiver of a timeline until it is started again. Everything received is then visible and, as far as
    /// the disk permits, durable.
    pub async fn stop(&self, tenant: TenantShardId, timeline: TimelineId) {
        self.inner.halted.lock().insert((tenant, timeline));
        self.halt((tenant, timeline)).await;
    }

    async fn halt(&self, id: Id) {
        let running = self.inner.running.lock().remove(&id);
        if let Some(Running { receiver, task }) = running {
            receiver.cancel.cancel();
            finish(task).await;
        }
    }

    /// Reads of tenants of which this server is a standby.
    pub fn standby_reads(&self) -> &StandbyReads {
        &self.inner.standby_reads
    }

    /// Stops all receivers.
    pub async fn shutdown(&self) {
        self.inner.cancel.cancel();
        self.inner.standby_reads.shutdown().await;
        let all = std::mem::take(&mut *self.inner.running.lock());
        all.values().for_each(|running| running.receiver.cancel.cancel());
        for running in all.into_values() {
            finish(running.task).await;
        }
        if let Some(standing) = &self.inner.standing {
            standing.shutdown().await;
        }
        if let Some(journal) = &self.inner.journal {
            journal.shutdown().await;
        }
    }

    /// The slots that the server of a timeline goes on to keep WAL for, where `slot` is what its source says.
    pub fn slots_left(&self, slot: String) -> Vec<String> {
        let kept = self.has_journal().then(|| source::kept_slot(&slot));
        [slot].into_iter().chain(kept).collect()
    }
}

async fn finish(task: JoinHandle<()>) {
    if let Err(error) = task.await {
        tracing::error!("a WAL receiver failed: {error}");
    }
}

/// Runs one session after another.
async fn run(receiver: Arc<Receiver>) {
    let mut backoff = Backoff::new();
    let mut last_error = String::new();
    loop {
        let before = receiver.timeline.last_record_lsn();
        METRICS.walreceiver_started_connections.inc();
        *receiver.begun.lock() = Some(env::clock::now());
        let ended = session::run(&receiver).await;
        *receiver.begun.lock() = None;
        if receiver.timeline.last_record_lsn() > before {
            backoff.reset();
            last_error.clear();
        }
        if receiver.cancel.is_cancelled() {
            break;
        }
        if ended.as_ref().is_err_and(|failure| failure.sqlstate() == Some(SqlState::ADMIN_SHUTDOWN)) {
            look_for_a_new_owner(&receiver.timeline).await;
        }
        let Some(delay) = after(&receiver, ended, &mut backoff, &mut last_error) else { return };
        tokio::select! {
            () = env::clock::sleep(delay) => {}
            () = receiver.hurry.notified() => {}
            () = receiver.cancel.cancelled() => break,
        }
    }
    receiver.status.update(|status| status.state = WalReceiverState::Stopped);
}

/// Someone has terminated the session. It may have been a server that has taken the tenant over; this one must not
/// take the slot back from it.
async fn look_for_a_new_owner(timeline: &Timeline) {
    if let Some(remote) = timeline.remote() {
        // A bucket that does not answer must not delay WAL.
        let _ = env::clock::timeout(OWNER_LOOK, remote.look()).await;
    }
}

/// When to retry; `None` for never. A repeated error is logged only once.
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
            // Computes are followed before they accept connections, and come and go.
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
