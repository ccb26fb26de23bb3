//! Replication origin records (resource manager 19; `origin.h`).

use utils::lsn::Lsn;

use crate::{cursor::Cursor, main_data::MainDataError, rmgr::RmgrId};

/// A replication origin record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplOriginRecord {
    /// An origin's progress was set.
    Set {
        /// Origin id.
        node: u16,
        /// How far the origin's changes are here, in the origin's WAL.
        remote_lsn: Lsn,
        /// Whether the progress may go back.
        force: bool,
    },
    /// An origin was dropped.
    Drop {
        /// Origin id.
        node: u16,
    },
}

/// Parses a replication origin record; `info` is the record's `xl_info`.
pub fn parse(info: u8, main_data: &[u8]) -> Result<ReplOriginRecord, MainDataError> {
    let mut cursor = Cursor::new(main_data);
    match info & 0xF0 {
        0x00 => {
            let (remote_lsn, node) = (Lsn(cursor.u64()?), cursor.u16()?);
            Ok(ReplOriginRecord::Set { node, remote_lsn, force: cursor.u8()? != 0 })
        }
        0x10 => Ok(ReplOriginRecord::Drop { node: cursor.u16()? }),
        opcode => Err(MainDataError::Opcode { rmgr: RmgrId::REPLORIGIN, opcode }),
    }
}
