//! One connection to the server: checks, then WAL until something ends it.

use std::future::poll_fn;
use std::pin::pin;
use std::time::{Duration, Instant};

use journal::Lane;
use parking_lot::Mutex;
use pq_proto::client::ClientError;
use pq_proto::replication::{PhysicalEvent, PhysicalStream, ReplicationClient, StandbyStatus, SystemIdentity};
use pq_proto::sqlstate::SqlState;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utils::lsn::Lsn;

use super::failure::{Failure, SILENCE_MAX, in_time};
use super::history::History;
use super::intake::Beginning;
use super::journaled::{self, JournalWatch, Journaled};
use super::mark::Mark;
use super::slot;
use super::source::WalSource;
use super::status::{StatusCell, WalReceiverState, WalReceiverStatus};
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::timeline::{Origin, RecordLsn, Timeline};
use metrics::{self, IngestStage, Stopwatch};
use pgdata::ingest::pipeline::{IntakeError, WalIntake, WalPiece};

/// Maximum interval of status messages to the server...
const STATUS_PERIOD: Duration = Duration::from_secs(10);
/// ... and the interval at which progress is reported.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);
/// Commits may wait until changes are visible to readers (`remote_apply`), so the server is told of this at once, but
/// not more often than this.
const APPLY_PERIOD: Duration = Duration::from_millis(5);
/// A server that has been silent for this long is asked for a reply...
const SILENCE_ASK: Duration = Duration::from_secs(30);
/// How long to wait for an unwanted slot to become idle, so that it can be dropped.
const DROP_SLOT_MAX: Duration = Duration::from_secs(20);
/// A server that asks again this soon after an answer is shutting down: it waits for `flush` to reach the end of its
/// WAL.
const ASKED_AGAIN: Duration = Duration::from_millis(300);
/// Pause after a flush that failed.
const FLUSH_PAUSE: Duration = Duration::from_millis(500);
/// How long a server that is shutting down waits for the journal before its WAL is written to layers.
const JOURNAL: Duration = Duration::from_secs(2);
/// Time limit for the upload that a server waits for while shutting down.
const UPLOAD: Duration = Duration::from_secs(20);
/// Time limit for an upload before the final status message.
const GOODBYE_UPLOAD: Duration = Duration::from_secs(5);
/// Maximum number of times that the slot is freed, in case someone else takes it again.
const FREES_MAX: u32 = 3;
/// Pause after freeing the slot.
const FREE_PAUSE: Duration = Duration::from_millis(50);
/// Time limit for the final status message when the receiver stops.
const GOODBYE: Duration = Duration::from_secs(2);

/// The state of a receiver.
pub(super) struct Receiver {
    pub(super) timeline: Timeline,
    pub(super) source: WalSource,
    /// The id of this server.
    pub(super) server: &'static str,
    pub(super) status: StatusCell,
    /// Its part of the journal, if there is one.
    pub(super) lane: Option<Lane>,
    /// Who has written what that has.
    pub(super) mark: Mark,
    /// When the attempt that is going on began; `None` in the pause before the next one.
    pub(super) begun: Mutex<Option<Instant>>,
    /// Ends the pause before the next attempt.
    pub(super) hurry: Notify,
    pub(super) cancel: CancellationToken,
}

impl Receiver {
    /// Its status at this moment.
    pub(super) fn read_status(&self) -> WalReceiverStatus {
        self.status.read(&self.timeline, self.lane.as_ref())
    }
}

/// How a session ended without a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The receiver was stopped.
    Stopped,
    /// The server switched to another WAL timeline at this LSN.
    NextTimeline(u32, Lsn),
}

