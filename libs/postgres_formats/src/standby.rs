//! Standby records (resource manager 8; `standbydefs.h`): what a hot standby needs to know about running
//! transactions.

use crate::{
    cursor::Cursor,
    main_data::{MainDataError, count},
    rmgr::RmgrId,
};

/// The set of running transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningXacts {
    /// Whether subtransaction ids are missing, because there were too many.
    pub subxid_overflow: bool,
    /// Next transaction id to be assigned (low 32 bits).
    pub next_xid: u32,
    /// Oldest running transaction id (not: oldest xmin).
    pub oldest_running_xid: u32,
    /// Newest completed transaction id.
    pub latest_completed_xid: u32,
    /// Running top-level transaction ids.
    pub xids: Vec<u32>,
    /// Running subtransaction ids.
    pub subxids: Vec<u32>,
}

/// An `AccessExclusiveLock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyLock {
    /// Transaction that holds it.
    pub xid: u32,
    /// Database OID.
    pub db: u32,
    /// Relation OID.
    pub rel: u32,
}

/// A standby record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StandbyRecord {
    /// Locks taken.
    Locks(Vec<StandbyLock>),
    /// The set of running transactions.
    RunningXacts(RunningXacts),
    /// Cache invalidations.
    Invalidations,
}

/// Parses a standby record; `info` is the record's `xl_info`.
pub fn parse(info: u8, main_data: &[u8]) -> Result<StandbyRecord, MainDataError> {
    let mut cursor = Cursor::new(main_data);
    match info & 0xF0 {
        0x00 => locks(&mut cursor).map(StandbyRecord::Locks),
        0x10 => running_xacts(&mut cursor).map(StandbyRecord::RunningXacts),
        0x20 => Ok(StandbyRecord::Invalidations),
        opcode => Err(MainDataError::Opcode { rmgr: RmgrId::STANDBY, opcode }),
    }
}

fn locks(cursor: &mut Cursor<'_>) -> Result<Vec<StandbyLock>, MainDataError> {
    let count = count(cursor)?;
    let mut bytes = Cursor::new(cursor.take((count as usize).saturating_mul(12))?);
    let mut locks = Vec::with_capacity(bytes.remaining() / 12);
    while bytes.remaining() > 0 {
        locks.push(StandbyLock { xid: bytes.u32()?, db: bytes.u32()?, rel: bytes.u32()? });
    }
    Ok(locks)
}

fn running_xacts(cursor: &mut Cursor<'_>) -> Result<RunningXacts, MainDataError> {
    let (xid_count, subxid_count) = (count(cursor)?, count(cursor)?);
    let subxid_overflow = cursor.u8()? != 0;
    cursor.align(4)?;
    Ok(RunningXacts {
        subxid_overflow,
        next_xid: cursor.u32()?,
        oldest_running_xid: cursor.u32()?,
        latest_completed_xid: cursor.u32()?,
        xids: cursor.u32_array(xid_count)?,
        subxids: cursor.u32_array(subxid_count)?,
    })
}
