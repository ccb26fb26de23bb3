//! What a timeline is and how far it has come, for people.

use pageserver_api::shard::TenantShardId;
use serde::Serialize;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::state::TimelineState;

/// A timeline at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineInfo {
    /// The tenant shard.
    pub tenant_shard_id: TenantShardId,
    /// The timeline.
    pub timeline_id: TimelineId,
    /// Major version of the cluster.
    pub pg_version: u32,
    /// The cluster's own identifier.
    pub system_identifier: u64,
    /// Size of a WAL segment in bytes.
    pub wal_segment_size: u32,
    /// History begins here.
    pub import_lsn: Lsn,
    /// History is complete up to here, in memory.
    pub last_record_lsn: Lsn,
    /// Start of the last record.
    pub prev_record_lsn: Lsn,
    /// History is complete up to here, durably.
    pub disk_consistent_lsn: Lsn,
    /// Number of layer files.
    pub layers: usize,
    /// Number of L0 layers among them.
    pub l0_layers: usize,
    /// Size of all layer files in bytes.
    pub layer_bytes: u64,
    /// In-memory layers that wait to be written.
    pub frozen_layers: usize,
    /// Bytes of values in memory and ephemeral files.
    pub in_memory_bytes: u64,
}

impl TimelineInfo {
    pub(super) fn of(state: &TimelineState) -> Self {
        let layers = state.layers();
        let (record, durable) = (state.record_lsn(), state.disk_consistent());
        let open_bytes = layers.open.as_ref().map_or(0, |layer| layer.size());
        Self {
            tenant_shard_id: state.tenant_shard_id,
            timeline_id: state.timeline_id,
            pg_version: state.origin.pg_version.major(),
            system_identifier: state.origin.system_identifier,
            wal_segment_size: state.origin.wal_segment_size,
            import_lsn: state.origin.import_lsn,
            last_record_lsn: record.last,
            prev_record_lsn: record.prev,
            disk_consistent_lsn: durable.last,
            layers: layers.map.len(),
            l0_layers: layers.map.l0_layers().len(),
            layer_bytes: layers.map.total_size(),
            frozen_layers: layers.frozen.len(),
            in_memory_bytes: open_bytes + layers.frozen.iter().map(|frozen| frozen.layer.size()).sum::<u64>(),
        }
    }
}