/// Receives WAL until the receiver is stopped or something fails.
pub(super) async fn run(receiver: &Receiver) -> Result<Ended, Failure> {
    let mut fenced = receiver.timeline.remote().map(|remote| remote.watch_fenced());
    check_owner(&receiver.timeline)?;
    if let Some(lane) = &receiver.lane {
        journaled::replay(&receiver.timeline, lane).await?;
    }
    let beginning = Beginning::load(&receiver.timeline).await?;
    let stored = beginning.last_record();
    let (stream, slots) = connect(receiver, &beginning).await?;
    let (keeping, is_kept) = watch::channel(false);
    let journaled = begin_journal(receiver, &beginning, is_kept).await?;
    let session = Session {
        receiver,
        stream,
        received: stored,
        journal_watch: journaled.as_ref().map(Journaled::watch),
        journaled,
        durable: receiver.timeline.watch_disk_consistent(),
        remote: receiver.timeline.watch_remote_consistent(),
        applied: receiver.timeline.watch_record_lsn(),
        last_message: env::clock::now(),
        sent: (env::clock::now(), StandbyStatus::default()),
        is_mute: false,
        asked: None,
        flushing: None,
    };
    let keep = async {
        match receiver.lane {
            Some(_) => {
                let Receiver { timeline, source, server, status, .. } = receiver;
                journaled::keep(timeline, source, server, status, &keeping).await
            }
            None if slots.is_kept_left => journaled::let_go(&receiver.timeline, &receiver.source).await,
            None => std::future::pending().await,
        }
    };
    let ended = tokio::select! {
        ended = session.run(beginning.start(), &mut fenced) => ended,
        never = keep => match never {},
    };
    match ended {
        Err(failure) if failure.is_wal_removed() => Err(wal_removed(receiver, slots.is_new, stored, failure).await),
        ended => ended,
    }
}

async fn begin_journal(
    receiver: &Receiver,
    beginning: &Beginning,
    is_kept: watch::Receiver<bool>,
) -> Result<Option<Journaled>, Failure> {
    let Some(lane) = receiver.lane.clone() else { return Ok(None) };
    let own = receiver.source.writer_mark();
    tokio::select! {
        // Whoever has ended this one may be about to add to the journal what this one would make void.
        biased;
        () = receiver.cancel.cancelled() => Err(Failure::Transient("stopped".to_owned())),
        begun = Journaled::begin(lane, beginning, &receiver.mark, &own, is_kept) => begun.map(Some),
    }
}

/// If another server has taken the tenant over, that one receives its WAL, and this one would only block the slot.
pub(super) fn check_owner(timeline: &Timeline) -> Result<(), Failure> {
    match timeline.remote() {
        Some(remote) => Ok(remote.check_known()?),
        None => Ok(()),
    }
}

/// Waits until a newer generation is seen; forever without a bucket.
async fn seen(fenced: &mut Option<watch::Receiver<Option<u32>>>) {
    match fenced {
        Some(fenced) => drop(fenced.wait_for(Option::is_some).await.is_ok()),
        None => std::future::pending().await,
    }
}

/// What was found of the slots.
#[derive(Clone, Copy, Default)]
struct Slots {
    /// The slot had to be created.
    is_new: bool,
    /// There is one that only a journal needs, and no journal.
    is_kept_left: bool,
}

/// Opens the stream of WAL after the last record, from a server that passes all checks.
async fn connect(receiver: &Receiver, beginning: &Beginning) -> Result<(PhysicalStream, Slots), Failure> {
    tokio::select! {
        connected = connect_with_slot(receiver, beginning) => connected,
        () = receiver.cancel.cancelled() => Err(Failure::Transient("stopped".to_owned())),
    }
}

/// Connects; frees the slot if it is in use and that is permitted.
async fn connect_with_slot(receiver: &Receiver, beginning: &Beginning) -> Result<(PhysicalStream, Slots), Failure> {
    let (mut slots, mut frees) = (Slots::default(), 0);
    loop {
        let failure = match connect_once(receiver, beginning, &mut slots).await {
            Ok(stream) => return Ok((stream, slots)),
            Err(failure) => failure,
        };
        match failure.sqlstate() {
            Some(SqlState::OBJECT_IN_USE) if frees < FREES_MAX => {
                slot::free(&receiver.timeline, &receiver.source).await?;
                frees += 1;
                env::clock::sleep(FREE_PAUSE * frees).await;
            }
            Some(SqlState::UNDEFINED_OBJECT) if !slots.is_new => {
                let mut client = ReplicationClient::connect(&receiver.source.config()?).await?;
                slots.is_new = in_time("making the slot", slot::make(&mut client, receiver.source.slot())).await?;
                client.close().await;
            }
            _ => return Err(failure),
        }
    }
}

