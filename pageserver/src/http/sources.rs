//! WAL sources, as far as this interface needs them.

use bytes::Bytes;
use pageserver_api::shard::TenantShardId;
use serde_json::Value;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::models::{FollowBody, LeftSlot};
use crate::follow::{FollowJobs, FollowPhase, FollowRequest};
use crate::walreceiver::card::BranchCard;
use crate::walreceiver::{NewWriter, StandbyStatus, WalReceiverStatus, WalReceivers, Writer};
use engine::tenant::manager::ManageError;
use engine::tenant::timeline::Timeline;
use errors::StorageError;

/// Starts to follow servers, and receives their WAL. Cheap to clone.
#[derive(Clone)]
pub struct Sources {
    follow_jobs: FollowJobs,
    receivers: WalReceivers,
}

impl Sources {
    /// Uses `follow_jobs` to start following servers, and `receivers` for their WAL.
    pub fn new(follow_jobs: FollowJobs, receivers: WalReceivers) -> Self {
        Self { follow_jobs, receivers }
    }

    /// Whether WAL is durable in a journal before layers have it.
    pub(super) fn has_journal(&self) -> bool {
        self.receivers.has_journal()
    }

    /// Starts to follow a server.
    pub(super) fn follow(&self, wanted: FollowBody) -> Result<(TenantShardId, TimelineId), ManageError> {
        let FollowBody { connstr, tenant_id, timeline_id, slot } = wanted;
        self.follow_jobs.start(FollowRequest { connstr, tenant_id, timeline_id, slot })
    }

    /// Progress of starting to follow a server.
    pub(super) fn follow_status(&self, tenant: TenantShardId, timeline: TimelineId) -> Option<Value> {
        self.follow_jobs.status(tenant, timeline).and_then(|status| serde_json::to_value(status).ok())
    }

    /// Whether a base backup of a server is in progress.
    pub(super) fn is_copying(&self, tenant: TenantShardId, timeline: TimelineId) -> bool {
        let status = self.follow_jobs.status(tenant, timeline);
        status.is_some_and(|status| !matches!(status.phase, FollowPhase::Streaming | FollowPhase::Failed))
    }

    /// State of the timeline's WAL receiver; `None` if it has no source.
    pub(super) fn status(&self, tenant: TenantShardId, timeline: TimelineId) -> Option<Value> {
        self.receivers.status(tenant, timeline).and_then(|status| serde_json::to_value(status).ok())
    }

    /// State of a timeline's WAL receiver; `None` if it has no source.
    pub(super) fn receiver(&self, timeline: &Timeline) -> Option<WalReceiverStatus> {
        self.receivers.status(timeline.tenant_shard_id(), timeline.timeline_id())
    }

    /// Whether WAL is arriving; `None` if the timeline has no source.
    pub(super) fn is_following(&self, timeline: &Timeline) -> Option<bool> {
        let status = self.receivers.status(timeline.tenant_shard_id(), timeline.timeline_id());
        status.map(|status| status.is_following())
    }

    /// How the timelines of a tenant are followed of which this server is a standby.
    pub(super) fn as_standby(&self, tenant: TenantShardId) -> Vec<StandbyStatus> {
        self.receivers.standby_status(tenant)
    }

    /// What this server has as a standby of WAL of the compute `writer`.
    pub(super) async fn hand_over(
        &self,
        id: (TenantShardId, TimelineId),
        writer: &str,
        from: Lsn,
        most: usize,
    ) -> Result<Bytes, ManageError> {
        self.receivers.hand_over(id, writer, from, most).await
    }

    /// Takes in what a standby has handed over.
    pub(super) async fn take_over(&self, timeline: &Timeline, from: Lsn, wal: Bytes) -> Result<Lsn, ManageError> {
        self.receivers.take_over(timeline, from, wal).await
    }

    /// Starts receiving WAL for all timelines of a tenant that have a source.
    pub(super) async fn receive_tenant(&self, tenant: TenantShardId) {
        self.receivers.start_tenant(tenant).await;
    }

    /// Registers the writer of a timeline.
    pub(super) async fn register_writer(&self, timeline: &Timeline, new: NewWriter) -> Result<(), ManageError> {
        self.receivers.register_writer(timeline, new).await
    }

    /// Releases the writer of a timeline.
    pub(super) async fn release_writer(&self, timeline: &Timeline, id: &str) -> Result<(), ManageError> {
        self.receivers.release_writer(timeline, id).await
    }

    /// Archives a timeline, after its WAL receiver was stopped. Returns the slots for which the server goes on to
    /// retain WAL, if there are any.
    pub(super) async fn archive(&self, timeline: &Timeline) -> Result<Vec<LeftSlot>, ManageError> {
        let source = self.receivers.archive(timeline).await?;
        Ok(source.map(|source| self.left(&source.host(), source.slot())).unwrap_or_default())
    }

    fn left(&self, host: &str, slot: &str) -> Vec<LeftSlot> {
        let slots = self.receivers.slots_left(slot.to_owned()).into_iter();
        slots.map(|slot| LeftSlot { host: host.to_owned(), slot }).collect()
    }

    /// Takes an archived timeline back into service, and receives its WAL again.
    pub(super) async fn unarchive(&self, timeline: &Timeline) -> Result<(), ManageError> {
        self.receivers.unarchive(timeline).await
    }

    /// The writer of a timeline.
    pub(super) fn writer(&self, timeline: &Timeline) -> Option<Writer> {
        self.receivers.writer(timeline.tenant_shard_id(), timeline.timeline_id())
    }

    /// Changes the name of a branch, and what else is noted of it, durably.
    pub(super) async fn change_card<E: From<StorageError>>(
        &self,
        timeline: &Timeline,
        change: impl FnOnce(&mut Option<String>, &mut BranchCard) -> Result<(), E>,
    ) -> Result<(), E> {
        self.receivers.change_card(timeline, change).await
    }

    /// Whether this server only reads the bucket of another one.
    pub(super) fn is_scratch(&self) -> bool {
        self.receivers.is_scratch()
    }

    /// Stops a base backup and the WAL receiver. Returns the slots for which the server retains WAL, if there are any.
    pub(super) async fn stop(&self, tenant: TenantShardId, timeline: TimelineId) -> Vec<LeftSlot> {
        let status = self.receivers.status(tenant, timeline);
        let slot = status.map(|status| self.left(&status.host, &status.slot)).unwrap_or_default();
        self.follow_jobs.cancel(tenant, timeline).await;
        self.receivers.stop(tenant, timeline).await;
        slot
    }
}
