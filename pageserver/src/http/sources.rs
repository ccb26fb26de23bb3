//! Where WAL comes from, as far as this interface is concerned.

use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::models::AttachBody;
use crate::tenant::manager::ManageError;

/// Attaches clusters and follows their WAL.
#[derive(Clone, Default)]
pub struct Sources {}

impl Sources {
    /// Begins to attach a cluster.
    pub(super) fn attach(&self, _wanted: AttachBody) -> Result<(TenantShardId, TimelineId), ManageError> {
        Err(ManageError::Busy("this server cannot attach clusters".to_owned()))
    }

    /// How far an attachment has come.
    pub(super) fn attach_status(&self, _tenant: TenantShardId, _timeline: TimelineId) -> Option<serde_json::Value> {
        None
    }

    /// How receiving WAL goes; `None` if the timeline has no source.
    pub(super) fn status(&self, _tenant: TenantShardId, _timeline: TimelineId) -> Option<serde_json::Value> {
        None
    }

    /// Ends receiving WAL.
    pub(super) async fn stop(&self, _tenant: TenantShardId, _timeline: TimelineId) {}
}
