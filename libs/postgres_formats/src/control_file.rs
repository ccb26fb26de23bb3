//! `global/pg_control` (`ControlFileData`): the state of a cluster, 8192 bytes of which the first 296 are used.

use thiserror::Error;
use utils::lsn::Lsn;

use crate::{
    BLCKSZ,
    checkpoint::{CHECKPOINT_SIZE, CheckPoint},
    cursor::{Truncated, slice_at, u32_at},
    fields::{Field, fixed_layout, put_at},
    version::PgVersion,
};

/// Size of the file in bytes (`PG_CONTROL_FILE_SIZE`).
pub const CONTROL_FILE_SIZE: usize = BLCKSZ;

const CATALOG_VERSION_AT: usize = 12;
const CONTROL_VERSION_AT: usize = 8;
const CHECKPOINT_AT: usize = 40;
const NONCE_SIZE: usize = 32;

/// Why bytes are not a usable control file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ControlFileError {
    /// The file is too short.
    #[error("control file: {0}")]
    Truncated(#[from] Truncated),
    /// The version is not one that this program can read.
    #[error("control file version {control}, catalog version {catalog} is not of PostgreSQL 14-18")]
    Version {
        /// `pg_control_version`
        control: u32,
        /// `catalog_version_no`
        catalog: u32,
    },
    /// The CRC is wrong.
    #[error("control file has CRC {stored:#010x}, computed {computed:#010x}")]
    Crc {
        /// Stored in the file.
        stored: u32,
        /// Computed from the file's content.
        computed: u32,
    },
    /// `state` has an unknown value.
    #[error("control file has unknown state {0}")]
    State(u32),
}

/// `DBState`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum ClusterState {
    /// Starting up for the first time.
    Startup = 0,
    /// Cleanly shut down.
    #[default]
    Shutdowned = 1,
    /// Shut down while in recovery.
    ShutdownedInRecovery = 2,
    /// Shutting down.
    ShuttingDown = 3,
    /// In crash recovery.
    InCrashRecovery = 4,
    /// In archive recovery; a standby.
    InArchiveRecovery = 5,
    /// Running.
    InProduction = 6,
}

impl ClusterState {
    fn from_number(number: u32) -> Option<Self> {
        use ClusterState as S;
        let all = [
            S::Startup,
            S::Shutdowned,
            S::ShutdownedInRecovery,
            S::ShuttingDown,
            S::InCrashRecovery,
            S::InArchiveRecovery,
            S::InProduction,
        ];
        all.into_iter().find(|state| *state as u32 == number)
    }
}

fixed_layout! {
    /// The fields that have the same offset in all versions, as stored.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct ControlFields {
        /// System identifier.
        system_identifier: u64 = 0,
        /// `pg_control_version`
        control_version: u32 = 8,
        /// `catalog_version_no`
        catalog_version: u32 = 12,
        /// `state`; see [`ControlFile::state`].
        state: u32 = 16,
        /// Time of the file's last update, in seconds since 1970.
        time: i64 = 24,
        /// Start of the last checkpoint record.
        checkpoint: Lsn = 32,
        /// Copy of the last checkpoint.
        checkpoint_copy: CheckPoint = 40,
        /// Current fake LSN of unlogged relations.
        unlogged_lsn: Lsn = 128,
        /// LSN that recovery must reach.
        min_recovery_point: Lsn = 136,
        /// Timeline of `min_recovery_point`.
        min_recovery_timeline: u32 = 144,
        /// Start of the base backup that is being recovered; 0 if none.
        backup_start_point: Lsn = 152,
        /// End of a backup taken from a standby; 0 if none.
        backup_end_point: Lsn = 160,
        /// Whether recovery must see the end of the backup.
        backup_end_required: bool = 168,
        /// `wal_level`: 0 minimal, 1 replica, 2 logical.
        wal_level: i32 = 172,
        /// `wal_log_hints`
        wal_log_hints: bool = 176,
        /// `max_connections`
        max_connections: i32 = 180,
        /// `max_worker_processes`
        max_worker_processes: i32 = 184,
        /// `max_wal_senders`
        max_wal_senders: i32 = 188,
        /// `max_prepared_transactions`
        max_prepared_xacts: i32 = 192,
        /// `max_locks_per_transaction`
        max_locks_per_xact: i32 = 196,
        /// `track_commit_timestamp`
        track_commit_timestamp: bool = 200,
        /// Alignment (8).
        max_align: u32 = 204,
        /// 1234567.0
        float_format: f64 = 208,
        /// Size of a data page (8192).
        block_size: u32 = 216,
        /// Data pages per relation segment file (131072).
        relation_segment_size: u32 = 220,
        /// Size of a WAL page (8192).
        wal_block_size: u32 = 224,
        /// Size of a WAL segment in bytes.
        wal_segment_size: u32 = 228,
        /// Maximum length of a name (64).
        name_data_len: u32 = 232,
        /// Maximum number of columns of an index (32).
        index_max_keys: u32 = 236,
        /// Maximum chunk size of a TOAST value (1996).
        toast_max_chunk_size: u32 = 240,
        /// Maximum chunk size of a large object (2048).
        large_object_chunk_size: u32 = 244,
        /// Whether 8-byte values are passed by value (true).
        float8_by_value: bool = 248,
        /// 0 if data pages have no checksums, 1 if they do.
        data_checksum_version: u32 = 252,
    }
}

