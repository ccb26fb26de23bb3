//! One connection to the server: checks, then WAL until something ends it.

use std::time::{Duration, Instant};

use pq_proto::client::ClientError;
use pq_proto::replication::{PhysicalEvent, PhysicalStream, ReplicationClient, StandbyStatus};
use pq_proto::sqlstate::SqlState;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utils::lsn::Lsn;

use super::failure::Failure;
use super::history::History;
use super::intake::Beginning;
use super::slot;
use super::source::WalSource;
use super::status::{StatusCell, WalReceiverState};
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::timeline::{RecordLsn, Timeline};
use pgdata::ingest::pipeline::{IntakeError, WalIntake, WalPiece};

/// The server hears of progress at least this often...
const STATUS_PERIOD: Duration = Duration::from_secs(10);
/// ... and this often while there is any.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);
/// What readers see may be what a commit waits for (`remote_apply`): the server hears of it at once, but not more often
/// than this.
const APPLY_PERIOD: Duration = Duration::from_millis(5);
/// A server that has been silent for so long is asked for an answer...
const SILENCE_ASK: Duration = Duration::from_secs(30);
/// How long a slot that is of no use may stay in use.
const DROP_SLOT_MAX: Duration = Duration::from_secs(20);
/// ... and after so long it is taken for dead.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A server that asks again so soon after an answer waits for `flush` to reach the end of its WAL: it shuts down.
const ASKED_AGAIN: Duration = Duration::from_millis(300);
/// Before the next attempt of a flush that failed.
const FLUSH_PAUSE: Duration = Duration::from_millis(500);
/// A server that shuts down waits so long for an upload before it is asked again.
const UPLOAD: Duration = Duration::from_secs(20);
/// The last words to a server wait so long for an upload.
const GOODBYE_UPLOAD: Duration = Duration::from_secs(5);
/// A slot that was freed may be taken by somebody else once more: then it is freed again, but not more often.
const FREES_MAX: u32 = 3;
/// Until it is free.
const FREE_PAUSE: Duration = Duration::from_millis(50);
/// For the last words to a server when the receiver stops.
const GOODBYE: Duration = Duration::from_secs(2);

/// What a receiver works with.
pub(super) struct Receiver {
    pub(super) timeline: Timeline,
    pub(super) source: WalSource,
    pub(super) status: StatusCell,
    pub(super) cancel: CancellationToken,
}

/// How a session ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// As told.
    Stopped,
    /// The server went on with another timeline of its own, at this LSN.
    NextTimeline(u32, Lsn),
}

/// Receives WAL until the receiver is stopped or something fails.
pub(super) async fn run(receiver: &Receiver) -> Result<Ended, Failure> {
    let mut fenced = receiver.timeline.remote().map(|remote| remote.watch_fenced());
    check_owner(&receiver.timeline)?;
    let beginning = Beginning::load(&receiver.timeline).await?;
    let stored = beginning.last_record();
    let (stream, slot_is_new) = connect(receiver, &beginning).await?;
    let session = Session {
        receiver,
        stream,
        received: stored,
        durable: receiver.timeline.watch_disk_consistent(),
        remote: receiver.timeline.watch_remote_consistent(),
        applied: receiver.timeline.watch_record_lsn(),
        last_message: env::clock::now(),
        sent: (env::clock::now(), StandbyStatus::default()),
        asked: None,
        flushing: None,
    };
    let ended = session.run(beginning.start(), &mut fenced).await;
    match ended {
        Err(failure) if failure.is_wal_removed() => Err(wal_removed(receiver, slot_is_new, stored, failure).await),
        ended => ended,
    }
}

/// Another server that has taken the tenant over receives its WAL: this one would hold the slot.
fn check_owner(timeline: &Timeline) -> Result<(), Failure> {
    match timeline.remote() {
        Some(remote) => Ok(remote.check_known()?),
        None => Ok(()),
    }
}

/// Waits until a newer generation is seen, for ever without a bucket.
async fn seen(fenced: &mut Option<watch::Receiver<Option<u32>>>) {
    match fenced {
        Some(fenced) => drop(fenced.wait_for(Option::is_some).await.is_ok()),
        None => std::future::pending().await,
    }
}

