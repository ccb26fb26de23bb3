//! Records of multixacts (resource manager 6; `multixact.h`).

use crate::{
    cursor::Cursor,
    main_data::{MainDataError, count},
    rmgr::RmgrId,
    slru::page_number,
    version::PgVersion,
};

/// One member of a multixact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiXactMember {
    /// Transaction id.
    pub xid: u32,
    /// 0 `ForKeyShare`, 1 `ForShare`, 2 `ForNoKeyUpdate`, 3 `ForUpdate`, 4 `NoKeyUpdate`, 5 `Update`.
    pub status: u8,
}

/// A multixact record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MultiXactRecord {
    /// A page of offsets was created, all zero.
    ZeroOffsetsPage {
        /// Page number.
        page: u32,
    },
    /// A page of members was created, all zero.
    ZeroMembersPage {
        /// Page number.
        page: u32,
    },
    /// A multixact was created.
    Create {
        /// Its id.
        id: u32,
        /// Offset of its first member.
        offset: u32,
        /// Its members.
        members: Vec<MultiXactMember>,
    },
    /// Old multixacts and their members were removed.
    Truncate {
        /// Database of the oldest multixact that is kept.
        oldest_db: u32,
        /// Removed multixact ids: the first one, and the first one kept.
        ids: (u32, u32),
        /// Removed members: the first one, and the first one kept.
        members: (u32, u32),
    },
}

/// Parses a multixact record; `info` is the record's `xl_info`.
pub fn parse(version: PgVersion, info: u8, main_data: &[u8]) -> Result<MultiXactRecord, MainDataError> {
    let mut cursor = Cursor::new(main_data);
    match info & 0xF0 {
        0x00 => Ok(MultiXactRecord::ZeroOffsetsPage { page: page_number(version, &mut cursor)? }),
        0x10 => Ok(MultiXactRecord::ZeroMembersPage { page: page_number(version, &mut cursor)? }),
        0x20 => create(&mut cursor),
        0x30 => Ok(MultiXactRecord::Truncate {
            oldest_db: cursor.u32()?,
            ids: (cursor.u32()?, cursor.u32()?),
            members: (cursor.u32()?, cursor.u32()?),
        }),
        opcode => Err(MainDataError::Opcode { rmgr: RmgrId::MULTIXACT, opcode }),
    }
}

fn create(cursor: &mut Cursor<'_>) -> Result<MultiXactRecord, MainDataError> {
    let (id, offset, count) = (cursor.u32()?, cursor.u32()?, count(cursor)?);
    let mut bytes = Cursor::new(cursor.take((count as usize).saturating_mul(8))?);
    let mut members = Vec::with_capacity(bytes.remaining() / 8);
    while bytes.remaining() > 0 {
        let (xid, status) = (bytes.u32()?, bytes.u32()?);
        let bad_status = MainDataError::Value { field: "member status", value: status.into() };
        let status = u8::try_from(status).ok().filter(|status| *status <= 5).ok_or(bad_status)?;
        members.push(MultiXactMember { xid, status });
    }
    Ok(MultiXactRecord::Create { id, offset, members })
}
