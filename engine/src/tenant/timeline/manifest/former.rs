//! Manifests of versions 3 and 4: neither edition nor cutoff, and layers without id in their names and without filter.
//!
//! What has not changed since is a parameter.

use pageserver_api::key::Key;
use pageserver_api::shard::TenantShardId;
use serde::Deserialize;
use utils::id::TimelineId;
use utils::lsn::Lsn;

/// The first version that is different.
pub(super) const NEXT_VERSION: u32 = 5;

/// Two empty lists, four absent values and a flag: what follows a manifest of [`NEXT_VERSION`] in later versions.
pub(super) const NOTHING_KEPT: [u8; 21] = [0; 21];

#[derive(Deserialize)]
pub(super) struct Entry {
    pub(super) is_delta: bool,
    pub(super) keys: (Key, Key),
    pub(super) lsns: (Lsn, Lsn),
    pub(super) generation: u32,
    pub(super) file_size: u64,
    pub(super) file_id: u64,
    pub(super) tail_offset: u64,
}

#[derive(Deserialize)]
pub(super) struct Former<Origin, Told> {
    pub(super) tenant_shard_id: TenantShardId,
    pub(super) timeline_id: TimelineId,
    pub(super) generation: u32,
    pub(super) in_bucket: bool,
    pub(super) deleted: bool,
    pub(super) wal_source: Option<Told>,
    pub(super) origin: Origin,
    pub(super) wal_log_hints_changes: Vec<(Lsn, bool)>,
    pub(super) disk_consistent_lsn: Lsn,
    pub(super) prev_record_lsn: Lsn,
    pub(super) layers: Vec<Entry>,
}