/// The WAL behind the last record, from a server that passed all checks; and whether the slot had to be made.
async fn connect(receiver: &Receiver, beginning: &Beginning) -> Result<(PhysicalStream, bool), Failure> {
    tokio::select! {
        connected = connect_with_slot(receiver, beginning) => connected,
        () = receiver.cancel.cancelled() => Err(Failure::Transient("stopped".to_owned())),
    }
}

/// A slot that is in use is freed, if that may be done.
async fn connect_with_slot(receiver: &Receiver, beginning: &Beginning) -> Result<(PhysicalStream, bool), Failure> {
    let (mut made, mut frees) = (false, 0);
    loop {
        let failure = match connect_once(receiver, beginning, &mut made).await {
            Ok(stream) => return Ok((stream, made)),
            Err(failure) => failure,
        };
        match failure.sqlstate() {
            Some(SqlState::OBJECT_IN_USE) if frees < FREES_MAX => {
                slot::free(&receiver.timeline, &receiver.source).await?;
                frees += 1;
                env::clock::sleep(FREE_PAUSE * frees).await;
            }
            Some(SqlState::UNDEFINED_OBJECT) if !made => {
                let mut client = ReplicationClient::connect(&receiver.source.config()?).await?;
                made = slot::make(&mut client, receiver.source.slot()).await?;
                client.close().await;
            }
            _ => return Err(failure),
        }
    }
}

async fn connect_once(receiver: &Receiver, beginning: &Beginning, made: &mut bool) -> Result<PhysicalStream, Failure> {
    let (source, stored) = (&receiver.source, beginning.last_record());
    let mut client = ReplicationClient::connect(&source.config()?).await?;
    let timeline = check_server(receiver, beginning, &mut client).await?;
    *made |= slot::make_if_missing(&mut client, source.slot()).await?;
    // A compute makes its own when it is ready: this was faster.
    if *made && source.writer().is_none() {
        let (slot, host) = (source.slot(), source.host());
        tracing::warn!("slot {slot} was missing on {host}, made it again; WAL from {stored} on is asked for");
    }
    let stream = client.start_physical(Some(source.slot()), beginning.feed_lsn(), timeline).await?;
    receiver.status.update(|status| {
        status.postgres_timeline = Some(timeline);
        status.received_lsn = stored;
        status.state = WalReceiverState::CatchingUp;
    });
    Ok(stream)
}

/// The server must be the one, at least as far, and not gone another way. Returns its timeline with the next record.
async fn check_server(
    receiver: &Receiver,
    beginning: &Beginning,
    client: &mut ReplicationClient,
) -> Result<u32, Failure> {
    let (origin, stored) = (receiver.timeline.origin(), beginning.last_record());
    let (major, expected) = (client.server_major(), origin.pg_version.major());
    if major != expected {
        return Err(Failure::Wrong(format!("the server is PostgreSQL {major}, the stored cluster is of {expected}")));
    }
    let identity = client.identify_system().await?;
    if identity.system_id != origin.system_identifier {
        return Err(Failure::Wrong(format!(
            "the server is another cluster: its system identifier is {}, that of the stored one {}",
            identity.system_id, origin.system_identifier
        )));
    }
    let history = match identity.timeline {
        0 | 1 => History::only(identity.timeline),
        timeline => {
            let file = client.timeline_history(timeline).await?;
            let parsed = History::parse(timeline, &file.content);
            parsed.map_err(|reason| Failure::Wrong(format!("history file {}: {reason}", file.filename)))?
        }
    };
    let timeline = history.locate(beginning.postgres_timeline(), stored).map_err(|diverged| {
        Failure::Wrong(format!("{diverged}: the two have diverged. Attach the server anew, as another timeline"))
    })?;
    if identity.flush_lsn < stored {
        let end = identity.flush_lsn;
        return Err(Failure::Transient(format!(
            "the server's WAL ends at {end}, and {stored} is stored: waiting for it. If it was put back to an earlier \
             state, attach it anew"
        )));
    }
    Ok(timeline)
}

