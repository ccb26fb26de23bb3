//! Cluster settings that replay and startup depend on: the value of [`PARAMETERS_KEY`](crate::key::PARAMETERS_KEY).

use serde::{Deserialize, Serialize};
use utils::lsn::Lsn;

/// Settings from the control file at import time, updated by parameter change records since.
///
/// Stored in the encoding of [`utils::bin_ser::BeSer`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterParameters {
    /// Major version: 14 to 18.
    pub pg_version: u32,
    /// System identifier, the same in all WAL of the cluster.
    pub system_identifier: u64,
    /// Size of a WAL segment in bytes.
    pub wal_segment_size: u32,
    /// Whether data pages have checksums.
    pub data_checksums: bool,
    /// `wal_log_hints`: hint bit changes are WAL-logged and set page LSNs.
    pub wal_log_hints: bool,
    /// `track_commit_timestamp`: commits write `pg_commit_ts`.
    pub track_commit_timestamp: bool,
    /// `wal_level`: 0 minimal, 1 replica, 2 logical.
    pub wal_level: u32,
    /// `max_connections`
    pub max_connections: u32,
    /// `max_worker_processes`
    pub max_worker_processes: u32,
    /// `max_wal_senders`
    pub max_wal_senders: u32,
    /// `max_prepared_transactions`
    pub max_prepared_transactions: u32,
    /// `max_locks_per_transaction`
    pub max_locks_per_transaction: u32,
    /// Changes of `wal_log_hints` since the import: the end of each record that changed it, oldest first, and the new
    /// value. Replay of a record depends on the setting at the time of the record.
    pub wal_log_hints_changes: Vec<(Lsn, bool)>,
}
