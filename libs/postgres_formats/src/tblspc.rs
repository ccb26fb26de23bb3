//! Tablespace records (resource manager 5; `tablespace.h`).

use crate::{
    cursor::Cursor,
    main_data::{MainDataError, text},
    rmgr::RmgrId,
};

/// A tablespace record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TblspcRecord<'a> {
    /// A tablespace was created.
    Create {
        /// OID.
        oid: u32,
        /// Its path as given to the server; empty for one inside the data directory.
        path: &'a [u8],
    },
    /// A tablespace was dropped.
    Drop {
        /// OID.
        oid: u32,
    },
}

/// Parses a tablespace record; `info` is the record's `xl_info`.
pub fn parse(info: u8, main_data: &[u8]) -> Result<TblspcRecord<'_>, MainDataError> {
    let mut cursor = Cursor::new(main_data);
    match info & 0xF0 {
        0x00 => Ok(TblspcRecord::Create { oid: cursor.u32()?, path: text(&mut cursor)? }),
        0x10 => Ok(TblspcRecord::Drop { oid: cursor.u32()? }),
        opcode => Err(MainDataError::Opcode { rmgr: RmgrId::TBLSPC, opcode }),
    }
}
