//! Where WAL comes from, as far as this interface is concerned.

use pageserver_api::shard::TenantShardId;
use serde_json::Value;
use utils::id::TimelineId;

use super::models::{AttachBody, LeftSlot};
use crate::attach::{AttachPhase, AttachRequest, Attacher};
use crate::walreceiver::{NewWriter, WalReceivers, Writer};
use engine::tenant::manager::ManageError;
use engine::tenant::timeline::Timeline;

/// Attaches clusters and follows their WAL. Cheap to clone.
#[derive(Clone)]
pub struct Sources {
    attacher: Attacher,
    receivers: WalReceivers,
}

impl Sources {
    /// Attaches by `attacher`, whose WAL comes through `receivers`.
    pub fn new(attacher: Attacher, receivers: WalReceivers) -> Self {
        Self { attacher, receivers }
    }

    /// Begins to attach a cluster.
    pub(super) fn attach(&self, wanted: AttachBody) -> Result<(TenantShardId, TimelineId), ManageError> {
        let AttachBody { connstr, tenant_id, timeline_id, slot } = wanted;
        self.attacher.start(AttachRequest { connstr, tenant_id, timeline_id, slot })
    }

    /// How far an attachment has come.
    pub(super) fn attach_status(&self, tenant: TenantShardId, timeline: TimelineId) -> Option<Value> {
        self.attacher.status(tenant, timeline).and_then(|status| serde_json::to_value(status).ok())
    }

    /// Whether an attachment is under way.
    pub(super) fn is_attaching(&self, tenant: TenantShardId, timeline: TimelineId) -> bool {
        let status = self.attacher.status(tenant, timeline);
        status.is_some_and(|status| !matches!(status.phase, AttachPhase::Streaming | AttachPhase::Failed))
    }

    /// How receiving WAL goes; `None` if the timeline has no source.
    pub(super) fn status(&self, tenant: TenantShardId, timeline: TimelineId) -> Option<Value> {
        self.receivers.status(tenant, timeline).and_then(|status| serde_json::to_value(status).ok())
    }

    /// Whether WAL comes; `None` if the timeline has no source.
    pub(super) fn is_following(&self, timeline: &Timeline) -> Option<bool> {
        let status = self.receivers.status(timeline.tenant_shard_id(), timeline.timeline_id());
        status.map(|status| status.is_following())
    }

    /// Receives the WAL of all timelines of a tenant that have a source.
    pub(super) async fn follow(&self, tenant: TenantShardId) {
        self.receivers.start_tenant(tenant).await;
    }

    /// Registers the compute that writes a timeline.
    pub(super) async fn register_writer(&self, timeline: &Timeline, new: NewWriter) -> Result<(), ManageError> {
        self.receivers.register_writer(timeline, new).await
    }

    /// Ends the registration of a compute.
    pub(super) async fn release_writer(&self, timeline: &Timeline, id: &str) -> Result<(), ManageError> {
        self.receivers.release_writer(timeline, id).await
    }

    /// The compute that writes a timeline.
    pub(super) fn writer(&self, timeline: &Timeline) -> Option<Writer> {
        self.receivers.writer(timeline.tenant_shard_id(), timeline.timeline_id())
    }

    /// Ends attaching and receiving. Gives the slot that the server goes on to keep WAL for, if there is one.
    pub(super) async fn stop(&self, tenant: TenantShardId, timeline: TimelineId) -> Option<LeftSlot> {
        let slot = self.receivers.status(tenant, timeline);
        let slot = slot.map(|status| LeftSlot { host: status.host, slot: status.slot });
        self.attacher.cancel(tenant, timeline).await;
        self.receivers.stop(tenant, timeline).await;
        slot
    }
}
