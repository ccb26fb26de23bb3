//! One timeline that is followed.

use journal::Lane;
use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::position::Position;
use super::status::StandbyStatus;
use crate::walreceiver::failure::Failure;
use crate::walreceiver::mark::Mark;
use crate::walreceiver::source::WalSource;
use crate::walreceiver::status::WalReceiverState;
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
    pub(super) id: (TenantShardId, TimelineId),
    pub(super) source: WalSource,
    /// The name under which it connects.
    pub(super) name: String,
    /// Who has written what the journal has.
    mark: Mark,
    pub(super) lane: Lane,
    pub(super) origin: Origin,
    /// The last record that the bucket has.
    bucket: Mutex<RecordLsn>,
    pub(super) progress: Mutex<Progress>,
    pub(super) cancel: CancellationToken,
}

impl Follower {
    pub(super) fn new(
        id: (TenantShardId, TimelineId),
        source: WalSource,
        name: String,
        mark: Mark,
        lane: Lane,
        known: &TimelineElsewhere,
        cancel: CancellationToken,
    ) -> Self {
        let progress =
            Progress { state: WalReceiverState::Connecting, received: Lsn::INVALID, server_end: None, error: None };
        let (bucket, progress) = (Mutex::new(known.end), Mutex::new(progress));
        Self { id, source, name, mark, lane, origin: known.origin, bucket, progress, cancel }
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
        // How far the server is by now is not known.
        (progress.state, progress.server_end, progress.error) = (state, None, Some(error));
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
    pub(super) async fn begin(&self) -> Result<(), Failure> {
        let own = self.source.writer_mark();
        if self.mark.read().await?.as_ref() != Some(&own) {
            self.lane.void(Lsn(0)).await?;
            self.mark.write(&own).await?;
        }
        Ok(())
    }
}

/// Where the last session ended.
pub(super) type Last = Option<Position>;
