//! One connection of a standby: what comes is checked, appended to the journal, and acknowledged when that is synced.

use std::time::{Duration, Instant};

use pq_proto::client::ClientError;
use pq_proto::replication::{PhysicalEvent, PhysicalStream, ReplicationClient, StandbyStatus};
use tokio::sync::watch;
use utils::lsn::Lsn;
use wal_decoder::stream::WalStreamDecoder;

use super::follower::{Follower, Last};
use super::position::{Position, drain};
use crate::walreceiver::failure::{Failure, SILENCE_MAX, in_time};
use crate::walreceiver::history::History;
use crate::walreceiver::session::identify;
use crate::walreceiver::slot;
use crate::walreceiver::status::WalReceiverState;
use engine::tenant::timeline::RecordLsn;
use metrics::METRICS;

/// Maximum interval of status messages to the server...
const STATUS_PERIOD: Duration = Duration::from_secs(10);
/// ... how often it is looked whether one is due...
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// ... and after how much silence the server is asked for a reply.
const SILENCE_ASK: Duration = Duration::from_secs(30);

/// Receives WAL until that fails, or the follower is told to end. The server may go on with another timeline of its
/// own: then the next session follows that.
pub(super) async fn run(follower: &Follower, last: &mut Last) -> Result<(), Failure> {
    tokio::select! {
        ended = receive(follower, last) => ended,
        () = follower.cancel.cancelled() => Ok(()),
    }
}

async fn receive(follower: &Follower, last: &mut Last) -> Result<(), Failure> {
    check_room(follower)?;
    check_beginning(follower)?;
    let bucket = follower.bucket();
    let mut position = match *last {
        Some(known) if known.holds(&follower.lane, bucket) => known,
        _ => Position::find(&follower.lane, bucket, &follower.origin).await?,
    };
    *last = Some(position);
    let stream = connect(follower, &mut position).await?;
    // What is behind the last record may come in another way, and all of it where a page has no beginning.
    let from = if position.has_page { position.end.last } else { position.end.last.page_start() };
    follower.lane.void(if position.has_page { from } else { Lsn(0) }).await?;
    let mut session = Session {
        follower,
        stream,
        decoder: position.decoder(&follower.origin)?,
        from,
        received: position.end.last,
        synced: follower.lane.watch(),
        heard: env::clock::now(),
        sent: (env::clock::now(), StandbyStatus::default()),
    };
    let ended = session.pump().await;
    // The journal has the page of each record that has come since, once what was appended is synced.
    position.advance(&session.decoder);
    position.has_page = true;
    *last = Some(position);
    ended
}

/// A standby whose journal is full acknowledges nothing: what it has is needed, and goes when the bucket has it.
fn check_room(follower: &Follower) -> Result<(), Failure> {
    if !follower.lane.is_crowded() {
        return Ok(());
    }
    METRICS.standby_full.inc();
    let bucket = follower.bucket().last;
    Err(Failure::Transient(format!(
        "the journal is full (journal_size), and the bucket has only what is before {bucket}: nothing more is received"
    )))
}

/// What was before a writer is in the bucket as soon as the writer is registered there, unless there was no standby
/// then. The writer itself does not have it.
fn check_beginning(follower: &Follower) -> Result<(), Failure> {
    let (bucket, start) = (follower.bucket().last, follower.source.writer().map(|writer| writer.start_lsn));
    match start.filter(|start| *start > bucket) {
        Some(start) => Err(Failure::Transient(format!(
            "what the branch has before its writer began, at {start}, is not in the bucket yet, which ends at {bucket}"
        ))),
        None => Ok(()),
    }
}

/// Opens the stream of WAL behind the last record, from a server that passes all checks.
async fn connect(follower: &Follower, position: &mut Position) -> Result<PhysicalStream, Failure> {
    let mut plain = slot::connect(&follower.source).await?;
    slot::end_namesakes(&mut plain, &follower.name).await?;
    plain.close().await;
    let mut config = follower.source.config()?;
    config.application_name(&follower.name);
    let client = ReplicationClient::connect(&config).await?;
    in_time("asking the server for its WAL", start(follower, position, client)).await
}

