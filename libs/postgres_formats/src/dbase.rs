//! Database records (resource manager 4; `dbcommands_xlog.h`).

use crate::{
    cursor::Cursor,
    main_data::{MainDataError, counted_u32s},
    rmgr::RmgrId,
    version::PgVersion,
};

/// A database in one tablespace: the directory of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseDir {
    /// Database OID.
    pub db: u32,
    /// Tablespace OID.
    pub tablespace: u32,
}

/// A database record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DbaseRecord {
    /// A database's directory was created as a copy of another's as of this record (14: `CREATE`).
    CreateFileCopy {
        /// The new directory.
        to: DatabaseDir,
        /// The copied directory.
        from: DatabaseDir,
    },
    /// A database's directory was created with its `PG_VERSION` file; its pages follow as WAL (15 and later).
    CreateWalLog(DatabaseDir),
    /// A database's directories in these tablespaces were removed.
    Drop {
        /// Database OID.
        db: u32,
        /// Tablespace OIDs.
        tablespaces: Vec<u32>,
    },
}

/// Parses a database record; `info` is the record's `xl_info`.
pub fn parse(version: PgVersion, info: u8, main_data: &[u8]) -> Result<DbaseRecord, MainDataError> {
    let mut cursor = Cursor::new(main_data);
    let has_wal_log = version >= PgVersion::V15;
    match info & 0xF0 {
        0x00 => Ok(DbaseRecord::CreateFileCopy { to: dir(&mut cursor)?, from: dir(&mut cursor)? }),
        0x10 if has_wal_log => Ok(DbaseRecord::CreateWalLog(dir(&mut cursor)?)),
        0x10 => drop_record(&mut cursor),
        0x20 if has_wal_log => drop_record(&mut cursor),
        opcode => Err(MainDataError::Opcode { rmgr: RmgrId::DBASE, opcode }),
    }
}

fn dir(cursor: &mut Cursor<'_>) -> Result<DatabaseDir, MainDataError> {
    Ok(DatabaseDir { db: cursor.u32()?, tablespace: cursor.u32()? })
}

fn drop_record(cursor: &mut Cursor<'_>) -> Result<DbaseRecord, MainDataError> {
    Ok(DbaseRecord::Drop { db: cursor.u32()?, tablespaces: counted_u32s(cursor)? })
}