async fn connect_once(
    receiver: &Receiver,
    beginning: &Beginning,
    slots: &mut Slots,
) -> Result<PhysicalStream, Failure> {
    let client = ReplicationClient::connect(&receiver.source.config()?).await?;
    let stream = in_time("asking the server for its WAL", start(receiver, beginning, client, slots)).await?;
    receiver.status.update(|status| {
        status.received_lsn = beginning.last_record();
        status.state = WalReceiverState::CatchingUp;
    });
    Ok(stream)
}

/// Starts the stream, once the server has passed all checks and has the slot.
async fn start(
    receiver: &Receiver,
    beginning: &Beginning,
    mut client: ReplicationClient,
    slots: &mut Slots,
) -> Result<PhysicalStream, Failure> {
    let (source, stored) = (&receiver.source, beginning.last_record());
    let timeline = check_server(receiver, beginning, &mut client).await?;
    slots.is_new |= slot::make_if_missing(&mut client, source.slot()).await?;
    slots.is_kept_left = receiver.lane.is_none() && slot::exists(&mut client, &source.kept_slot()).await?;
    // A compute creates its own slot once it is ready: this connection was earlier.
    if slots.is_new && source.writer().is_none() {
        let (slot, host) = (source.slot(), source.host());
        tracing::warn!("slot {slot} was missing on {host}, made it again; WAL from {stored} on is asked for");
    }
    let stream = client.start_physical(Some(source.slot()), beginning.feed_lsn(), timeline).await?;
    receiver.status.update(|status| status.postgres_timeline = Some(timeline));
    Ok(stream)
}

/// Checks that this is the right server, that it is at least as far as the store, and that it has not diverged.
/// Returns its timeline that has the next record.
async fn check_server(
    receiver: &Receiver,
    beginning: &Beginning,
    client: &mut ReplicationClient,
) -> Result<u32, Failure> {
    let stored = beginning.last_record();
    let identity = identify(client, receiver.timeline.origin()).await?;
    let history = History::ask(client, identity.timeline).await?;
    let timeline = history.locate(beginning.postgres_timeline(), stored).map_err(|diverged| {
        Failure::Wrong(format!("{diverged}: the two have diverged. Follow the server anew, as another timeline"))
    })?;
    if identity.flush_lsn < stored {
        let end = identity.flush_lsn;
        return Err(Failure::Transient(format!(
            "the server's WAL ends at {end}, and {stored} is stored: waiting for it. If it was put back to an earlier \
             state, follow it anew"
        )));
    }
    Ok(timeline)
}

/// Checks that this is the server of a cluster.
pub(super) async fn identify(client: &mut ReplicationClient, origin: &Origin) -> Result<SystemIdentity, Failure> {
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
    Ok(identity)
}

/// Explains that the server no longer has the required WAL; drops the slot if it is new.
async fn wal_removed(receiver: &Receiver, slot_is_new: bool, stored: Lsn, failure: Failure) -> Failure {
    let slot = receiver.source.slot();
    if slot_is_new {
        // It would retain WAL that nobody can use.
        let dropped = drop_slot(&receiver.source).await;
        if let Err(error) = dropped {
            tracing::info!("slot {slot} was not dropped: {error}");
        }
    }
    Failure::Wrong(format!(
        "the server no longer has the WAL behind {stored}: {failure}. What is stored stays readable; to follow the \
         server again, follow it anew, as another timeline"
    ))
}

