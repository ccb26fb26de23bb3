//! A Postgres data directory on disk: its identity, whether it can be read in its present state, and its files.
//!
//! Never writes. Errors name the file and, where it makes sense, the offset.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod backup_label;
mod files;
mod pages;
mod small_files;
mod tablespaces;
#[cfg(test)]
mod tests;
pub mod wal_files;

use camino::{Utf8Path, Utf8PathBuf};
use pageserver_api::parameters::ClusterParameters;
use postgres_formats::BLCKSZ;
use postgres_formats::control_file::{ClusterState, ControlFile, ControlFileError};
use postgres_formats::version::PgVersion;
use postgres_formats::wal_file::is_valid_segment_size;
use utils::lsn::Lsn;
use wal_decoder::tablespaces::TablespaceTable;

pub use backup_label::BackupLabel;
use errors::StorageError;
pub use files::parse_relation_file;
pub use files::{DatabaseFiles, ForkFiles};
pub use pages::{PageChunk, PageReader, check_page};
use small_files::io_error;
pub use small_files::{corrupt, read_optional};

/// Pages in a relation segment file of the default build.
pub const RELATION_SEGMENT_BLOCKS: u32 = 131_072;
const GLOBAL: &str = "global";
const PG_CONTROL: &str = "global/pg_control";

/// A data directory that passed the checks of [`DataDir::open`].
#[derive(Clone, Debug)]
pub struct DataDir {
    root: Utf8PathBuf,
    control: ControlFile,
    backup_label: Option<BackupLabel>,
    tablespaces: TablespaceTable,
}

impl DataDir {
    /// Opens a directory and checks version, control file, build parameters and tablespaces, but not the cluster's
    /// state.
    pub fn open(root: &Utf8Path) -> Result<Self, StorageError> {
        let version = read_version(&root.join("PG_VERSION"))?;
        let control = read_control(&root.join(PG_CONTROL))?;
        if control.version != version {
            let reason = format!("PG_VERSION says {}, pg_control {}", version.major(), control.version.major());
            return Err(corrupt(&root.join(PG_CONTROL), 8, reason));
        }
        check_build(&root.join(PG_CONTROL), &control)?;
        let backup_label = backup_label::read(&root.join("backup_label"))?;
        let tablespaces = tablespaces::read(root)?;
        Ok(Self { root: root.to_owned(), control, backup_label, tablespaces })
    }

    /// The directory.
    pub fn root(&self) -> &Utf8Path {
        &self.root
    }

    /// The control file.
    pub fn control(&self) -> &ControlFile {
        &self.control
    }

    /// Major version.
    pub fn version(&self) -> PgVersion {
        self.control.version
    }

    /// The backup label, if the directory is a base backup.
    pub fn backup_label(&self) -> Option<&BackupLabel> {
        self.backup_label.as_ref()
    }

    /// The same directory with `tablespaces` taking precedence over its own: a copy need not know where they were.
    pub fn with_tablespaces(mut self, mut tablespaces: TablespaceTable) -> Result<Self, StorageError> {
        for found in self.tablespaces.entries() {
            if tablespaces.get(found.oid).is_none() {
                let created = tablespaces.create(found.oid, &found.path);
                created.map_err(|error| StorageError::Invalid(error.to_string()))?;
            }
        }
        self.tablespaces = tablespaces;
        Ok(self)
    }

    /// The user tablespaces, numbered in OID order.
    pub fn tablespaces(&self) -> &TablespaceTable {
        &self.tablespaces
    }

    /// Whether data pages have checksums.
    pub fn has_checksums(&self) -> bool {
        self.control.fields.data_checksum_version != 0
    }

    /// Where replay of WAL onto these files begins: the redo point of a base backup, otherwise the shutdown
    /// checkpoint.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if the server is running, crashed or is in recovery.
    pub fn start_lsn(&self) -> Result<Lsn, StorageError> {
        if let Some(label) = &self.backup_label {
            return Ok(label.start);
        }
        match self.control.state() {
            ClusterState::Shutdowned => Ok(self.control.fields.checkpoint),
            state => Err(StorageError::Invalid(format!(
                "{}: the server was not cleanly shut down (state {state:?}), and there is no backup_label",
                self.root.join(PG_CONTROL)
            ))),
        }
    }

    /// The settings that replay depends on.
    pub fn parameters(&self) -> ClusterParameters {
        let fields = &self.control.fields;
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        ClusterParameters {
            pg_version: self.version().major(),
            system_identifier: fields.system_identifier,
            wal_segment_size: fields.wal_segment_size,
            data_checksums: self.has_checksums(),
            wal_log_hints: fields.wal_log_hints,
            track_commit_timestamp: fields.track_commit_timestamp,
            wal_level: count(fields.wal_level),
            max_connections: count(fields.max_connections),
            max_worker_processes: count(fields.max_worker_processes),
            max_wal_senders: count(fields.max_wal_senders),
            max_prepared_transactions: count(fields.max_prepared_xacts),
            max_locks_per_transaction: count(fields.max_locks_per_xact),
            wal_log_hints_changes: Vec::new(),
        }
    }

    /// Reads a small file below the directory; `None` if it does not exist.
    pub fn read_optional(&self, path: &str) -> Result<Option<Vec<u8>>, StorageError> {
        read_optional(&self.root.join(path))
    }
}

fn read_version(path: &Utf8Path) -> Result<PgVersion, StorageError> {
    let bytes = read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let version = text.trim_end().parse().ok().and_then(PgVersion::from_major);
    version.ok_or_else(|| corrupt(path, 0, format!("{:?} is no version from 14 to 18", text.trim_end())))
}

fn read_control(path: &Utf8Path) -> Result<ControlFile, StorageError> {
    ControlFile::decode(&read(path)?).map_err(|error| {
        let offset = match error {
            ControlFileError::Truncated(truncated) => truncated.len as u64,
            ControlFileError::Version { .. } => 8,
            ControlFileError::State(_) => 16,
            ControlFileError::Crc { .. } => 288,
        };
        corrupt(path, offset, error.to_string())
    })
}

/// Checks sizes that are fixed when a server is built.
fn check_build(path: &Utf8Path, control: &ControlFile) -> Result<(), StorageError> {
    let fields = &control.fields;
    let checks = [
        (216, "data page size", fields.block_size, BLCKSZ as u32),
        (220, "blocks per relation segment", fields.relation_segment_size, RELATION_SEGMENT_BLOCKS),
        (224, "WAL page size", fields.wal_block_size, BLCKSZ as u32),
    ];
    for (offset, what, found, expected) in checks {
        if found != expected {
            return Err(corrupt(path, offset, format!("{what} is {found}, only {expected} is supported")));
        }
    }
    if !is_valid_segment_size(fields.wal_segment_size) {
        return Err(corrupt(path, 228, format!("WAL segments cannot have {} bytes", fields.wal_segment_size)));
    }
    Ok(())
}

/// Reads a whole file.
///
/// # Errors
///
/// [`StorageError::Io`] with the path.
pub fn read(path: &Utf8Path) -> Result<Vec<u8>, StorageError> {
    std::fs::read(path).map_err(|source| io_error("read", path, 0, source))
}
