//! The `CheckPoint` struct (`pg_control.h`): main data of checkpoint records, and part of the control file.

use utils::lsn::Lsn;

use crate::{
    cursor::Truncated,
    fields::{Field, fixed_layout},
};

/// Size of the struct in bytes, in all versions.
pub const CHECKPOINT_SIZE: usize = 88;

fixed_layout! {
    /// The content of a checkpoint.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CheckPoint {
        /// Where replay starts. For a shutdown checkpoint: the record's own start.
        redo: Lsn = 0,
        /// Timeline.
        timeline: u32 = 8,
        /// Previous timeline, if this one begins here; otherwise the same.
        previous_timeline: u32 = 12,
        /// Whether full-page images are written.
        full_page_writes: bool = 16,
        /// `wal_level` (17 and later, otherwise 0).
        wal_level: i32 = 20,
        /// Next transaction id: epoch and 32-bit id.
        next_xid: u64 = 24,
        /// Next OID.
        next_oid: u32 = 32,
        /// Next multixact id.
        next_multi: u32 = 36,
        /// Offset of the next multixact's first member.
        next_multi_offset: u32 = 40,
        /// Oldest transaction id in any database (`datfrozenxid`).
        oldest_xid: u32 = 44,
        /// The database with this id.
        oldest_xid_db: u32 = 48,
        /// Oldest multixact id in any database (`datminmxid`).
        oldest_multi: u32 = 52,
        /// The database with this id.
        oldest_multi_db: u32 = 56,
        /// Time of the checkpoint, in seconds since 1970.
        time: i64 = 64,
        /// Oldest transaction id with a commit timestamp, 0 if none.
        oldest_commit_ts_xid: u32 = 72,
        /// Newest transaction id with a commit timestamp, 0 if none.
        newest_commit_ts_xid: u32 = 76,
        /// Oldest running transaction id; 0 in shutdown checkpoints and without a hot standby.
        oldest_active_xid: u32 = 80,
    }
}

impl CheckPoint {
    /// Reads the struct from the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, Truncated> {
        crate::cursor::slice_at(bytes, 0, CHECKPOINT_SIZE)?;
        Self::get(bytes, 0)
    }

    /// The struct's bytes, with gaps zeroed.
    pub fn encode(&self) -> [u8; CHECKPOINT_SIZE] {
        let mut bytes = [0; CHECKPOINT_SIZE];
        self.put(&mut bytes, 0).expect("all fields lie within the struct");
        bytes
    }
}