async fn start(
    follower: &Follower,
    position: &mut Position,
    mut client: ReplicationClient,
) -> Result<PhysicalStream, Failure> {
    let identity = identify(&mut client, &follower.origin).await?;
    if fault::planted(fault::Bug::StandbyLeavesGap) {
        *position = Position::of_bucket(RecordLsn { last: identity.flush_lsn, prev: Lsn::INVALID });
    }
    let last = position.end.last;
    let history = History::ask(&mut client, identity.timeline).await?;
    let timeline = match position.timeline {
        Some(known) => history.locate(known, last).map_err(|diverged| Failure::Wrong(diverged.to_string()))?,
        None => history.at(last),
    };
    if identity.flush_lsn < last {
        let end = identity.flush_lsn;
        return Err(Failure::Transient(format!("the server's WAL ends at {end}, and {last} is here: waiting for it")));
    }
    Ok(client.start_physical(None, last.page_start(), timeline).await?)
}

struct Session<'a> {
    follower: &'a Follower,
    stream: PhysicalStream,
    decoder: WalStreamDecoder,
    /// What is before is in the journal, or in the bucket.
    from: Lsn,
    received: Lsn,
    synced: watch::Receiver<Lsn>,
    heard: Instant,
    /// The last status message, and when it was sent.
    sent: (Instant, StandbyStatus),
}

impl Session<'_> {
    async fn pump(&mut self) -> Result<(), Failure> {
        let mut ticks = env::clock::interval(LOOK_PERIOD);
        // It counts from now on for those who wait.
        self.report(false).await?;
        loop {
            tokio::select! {
                event = self.stream.next() => match event? {
                    PhysicalEvent::XLogData { start, server_end, bytes } => {
                        check_room(self.follower)?;
                        self.take(start, &bytes)?;
                        self.hear(server_end);
                        self.follower.lane.room().await;
                    }
                    PhysicalEvent::KeepAlive { server_end, reply_requested } => {
                        self.hear(server_end);
                        if reply_requested {
                            self.report(false).await?;
                        }
                    }
                    PhysicalEvent::EndOfTimeline { .. } => return self.next_timeline(),
                },
                Ok(()) = self.synced.changed() => self.report(false).await?,
                _ = ticks.tick() => self.tick().await?,
            }
        }
    }

    /// Appends a piece of WAL, once it is seen that it continues what is here.
    fn take(&mut self, start: Lsn, bytes: &bytes::Bytes) -> Result<(), Failure> {
        self.decoder.feed_at(start, bytes.clone())?;
        drain(&mut self.decoder)?;
        let known = usize::try_from(self.from.0.saturating_sub(start.0)).unwrap_or(usize::MAX).min(bytes.len());
        self.follower.lane.append(start + known as u64, bytes.slice(known..));
        self.received = self.received.max(start + bytes.len() as u64);
        Ok(())
    }

    fn next_timeline(&self) -> Result<(), Failure> {
        if self.decoder.decoded_lsn() == self.decoder.feed_lsn() {
            return Ok(());
        }
        Err(Failure::Transient("the server went on with another timeline in the middle of a record".to_owned()))
    }

    fn hear(&mut self, server_end: Lsn) {
        self.heard = env::clock::now();
        let mut progress = self.follower.progress.lock();
        let is_whole = self.received >= server_end;
        progress.state = if is_whole { WalReceiverState::Streaming } else { WalReceiverState::CatchingUp };
        (progress.received, progress.server_end, progress.error) = (self.received, Some(server_end), None);
    }

    async fn tick(&mut self) -> Result<(), Failure> {
        let now = env::clock::now();
        let silent = now.saturating_duration_since(self.heard);
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

    /// No reader sees anything here, so that only counts as visible which every later owner can read at once.
    fn standing(&self, reply_requested: bool) -> StandbyStatus {
        let apply = self.follower.bucket().last;
        let synced = if fault::planted(fault::Bug::StandbyBeforeSync) { self.received } else { *self.synced.borrow() };
        let flush = synced.max(apply);
        StandbyStatus { write: self.received.max(flush), flush, apply, reply_requested }
    }

    async fn report(&mut self, reply_requested: bool) -> Result<(), Failure> {
        self.synced.mark_unchanged();
        let status = self.standing(reply_requested);
        in_time("telling the server what has arrived", self.stream.send_status(status)).await?;
        self.sent = (env::clock::now(), status);
        Ok(())
    }
}
