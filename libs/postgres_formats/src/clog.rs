//! Records of `pg_xact` (resource manager 3; `clog.h`).

use crate::{cursor::Cursor, main_data::MainDataError, rmgr::RmgrId, slru::page_number, version::PgVersion};

/// A commit log record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClogRecord {
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
        /// The database with this id.
        oldest_xid_db: u32,
    },
}

/// Parses a commit log record; `info` is the record's `xl_info`.
pub fn parse(version: PgVersion, info: u8, main_data: &[u8]) -> Result<ClogRecord, MainDataError> {
    let mut cursor = Cursor::new(main_data);
    match info & 0xF0 {
        0x00 => Ok(ClogRecord::ZeroPage { page: page_number(version, &mut cursor)? }),
        0x10 => Ok(ClogRecord::Truncate {
            page: page_number(version, &mut cursor)?,
            oldest_xid: cursor.u32()?,
            oldest_xid_db: cursor.u32()?,
        }),
        opcode => Err(MainDataError::Opcode { rmgr: RmgrId::CLOG, opcode }),
    }
}
