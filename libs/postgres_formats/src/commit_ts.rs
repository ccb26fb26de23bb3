//! Records of `pg_commit_ts` (resource manager 18; `commit_ts.h`).

use crate::{cursor::Cursor, main_data::MainDataError, rmgr::RmgrId, slru::page_number, version::PgVersion};

/// A commit timestamp record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitTsRecord {
    /// A page was created, all zero.
    ZeroPage {
        /// Page number.
        page: u32,
    },
    /// Segments entirely before a page were removed.
    Truncate {
        /// First page that must be kept.
        page: u32,
        /// Oldest transaction id that is kept.
        oldest_xid: u32,
    },
}

/// Parses a commit timestamp record; `info` is the record's `xl_info`.
pub fn parse(version: PgVersion, info: u8, main_data: &[u8]) -> Result<CommitTsRecord, MainDataError> {
    let mut cursor = Cursor::new(main_data);
    match info & 0xF0 {
        0x00 => Ok(CommitTsRecord::ZeroPage { page: page_number(version, &mut cursor)? }),
        0x10 => Ok(CommitTsRecord::Truncate { page: page_number(version, &mut cursor)?, oldest_xid: cursor.u32()? }),
        opcode => Err(MainDataError::Opcode { rmgr: RmgrId::COMMIT_TS, opcode }),
    }
}
