//! Storage records (resource manager 2; `storage_xlog.h`): forks created and truncated.

use crate::{
    cursor::Cursor,
    main_data::{MainDataError, rel_file},
    record::RelFile,
    rmgr::RmgrId,
};

/// `SMGR_TRUNCATE_HEAP`: the main fork is truncated.
pub const TRUNCATE_HEAP: u32 = 1;
/// `SMGR_TRUNCATE_VM`: the visibility map is truncated.
pub const TRUNCATE_VM: u32 = 2;
/// `SMGR_TRUNCATE_FSM`: the free space map is truncated.
pub const TRUNCATE_FSM: u32 = 4;

/// A storage record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmgrRecord {
    /// An empty fork was created.
    Create {
        /// Relation.
        rel: RelFile,
        /// Fork: 0 main, 1 fsm, 2 vm, 3 init.
        fork: u8,
    },
    /// Forks were truncated.
    Truncate {
        /// Relation.
        rel: RelFile,
        /// New length of the main fork in blocks; those of the maps are derived from it.
        blocks: u32,
        /// Which forks: `TRUNCATE_*`.
        flags: u32,
    },
}

/// Parses a storage record; `info` is the record's `xl_info`.
pub fn parse(info: u8, main_data: &[u8]) -> Result<SmgrRecord, MainDataError> {
    let mut cursor = Cursor::new(main_data);
    match info & 0xF0 {
        0x10 => {
            let (rel, fork) = (rel_file(&mut cursor)?, cursor.u32()?);
            let bad_fork = MainDataError::Value { field: "fork", value: fork.into() };
            let fork = u8::try_from(fork).ok().filter(|fork| *fork <= 3).ok_or(bad_fork)?;
            Ok(SmgrRecord::Create { rel, fork })
        }
        0x20 => {
            let (blocks, rel) = (cursor.u32()?, rel_file(&mut cursor)?);
            Ok(SmgrRecord::Truncate { rel, blocks, flags: cursor.u32()? })
        }
        opcode => Err(MainDataError::Opcode { rmgr: RmgrId::SMGR, opcode }),
    }
}
