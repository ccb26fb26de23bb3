//! What a standby has of a compute's WAL, and the owner of the branch has not, although the compute is lost: whoever
//! starts another one in its place has it handed over first.

use bytes::{Bytes, BytesMut};
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::failure::Failure;
use super::intake::Beginning;
use super::{WalReceivers, journaled};
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::manager::ManageError;
use engine::tenant::timeline::Timeline;
use pgdata::ingest::pipeline::{IntakeError, WalPiece};

impl WalReceivers {
    /// WAL of the compute `writer` that this server has as a standby of a timeline, from the byte at `from` on, of
    /// about `most` bytes. It receives no more from that compute for a while: another one is about to take its place.
    ///
    /// # Errors
    /// [`ManageError::NotFound`] if this server has none of it.
    pub async fn hand_over(
        &self,
        (tenant, timeline): (TenantShardId, TimelineId),
        writer: &str,
        from: Lsn,
        most: usize,
    ) -> Result<Bytes, ManageError> {
        let none = |why: &str| ManageError::NotFound(format!("no WAL of timeline {timeline} from {from} on: {why}"));
        let is_standby = self.inner.manager.standbys().iter().any(|(standby, _)| *standby == tenant);
        let Some(standing) = self.inner.standing.as_ref().filter(|_| is_standby) else {
            return Err(none("this server is no standby with a journal"));
        };
        if !standing.seal((tenant, timeline), writer).await? {
            return Err(none("what the journal has is of another writer"));
        }
        let mut replay = standing.lane((tenant, timeline)).replay(from);
        let mut wal = BytesMut::new();
        while wal.len() < most
            && let Some((_, bytes)) = replay.next().await?
        {
            wal.extend_from_slice(&bytes);
        }
        Ok(wal.freeze())
    }

    /// Takes in WAL of a timeline's writer, which is lost, as a standby has it, from the byte at `from` on. Returns the
    /// end of the last record afterwards.
    ///
    /// # Errors
    /// [`ManageError::Precondition`] unless `from` is the beginning of the page in which the timeline ends.
    pub async fn take_over(&self, timeline: &Timeline, from: Lsn, bytes: Bytes) -> Result<Lsn, ManageError> {
        // Nothing of the writer itself comes meanwhile; its receiver is started again afterwards.
        let _changing = self.inner.writers.lock().await;
        if let Some(Err(error)) = timeline.remote().map(|remote| remote.check_lease()) {
            return Err(ManageError::Busy(error.to_string()));
        }
        let id = (timeline.tenant_shard_id(), timeline.timeline_id());
        self.halt(id).await;
        let busy = |failure: Failure| ManageError::Busy(format!("what the journal has was not taken in: {failure}"));
        if let Some(lane) = self.lane(id) {
            journaled::replay(timeline, &lane).await.map_err(busy)?;
        }
        let beginning = Beginning::load(timeline).await.map_err(busy)?;
        if beginning.feed_lsn() != from {
            let reason = format!("timeline {} goes on from {}, not from {from}", id.1, beginning.feed_lsn());
            return Err(ManageError::Precondition(reason));
        }
        let intake = beginning.start();
        // If it has ended, it says why.
        let _ = intake.pieces().send(WalPiece { start: from, bytes }).await;
        let (progress, taken_in) = intake.finish().await;
        // The journal does not have it, and must not look as if it had.
        let ctx = RequestContext::new(TaskKind::WalReceiverConnectionHandler, DownloadBehavior::Error);
        timeline.flush(&ctx).await?;
        match taken_in {
            Ok(()) => Ok(progress.last_record),
            Err(IntakeError::Wal(error)) => Err(ManageError::Precondition(format!("this is no WAL of it: {error}"))),
            Err(error) => Err(ManageError::Busy(error.to_string())),
        }
    }
}
