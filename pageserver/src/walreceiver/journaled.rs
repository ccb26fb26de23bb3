//! WAL that is durable in the journal of this server before layers, or the bucket, have it. The server is told at once,
//! and its commits wait no longer; that it keeps the WAL nevertheless which is nowhere else is up to a second slot,
//! which follows the layers. Nothing that only this disk has is reported until that slot is there.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use journal::Lane;
use pq_proto::client::{Client, ClientError};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use utils::lsn::Lsn;

use super::failure::{Failure, in_time};
use super::intake::Beginning;
use super::mark::Mark;
use super::slot;
use super::source::WalSource;
use super::status::StatusCell;
use engine::tenant::timeline::Timeline;
use pgdata::ingest::pipeline::{IntakeError, WalPiece};

/// How often the second slot follows, if there is something to follow, or is asked for again.
const KEEP_PERIOD: Duration = Duration::from_secs(10);

/// How many timelines take in WAL from the journal at once.
const REPLAYS: usize = 4;
/// A start serves after this time although more WAL is to come from the journal. Whoever takes a tenant over says so.
const RECOVERY: Duration = Duration::from_secs(30);

/// How often it is looked whether the bucket has said what it has.
const FIRST_PERIOD: Duration = Duration::from_millis(200);

/// The journal's part in a session.
pub(super) struct Journaled {
    lane: Lane,
    /// What is before was there already.
    from: Lsn,
    /// Whether the server keeps what only the journal has.
    is_kept: watch::Receiver<bool>,
}

impl Journaled {
    /// Goes on after what is stored, and after what was journaled of it. What comes is of the writer `own`.
    pub(super) async fn begin(
        lane: Lane,
        beginning: &Beginning,
        mark: &Mark,
        own: &str,
        is_kept: watch::Receiver<bool>,
    ) -> Result<Self, Failure> {
        let is_marked = mark.read().await?.as_deref() == Some(own);
        if !is_marked {
            // Until all of another writer is void, what there is counts for this server alone.
            mark.remove().await?;
        }
        let (feed, stored) = (beginning.feed_lsn(), beginning.last_record());
        // Without the beginning of its page, no record could be read back.
        let is_there = lane.replay(feed).end() >= Some(stored) && !fault::planted(fault::Bug::VoidWholePage);
        let from = if is_there { stored } else { feed };
        lane.void(from).await?;
        if !is_marked {
            mark.write(own).await?;
        }
        Ok(Self { lane, from, is_kept })
    }

    /// Waits until there is room for more. Cancellation safe.
    pub(super) async fn room(&self) {
        self.lane.room().await;
    }

    /// Adds a piece of WAL.
    pub(super) fn append(&self, start: Lsn, bytes: &Bytes) {
        let known = usize::try_from(self.from.0.saturating_sub(start.0)).unwrap_or(usize::MAX).min(bytes.len());
        self.lane.append(start + known as u64, bytes.slice(known..));
    }

    /// The end of what may be called durable.
    pub(super) fn durable(&self) -> Lsn {
        let is_kept = *self.is_kept.borrow() || fault::planted(fault::Bug::ReportBeforeKept);
        if is_kept { self.lane.synced() } else { Lsn::INVALID }
    }

    /// What changes when more may be called durable.
    pub(super) fn watch(&self) -> JournalWatch {
        JournalWatch { synced: self.lane.watch(), is_kept: self.is_kept.clone() }
    }
}

/// See [`Journaled::watch`].
pub(super) struct JournalWatch {
    synced: watch::Receiver<Lsn>,
    is_kept: watch::Receiver<bool>,
}

impl JournalWatch {
    /// Waits until more may be called durable. Cancellation safe.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            Ok(()) = self.synced.changed() => {}
            Ok(()) = self.is_kept.changed() => {}
            else => std::future::pending().await,
        }
    }

    /// Waits until all before `end` may be called durable.
    pub(super) async fn reaches(mut self, end: Lsn) {
        while !*self.is_kept.borrow() || *self.synced.borrow() < end {
            self.changed().await;
        }
    }
}

/// Takes in the WAL that the journal has, and layers have not.
pub(super) async fn replay(timeline: &Timeline, lane: &Lane) -> Result<(), Failure> {
    let _turn = lane.turn().await;
    if lane.synced() <= timeline.last_record_lsn() {
        return Ok(());
    }
    let beginning = Beginning::load(timeline).await?;
    let timeline = timeline.timeline_id();
    let stored = beginning.last_record();
    let mut replay = lane.replay(beginning.feed_lsn());
    let Some(end) = replay.end().filter(|end| *end > stored) else { return Ok(()) };
    let intake = beginning.start();
    while let Some((start, bytes)) = replay.next().await? {
        if intake.pieces().send(WalPiece { start, bytes }).await.is_err() {
            break;
        }
    }
    let (progress, taken_in) = intake.finish().await;
    let reached = progress.last_record;
    match taken_in {
        Ok(()) if reached > stored => tracing::info!(%timeline, "WAL from {stored} to {reached} was in the journal"),
        Ok(()) => {}
        Err(IntakeError::Wal(error)) => {
            tracing::warn!(%timeline, "WAL in the journal from {reached} to {end} cannot be read: {error}");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Takes in what the journal has of some timelines. Returns whether all of it is there; what takes too long goes on.
pub(super) async fn replay_for_a_start<F: Future<Output = bool> + Send + 'static>(replays: Vec<F>) -> bool {
    match env::clock::timeout(RECOVERY, replay_all(replays)).await {
        Ok(done) => done.unwrap_or(false),
        Err(_) => {
            tracing::warn!("WAL in the journal is still being taken in: what is served may be older for a while");
            false
        }
    }
}

/// The same for whoever serves nobody before that has ended, however slow the disk is.
pub(super) async fn replay_to_the_end<F: Future<Output = bool> + Send + 'static>(replays: Vec<F>) {
    let mut all = replay_all(replays);
    loop {
        match env::clock::timeout(RECOVERY, &mut all).await {
            // What failed was logged, and is tried again when a server is followed.
            Ok(_) => return,
            Err(_) => tracing::warn!("WAL in the journal is still being taken in: its timelines are served after that"),
        }
    }
}

/// Goes on though nobody waits for it.
fn replay_all<F: Future<Output = bool> + Send + 'static>(replays: Vec<F>) -> JoinHandle<bool> {
    let all = futures_util::stream::iter(replays).buffer_unordered(REPLAYS);
    env::spawn::task("WAL of the journal", all.fold(true, async |all, one| all && one))
}