/// The process that streamed from the slot may still hold it: it exits only after it has reported the error.
async fn drop_slot(source: &WalSource) -> Result<(), Failure> {
    let mut client = ReplicationClient::connect(&source.config()?).await?;
    let dropped = env::clock::timeout(DROP_SLOT_MAX, client.drop_slot_when_idle(source.slot())).await;
    Ok(dropped.unwrap_or(Err(ClientError::Timeout("waiting until the slot is idle")))?)
}

struct Session<'a> {
    receiver: &'a Receiver,
    stream: PhysicalStream,
    received: Lsn,
    journaled: Option<Journaled>,
    journal_watch: Option<JournalWatch>,
    durable: watch::Receiver<RecordLsn>,
    /// Position in the bucket, if there is one; it then determines what is durable.
    remote: Option<watch::Receiver<Option<Lsn>>>,
    applied: watch::Receiver<RecordLsn>,
    last_message: Instant,
    /// The last status message, and when it was sent.
    sent: (Instant, StandbyStatus),
    /// Nothing was acknowledged the last time, as the lease of this server has ended: it is tried again at each tick.
    is_mute: bool,
    /// When the server last requested a reply.
    asked: Option<Instant>,
    /// A flush that the server is waiting for.
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
        // The intake processes everything it has, and makes it visible.
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

    /// Passes on pieces and answers the server, until the session ends. If the intake ends first, its failure takes
    /// precedence.
    async fn pump(&mut self, intake: &WalIntake) -> Result<Ended, Failure> {
        let sender = intake.pieces();
        let mut ticks = env::clock::interval(PROGRESS_PERIOD);
        let mut watch = metrics::ingest_stopwatch();
        loop {
            tokio::select! {
                event = next(sender, &mut self.stream, self.journaled.as_ref(), &mut watch) => match event? {
                    None => return Ok(Ended::Stopped),
                    Some((permit, PhysicalEvent::XLogData { start, server_end, bytes })) => {
                        self.received = self.received.max(start + bytes.len() as u64);
                        self.heard(server_end);
                        if let Some(journaled) = &self.journaled {
                            journaled.append(start, &bytes);
                        }
                        permit.send(WalPiece { start, bytes });
                        // Commits may wait for this (`remote_write`). With a journal they wait for that.
                        if self.journaled.is_none() && self.received >= server_end {
                            self.report(false).await?;
                        }
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
                () = journaled(&mut self.journal_watch) => self.report(false).await?,
                () = more_applied(&mut self.applied, self.sent), if !self.is_mute => self.report(false).await?,
                () = done(&mut self.flushing) => self.report(false).await?,
                _ = ticks.tick() => self.tick(sender.capacity() == 0).await?,
                () = self.receiver.cancel.cancelled() => return Ok(Ended::Stopped),
            }
        }
    }

    /// A server that is shutting down asks until all of its WAL is durable here; the answer then waits for the journal,
    /// or for a flush if there is none, or it is full or slow.
    async fn answer(&mut self, server_end: Lsn) -> Result<(), Failure> {
        let now = env::clock::now();
        let before = self.asked.replace(now);
        let again = before.is_some_and(|before| now.saturating_duration_since(before) < ASKED_AGAIN);
        if !again || self.received < server_end {
            return self.report(false).await;
        }
        if self.flushing.is_none() {
            let (timeline, journal) = (self.receiver.timeline.clone(), self.journaled.as_ref().map(Journaled::watch));
            let made = async move {
                if let Some(journal) = journal
                    && env::clock::timeout(JOURNAL, journal.reaches(server_end)).await.is_ok()
                {
                    return;
                }
                flush(timeline, UPLOAD).await;
            };
            self.flushing = Some(env::spawn::task("flush for a server that stops", made));
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
        let (safe, apply) = (timeline.durable_lsn(), timeline.last_record_lsn());
        let safe = if fault::planted(fault::Bug::ReportReceivedAsDurable) { apply } else { safe };
        // The server removes WAL up to the reported flush LSN, unless a second slot keeps it.
        assert!(safe <= apply, "durable up to {safe}, but the history is final only to {apply}");
        let journaled = self.journaled.as_ref().map_or(Lsn::INVALID, Journaled::durable);
        let (write, flush) = (self.received.max(apply), safe.max(journaled));
        StandbyStatus { write: write.max(flush), flush, apply, reply_requested }
    }

    /// A fenced pageserver acknowledges nothing more, not even what it has merely received; one whose lease has ended,
    /// nothing until it is renewed.
    async fn report(&mut self, reply_requested: bool) -> Result<(), Failure> {
        check_owner(&self.receiver.timeline)?;
        self.is_mute = self.receiver.timeline.remote().is_some_and(|remote| remote.check_lease().is_err());
        if self.is_mute {
            // It may be the owner again soon: what arrives is taken in, and acknowledged then.
            return Ok(());
        }
        let status = self.standing(reply_requested);
        in_time("telling the server what has arrived", self.stream.send_status(status)).await?;
        self.sent = (env::clock::now(), status);
        Ok(())
    }

    /// Makes everything durable and tells the server, so that it need not send it again.
    async fn goodbye(&mut self) {
        flush(self.receiver.timeline.clone(), GOODBYE_UPLOAD).await;
        // It does not matter whether the server is still listening.
        let _ = env::clock::timeout(GOODBYE, self.report(false)).await;
    }
}

/// Waits until more is applied than the server was told. Cancellation safe.
async fn more_applied(applied: &mut watch::Receiver<RecordLsn>, (at, sent): (Instant, StandbyStatus)) {
    if applied.wait_for(|record| record.last > sent.apply).await.is_err() {
        // The timeline is gone, and the session will end soon.
        return std::future::pending().await;
    }
    let passed = env::clock::now().saturating_duration_since(at);
    env::clock::sleep(APPLY_PERIOD.saturating_sub(passed)).await;
}

/// A failure has been logged where it occurred, and the flush is retried when the server asks again.
async fn flush(timeline: Timeline, upload: Duration) {
    let ctx = RequestContext::new(TaskKind::WalReceiverConnectionHandler, DownloadBehavior::Error);
    if timeline.flush(&ctx).await.is_err() {
        return env::clock::sleep(FLUSH_PAUSE).await;
    }
    timeline.wait_uploaded(upload).await;
}

/// Waits for a change; forever if there is nothing to watch.
async fn changed(watched: &mut Option<watch::Receiver<Option<Lsn>>>) {
    if let Some(watched) = watched
        && watched.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Waits until more is durable in the journal; forever without one.
async fn journaled(watch: &mut Option<JournalWatch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}

/// Waits for the end of a task; forever if there is none.
async fn done(task: &mut Option<JoinHandle<()>>) {
    match task {
        Some(running) => drop(running.await),
        None => std::future::pending().await,
    }
    *task = None;
}

/// Waits for room in the queue, and in the journal, first: a full intake stops reading of the socket. `None` if the
/// intake has ended.
async fn next<'a>(
    sender: &'a mpsc::Sender<WalPiece>,
    stream: &mut PhysicalStream,
    journaled: Option<&Journaled>,
    watch: &mut Stopwatch<IngestStage>,
) -> Result<Option<(mpsc::Permit<'a, WalPiece>, PhysicalEvent)>, Failure> {
    watch.enter(IngestStage::WaitForDecoder);
    let Ok(permit) = sender.reserve().await else { return Ok(None) };
    if let Some(journaled) = journaled {
        journaled.room().await;
    }
    let mut event = pin!(stream.next());
    let event = poll_fn(|cx| {
        watch.enter(IngestStage::Receive);
        let polled = event.as_mut().poll(cx);
        if polled.is_pending() {
            watch.enter(IngestStage::WaitForServer);
        }
        polled
    });
    tokio::select! {
        event = event => Ok(Some((permit, event?))),
        () = sender.closed() => Ok(None),
    }
}