/// The control file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlFile {
    /// The major version that wrote it.
    pub version: PgVersion,
    /// All fields with the same offset in all versions.
    pub fields: ControlFields,
    /// Whether `char` is signed (18 and later; the default build on x86-64: yes).
    pub default_char_signedness: bool,
    /// Random bytes for failed authentications.
    pub mock_authentication_nonce: [u8; NONCE_SIZE],
}

/// Offsets of the fields at the end of the struct: they moved in 18.
struct Tail {
    signedness: Option<usize>,
    nonce: usize,
    crc: usize,
}

impl Tail {
    const fn of(version: PgVersion) -> Self {
        match version {
            PgVersion::V18 => Self { signedness: Some(256), nonce: 257, crc: 292 },
            _ => Self { signedness: None, nonce: 256, crc: 288 },
        }
    }
}

impl ControlFile {
    /// Decodes the file; bytes after the struct are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, ControlFileError> {
        let (control, catalog) = (u32_at(bytes, CONTROL_VERSION_AT)?, u32_at(bytes, CATALOG_VERSION_AT)?);
        let known = |version: &PgVersion| (version.control_version(), version.catalog_version()) == (control, catalog);
        let version = PgVersion::ALL.into_iter().find(known).ok_or(ControlFileError::Version { control, catalog })?;
        let tail = Tail::of(version);
        let (stored, computed) = (u32_at(bytes, tail.crc)?, utils::crc32c::crc32c(slice_at(bytes, 0, tail.crc)?));
        if stored != computed {
            return Err(ControlFileError::Crc { stored, computed });
        }
        let file = Self {
            version,
            fields: ControlFields::get(bytes, 0)?,
            default_char_signedness: tail.signedness.map_or(Ok(true), |at| bool::get(bytes, at))?,
            mock_authentication_nonce: crate::cursor::array_at(bytes, tail.nonce)?,
        };
        let state = file.fields.state;
        ClusterState::from_number(state).map(|_| file).ok_or(ControlFileError::State(state))
    }

    /// Encodes the whole file with a valid CRC; gaps and the rest of the file are zero.
    ///
    /// The version numbers are those of `version`, whatever `fields` says.
    pub fn encode(&self) -> [u8; CONTROL_FILE_SIZE] {
        let mut bytes = [0; CONTROL_FILE_SIZE];
        self.put(&mut bytes).expect("all fields lie within the file");
        bytes
    }

    fn put(&self, bytes: &mut [u8]) -> Result<(), Truncated> {
        let tail = Tail::of(self.version);
        let fields = ControlFields {
            control_version: self.version.control_version(),
            catalog_version: self.version.catalog_version(),
            ..self.fields
        };
        fields.put(bytes, 0)?;
        if let Some(at) = tail.signedness {
            self.default_char_signedness.put(bytes, at)?;
        }
        put_at(bytes, tail.nonce, &self.mock_authentication_nonce)?;
        let crc = utils::crc32c::crc32c(slice_at(bytes, 0, tail.crc)?);
        crc.put(bytes, tail.crc)
    }

    /// The cluster's state.
    pub fn state(&self) -> ClusterState {
        ClusterState::from_number(self.fields.state).unwrap_or_default()
    }

    /// Makes this the control file of a cluster that was cleanly shut down with `checkpoint`, whose record starts at
    /// `lsn`: starting it needs no recovery.
    pub fn set_shut_down(&mut self, lsn: Lsn, checkpoint: CheckPoint) {
        let fields = &mut self.fields;
        fields.state = ClusterState::Shutdowned as u32;
        fields.checkpoint = lsn;
        fields.checkpoint_copy = CheckPoint { redo: lsn, oldest_active_xid: 0, ..checkpoint };
        fields.min_recovery_point = Lsn::INVALID;
        fields.min_recovery_timeline = 0;
        fields.backup_start_point = Lsn::INVALID;
        fields.backup_end_point = Lsn::INVALID;
        fields.backup_end_required = false;
    }
}

const _: () = assert!(CHECKPOINT_AT + CHECKPOINT_SIZE == 128);

#[cfg(test)]
mod tests;