/// What to tell somebody whose server no longer has the WAL that is needed.
async fn wal_removed(receiver: &Receiver, slot_is_new: bool, stored: Lsn, failure: Failure) -> Failure {
    let slot = receiver.source.slot();
    if slot_is_new {
        // It would keep WAL that is of no use.
        let dropped = drop_slot(&receiver.source).await;
        if let Err(error) = dropped {
            tracing::info!("slot {slot} was not dropped: {error}");
        }
    }
    Failure::Wrong(format!(
        "the server no longer has the WAL behind {stored}: {failure}. What is stored stays readable; to follow the \
         server again, attach it anew, as another timeline"
    ))
}

/// The process that streamed from it may hold it yet: it ends after it has told why.
async fn drop_slot(source: &WalSource) -> Result<(), Failure> {
    let mut client = ReplicationClient::connect(&source.config()?).await?;
    let dropped = env::clock::timeout(DROP_SLOT_MAX, client.drop_slot_when_idle(source.slot())).await;
    Ok(dropped.unwrap_or(Err(ClientError::Timeout("waiting until the slot is idle")))?)
}

struct Session<'a> {
    receiver: &'a Receiver,
    stream: PhysicalStream,
    received: Lsn,
    durable: watch::Receiver<RecordLsn>,
    /// With a bucket, what counts.
    remote: Option<watch::Receiver<Option<Lsn>>>,
    applied: watch::Receiver<RecordLsn>,
    last_message: Instant,
    /// The last status that was sent, and when.
    sent: (Instant, StandbyStatus),
    /// When the server wanted an answer last.
    asked: Option<Instant>,
    /// A flush that the server waits for.
    flushing: Option<JoinHandle<()>>,
}

impl Session<'_> {
    async fn run(
        mut self,
        intake: WalIntake,
        fenced: &mut Option<watch::Receiver<Option<u32>>>,
    ) -> Result<Ended, Failure> {
        let ended = tokio::select! {
            ended = self.pump(&intake) => ended,
            () = seen(fenced) => check_owner(&self.receiver.timeline).map(|()| Ended::Stopped),
        };
        // The intake goes through what it has, and makes it visible.
        let (_, taken_in) = intake.finish().await;
        if let Err(error @ IntakeError::BrokeOff(_)) = &taken_in {
            self.receiver.timeline.note_panic(error.to_string());
        }
        taken_in?;
        let ended = ended?;
        if ended == Ended::Stopped {
            self.goodbye().await;
        }
        Ok(ended)
    }

    /// Hands pieces on and answers, until the end. If the intake ends first, its failure is what counts.
    async fn pump(&mut self, intake: &WalIntake) -> Result<Ended, Failure> {
        let sender = intake.pieces();
        let mut ticks = env::clock::interval(PROGRESS_PERIOD);
        loop {
            tokio::select! {
                event = next(sender, &mut self.stream) => match event? {
                    None => return Ok(Ended::Stopped),
                    Some((permit, PhysicalEvent::XLogData { start, server_end, bytes })) => {
                        self.received = self.received.max(start + bytes.len() as u64);
                        self.heard(server_end);
                        permit.send(WalPiece { start, bytes });
                    }
                    Some((_, PhysicalEvent::KeepAlive { server_end, reply_requested })) => {
                        self.heard(server_end);
                        if reply_requested {
                            self.answer(server_end).await?;
                        }
                    }
                    Some((_, PhysicalEvent::EndOfTimeline { next_timeline, switch_lsn })) => {
                        return Ok(Ended::NextTimeline(next_timeline, switch_lsn));
                    }
                },
                Ok(()) = self.durable.changed(), if self.remote.is_none() => self.report(false).await?,
                () = changed(&mut self.remote) => self.report(false).await?,
                () = more_applied(&mut self.applied, self.sent) => self.report(false).await?,
                () = done(&mut self.flushing) => self.report(false).await?,
                _ = ticks.tick() => self.tick(sender.capacity() == 0).await?,
                () = self.receiver.cancel.cancelled() => return Ok(Ended::Stopped),
            }
        }
    }

    /// A server that shuts down asks until all of its WAL is durable here: then that is the answer to wait for.
    async fn answer(&mut self, server_end: Lsn) -> Result<(), Failure> {
        let now = env::clock::now();
        let before = self.asked.replace(now);
        let again = before.is_some_and(|before| now.saturating_duration_since(before) < ASKED_AGAIN);
        if !again || self.received < server_end {
            return self.report(false).await;
        }
        if self.flushing.is_none() {
            self.flushing =
                Some(env::spawn::task("flush for a server that stops", flush(self.receiver.timeline.clone(), UPLOAD)));
        }
        Ok(())
    }

    fn heard(&mut self, server_end: Lsn) {
        self.last_message = env::clock::now();
        self.receiver.status.message(Some(self.received), server_end);
    }

    /// `busy`: nothing was read because the intake is behind.
    async fn tick(&mut self, busy: bool) -> Result<(), Failure> {
        let now = env::clock::now();
        if busy {
            self.last_message = now;
        }
        let silent = now.saturating_duration_since(self.last_message);
        if silent >= SILENCE_MAX {
            return Err(ClientError::Timeout("waiting for the server to say something").into());
        }
        let (at, sent) = self.sent;
        let due = now.saturating_duration_since(at) >= STATUS_PERIOD;
        if due || silent >= SILENCE_ASK || self.standing(sent.reply_requested) != sent {
            self.report(silent >= SILENCE_ASK).await?;
        }
        Ok(())
    }

    fn standing(&self, reply_requested: bool) -> StandbyStatus {
        let timeline = &self.receiver.timeline;
        let (flush, apply) = (timeline.durable_lsn(), timeline.last_record_lsn());
        // The server removes what it was told is durable.
        assert!(flush <= apply, "durable up to {flush}, but the history is final only to {apply}");
        StandbyStatus { write: self.received.max(apply), flush, apply, reply_requested }
    }

    /// A server that is known to be out of date acknowledges nothing more, also not what it has merely received.
    async fn report(&mut self, reply_requested: bool) -> Result<(), Failure> {
        check_owner(&self.receiver.timeline)?;
        let status = self.standing(reply_requested);
        self.stream.send_status(status).await?;
        self.sent = (env::clock::now(), status);
        Ok(())
    }

    /// Makes all durable and tells the server, so that it need not send it again.
    async fn goodbye(&mut self) {
        flush(self.receiver.timeline.clone(), GOODBYE_UPLOAD).await;
        // Whether it still listens does not matter.
        let _ = env::clock::timeout(GOODBYE, self.report(false)).await;
    }
}