/// Whether all that the journal has of a timeline is there.
pub(super) async fn replay_or_warn(timeline: Timeline, lane: Lane) -> bool {
    let replayed = replay(&timeline, &lane).await.inspect_err(|failure| {
        let timeline = timeline.timeline_id();
        tracing::warn!(%timeline, "what the journal has of it was not taken in yet: {failure}");
    });
    replayed.is_ok()
}

/// Has the server keep the WAL that only the journal has, for as long as this runs.
pub(super) async fn keep(
    timeline: &Timeline,
    source: &WalSource,
    server: &str,
    status: &StatusCell,
    is_kept: &watch::Sender<bool>,
) -> Infallible {
    // A source that makes no sense has no receiver.
    let name = source.standby_name(server).unwrap_or_default();
    let (mut moved_to, mut last_error) = (Lsn::INVALID, String::new());
    loop {
        let durable = timeline.durable_lsn();
        if durable == Lsn::INVALID {
            // The bucket has not been heard of yet.
            env::clock::sleep(FIRST_PERIOD).await;
            continue;
        }
        if durable != moved_to || !*is_kept.borrow() {
            // As a standby this server may have been known under another name, and must not count twice.
            let former = (!*is_kept.borrow()).then_some(&name);
            let kept = match in_time("moving the slot", move_slot(source, durable, former)).await {
                Ok(at) if at <= durable => {
                    moved_to = durable;
                    is_kept.send_if_modified(|known| !std::mem::replace(known, true));
                    Ok(())
                }
                Ok(at) => Err(format!("it is at {at}, and this server has only what is before {durable}")),
                Err(error) => Err(error.to_string()),
            };
            let error = kept.err().unwrap_or_default();
            if error != last_error && !error.is_empty() {
                let (slot, host) = (source.kept_slot(), source.host());
                tracing::warn!(
                    timeline = %timeline.timeline_id(),
                    "commits wait until layers are durable, as slot {slot} on {host} does not keep what only the \
                     journal has: {error}"
                );
            }
            status.update(|status| status.journal_error = Some(error.clone()).filter(|it| !it.is_empty()));
            last_error = error;
        }
        env::clock::sleep(KEEP_PERIOD).await;
    }
}

/// Moves the second slot to `durable`, or makes it where the first one is. Returns where it is.
async fn move_slot(source: &WalSource, durable: Lsn, former: Option<&String>) -> Result<Lsn, Failure> {
    let mut client = slot::connect(source).await?;
    if let Some(name) = former {
        slot::end_namesakes(&mut client, name).await?;
    }
    let kept = source.kept_slot();
    let at = match position(&mut client, &kept).await? {
        Some(at) => at,
        None => {
            let made = format!("SELECT pg_catalog.pg_copy_physical_replication_slot('{}', '{kept}')", source.slot());
            client.simple_query(&made).await?;
            position(&mut client, &kept).await?.unwrap_or(Lsn::MAX)
        }
    };
    let moved = if at < durable {
        let moved = format!("SELECT pg_catalog.pg_replication_slot_advance('{kept}', '{durable}')");
        client.simple_query(&moved).await?;
        durable
    } else {
        at
    };
    client.close().await;
    Ok(moved)
}

/// From where on a slot keeps WAL.
async fn position(client: &mut Client, slot: &str) -> Result<Option<Lsn>, ClientError> {
    let asked = format!("SELECT restart_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = '{slot}'");
    let sets = client.simple_query(&asked).await?;
    let field = sets.into_iter().flat_map(|set| set.rows).next().map(|row| row.into_iter().next().flatten());
    let Some(text) = field else { return Ok(None) };
    // One that was made without reserving WAL keeps none.
    let lsn = text.and_then(|text| String::from_utf8_lossy(&text).parse().ok());
    Ok(Some(lsn.unwrap_or(Lsn::MAX)))
}

/// Removes the second slot that an earlier start with a journal has left, once the first one keeps as much.
pub(super) async fn let_go(timeline: &Timeline, source: &WalSource) -> Infallible {
    env::clock::sleep(KEEP_PERIOD * 2).await;
    if let Err(error) = in_time("dropping the slot", drop_slot(source)).await {
        tracing::warn!(
            timeline = %timeline.timeline_id(),
            "slot {} on {} is not needed any more, and keeps WAL there: {error}",
            source.kept_slot(),
            source.host()
        );
    }
    std::future::pending().await
}

async fn drop_slot(source: &WalSource) -> Result<(), Failure> {
    let mut client = slot::connect(source).await?;
    let dropped = format!(
        "SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots \
         WHERE slot_name = '{}' AND NOT active",
        source.kept_slot()
    );
    client.simple_query(&dropped).await?;
    client.close().await;
    Ok(())
}
