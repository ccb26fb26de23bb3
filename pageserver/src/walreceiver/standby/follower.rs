//! One timeline that is followed, session after session.

use std::time::Duration;

use camino::Utf8PathBuf;
use journal::Lane;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utils::lsn::Lsn;

use super::StandbyStatus;
use super::position::Position;
use super::{mark, session};
use crate::walreceiver::backoff::Backoff;
use crate::walreceiver::failure::{Failure, Remedy};
use crate::walreceiver::source::WalSource;
use crate::walreceiver::status::WalReceiverState;
use crate::walreceiver::{Id, WRONG_PERIOD};
use engine::tenant::manager::TimelineElsewhere;
use engine::tenant::timeline::{Origin, RecordLsn};

/// Where a standby is.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    pub(super) state: WalReceiverState,
    pub(super) received: Lsn,
    pub(super) server_end: Option<Lsn>,
    pub(super) error: Option<String>,
}

/// See the module's documentation.
pub(super) struct Follower {
    pub(super) id: Id,
    pub(super) source: WalSource,
    /// The name under which it connects.
    pub(super) name: String,
    /// The tenant's directory.
    place: Utf8PathBuf,
    pub(super) lane: Lane,
    pub(super) origin: Origin,
    /// The last record that the bucket has.
    bucket: Mutex<RecordLsn>,
    pub(super) progress: Mutex<Progress>,
    pub(super) cancel: CancellationToken,
}

/// One that runs.
pub(super) struct Running {
    pub(super) follower: std::sync::Arc<Follower>,
    pub(super) task: JoinHandle<()>,
}

impl Running {
    pub(super) fn begin(follower: Follower) -> Self {
        let follower = std::sync::Arc::new(follower);
        let panicked = std::sync::Arc::clone(&follower);
        let task = env::spawn::watched("WAL of another server's timeline", run(follower.clone()), move |reason| {
            panicked.failed(WalReceiverState::Failed, reason);
        });
        Self { follower, task }
    }
}

impl Follower {
    pub(super) fn new(
        id: Id,
        source: WalSource,
        name: String,
        place: Utf8PathBuf,
        lane: Lane,
        known: &TimelineElsewhere,
        cancel: CancellationToken,
    ) -> Self {
        let progress =
            Progress { state: WalReceiverState::Connecting, received: Lsn::INVALID, server_end: None, error: None };
        let (bucket, progress) = (Mutex::new(known.end), Mutex::new(progress));
        Self { id, source, name, place, lane, origin: known.origin, bucket, progress, cancel }
    }

    /// The bucket has more.
    pub(super) fn learn(&self, end: RecordLsn) {
        *self.bucket.lock() = end;
    }

    /// The last record that the bucket has.
    pub(super) fn bucket(&self) -> RecordLsn {
        *self.bucket.lock()
    }

    pub(super) fn failed(&self, state: WalReceiverState, error: String) {
        let mut progress = self.progress.lock();
        (progress.state, progress.error) = (state, Some(error));
    }

    pub(super) fn read_status(&self) -> StandbyStatus {
        let Progress { state, received, server_end, error } = self.progress.lock().clone();
        let bucket = self.bucket().last;
        let journaled_lsn = self.lane.synced().max(bucket);
        StandbyStatus {
            timeline_id: self.id.1,
            state,
            host: self.source.host(),
            name: self.name.clone(),
            bucket_lsn: bucket,
            received_lsn: received.max(journaled_lsn),
            journaled_lsn,
            server_end_lsn: server_end,
            lag_bytes: server_end.map(|end| end.0.saturating_sub(journaled_lsn.0)),
            error,
        }
    }

    /// Makes void what the journal has of another writer.
    async fn begin(&self) -> Result<(), Failure> {
        let (timeline, own) = (self.id.1, self.source.writer_mark());
        if mark::read(&self.place, timeline).await?.as_ref() != Some(&own) {
            self.lane.void(Lsn(0)).await?;
            mark::write(&self.place, timeline, &own).await?;
        }
        Ok(())
    }
}

/// Runs one session after another.
async fn run(follower: std::sync::Arc<Follower>) {
    let (mut backoff, mut last_error, mut position) = (Backoff::new(), String::new(), None);
    let mut begun = false;
    while !follower.cancel.is_cancelled() {
        let before = follower.lane.synced();
        let attempt = async {
            if !begun {
                follower.begin().await?;
            }
            begun = true;
            session::run(&follower, &mut position).await
        };
        let ended: Result<(), Failure> = attempt.await;
        if follower.lane.synced() > before {
            backoff.reset();
            last_error.clear();
        }
        let delay = match ended {
            Ok(()) => Duration::ZERO,
            Err(failure) => after(&follower, &failure, &mut backoff, &mut last_error),
        };
        tokio::select! {
            () = env::clock::sleep(delay) => {}
            () = follower.cancel.cancelled() => {}
        }
    }
    follower.progress.lock().state = WalReceiverState::Stopped;
}

/// When to try again. A repeated error is logged only once.
fn after(follower: &Follower, failure: &Failure, backoff: &mut Backoff, last_error: &mut String) -> Duration {
    let (error, remedy) = (failure.to_string(), failure.remedy());
    if error != *last_error && !follower.cancel.is_cancelled() {
        let (tenant, timeline) = follower.id;
        tracing::info!(%tenant, %timeline, "this standby receives no WAL of it, and will try again: {error}");
        last_error.clone_from(&error);
    }
    let is_passing = remedy == Remedy::Retry;
    follower.failed(if is_passing { WalReceiverState::Retrying } else { WalReceiverState::Failed }, error);
    if is_passing { backoff.delay() } else { WRONG_PERIOD }
}

/// Where the last session ended.
pub(super) type Last = Option<Position>;
