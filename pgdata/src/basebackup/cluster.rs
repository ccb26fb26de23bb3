//! Facts about a cluster and its relations.

use std::collections::BTreeMap;

use pageserver_api::parameters::ClusterParameters;
use pageserver_api::reltag::{BlockNumber, RelTag};
use postgres_formats::version::PgVersion;
use utils::lsn::Lsn;
use wal_decoder::tablespaces::TablespaceTable;

use crate::settings::ClusterSettings;
use errors::StorageError;

/// Facts about the cluster besides its data.
pub(super) struct Cluster {
    pub(super) version: PgVersion,
    pub(super) parameters: ClusterParameters,
    pub(super) settings: ClusterSettings,
    pub(super) tablespaces: TablespaceTable,
    pub(super) origins: BTreeMap<u16, Lsn>,
}

/// Relations that a server reads, except unlogged ones, named as in keys.
#[derive(Debug, Default)]
pub(super) struct Relations {
    /// Sizes in blocks.
    pub(super) forks: BTreeMap<RelTag, BlockNumber>,
    /// OIDs of mapped catalogs and their file numbers, by tablespace and database.
    pub(super) mapped: BTreeMap<(u32, u32), Vec<(u32, u32)>>,
}

/// The OID of the tablespace that is `number` in keys.
pub(super) fn tablespace_oid(tablespaces: &TablespaceTable, number: u32) -> Result<u32, StorageError> {
    tablespaces.oid(number).ok_or_else(|| StorageError::Internal(format!("no tablespace has number {number}")))
}