/// Waits until more is applied than the server was told. Forgets nothing if it is dropped.
async fn more_applied(applied: &mut watch::Receiver<RecordLsn>, (at, sent): (Instant, StandbyStatus)) {
    if applied.wait_for(|record| record.last > sent.apply).await.is_err() {
        // The timeline is gone, and the session will be.
        return std::future::pending().await;
    }
    let passed = env::clock::now().saturating_duration_since(at);
    env::clock::sleep(APPLY_PERIOD.saturating_sub(passed)).await;
}

/// What fails was logged where it failed, and is tried again when the server asks again.
async fn flush(timeline: Timeline, upload: Duration) {
    let ctx = RequestContext::new(TaskKind::WalReceiverConnectionHandler, DownloadBehavior::Error);
    if timeline.flush(&ctx).await.is_err() {
        return env::clock::sleep(FLUSH_PAUSE).await;
    }
    timeline.wait_uploaded(upload).await;
}

/// Waits for a change, for ever if there is nothing to change.
async fn changed(watched: &mut Option<watch::Receiver<Option<Lsn>>>) {
    if let Some(watched) = watched
        && watched.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Waits for the end of a task, for ever if there is none.
async fn done(task: &mut Option<JoinHandle<()>>) {
    match task {
        Some(running) => drop(running.await),
        None => std::future::pending().await,
    }
    *task = None;
}

/// Waits for room first: a full intake stops the reading of the socket. `None` if the intake has ended.
async fn next<'a>(
    sender: &'a mpsc::Sender<WalPiece>,
    stream: &mut PhysicalStream,
) -> Result<Option<(mpsc::Permit<'a, WalPiece>, PhysicalEvent)>, Failure> {
    let Ok(permit) = sender.reserve().await else { return Ok(None) };
    tokio::select! {
        event = stream.next() => Ok(Some((permit, event?))),
        () = sender.closed() => Ok(None),
    }
}
