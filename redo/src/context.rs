//! Cluster settings that affect replay.

use postgres_formats::version::PgVersion;

/// What redo depends on besides page and record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedoContext {
    /// Major version of the server that wrote the WAL.
    pub version: PgVersion,
    /// Whether the cluster has data checksums.
    pub data_checksums: bool,
    /// The effective `wal_log_hints` (the control file's, then that of the last parameter change record).
    pub wal_log_hints: bool,
}
