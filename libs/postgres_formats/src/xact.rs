//! Transaction records (resource manager 1; `xact.h`): ends of transactions with their consequences, assignments.

use utils::lsn::Lsn;

use crate::{
    cursor::Cursor,
    main_data::{MainDataError, counted_u32s, rel_files, skip_counted, text},
    record::RelFile,
    rmgr::RmgrId,
    version::PgVersion,
};

const OPCODE_MASK: u8 = 0x70;
const HAS_INFO: u8 = 0x80;

/// Bits of `xinfo`.
mod xinfo {
    pub(super) const DBINFO: u32 = 0x01;
    pub(super) const SUBXACTS: u32 = 0x02;
    pub(super) const RELS: u32 = 0x04;
    pub(super) const INVALS: u32 = 0x08;
    pub(super) const TWOPHASE: u32 = 0x10;
    pub(super) const ORIGIN: u32 = 0x20;
    pub(super) const GID: u32 = 0x80;
    pub(super) const DROPPED_STATS: u32 = 0x100;
}

/// Kind of a transaction record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XactOp {
    /// A transaction committed: see [`parse_commit`].
    Commit,
    /// A transaction was prepared: see [`crate::twophase`].
    Prepare,
    /// A transaction aborted: see [`parse_abort`].
    Abort,
    /// A prepared transaction committed: see [`parse_commit`].
    CommitPrepared,
    /// A prepared transaction aborted: see [`parse_abort`].
    AbortPrepared,
    /// Subtransactions were assigned to a transaction: see [`parse_assignment`].
    Assignment,
    /// Invalidation messages, for logical decoding only.
    Invalidations,
}

impl XactOp {
    /// The kind of a record with this `xl_info`.
    pub fn from_info(info: u8) -> Result<Self, MainDataError> {
        Ok(match info & OPCODE_MASK {
            0x00 => Self::Commit,
            0x10 => Self::Prepare,
            0x20 => Self::Abort,
            0x30 => Self::CommitPrepared,
            0x40 => Self::AbortPrepared,
            0x50 => Self::Assignment,
            0x60 => Self::Invalidations,
            opcode => return Err(MainDataError::Opcode { rmgr: RmgrId::XACT, opcode }),
        })
    }
}

/// The source of a transaction that logical replication applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XactOrigin {
    /// LSN of its commit at the origin.
    pub lsn: Lsn,
    /// Time of its commit at the origin, in microseconds since 2000-01-01.
    pub time: i64,
}

/// The end of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XactEnd<'a> {
    /// Time of the end, in microseconds since 2000-01-01.
    pub time: i64,
    /// `xinfo` bits, 0 if the record has none.
    pub xinfo: u32,
    /// Database and its tablespace, if given.
    pub database: Option<(u32, u32)>,
    /// Subtransactions that end with it.
    pub subxacts: Vec<u32>,
    /// Relations whose files (all forks) are removed.
    pub dropped_rels: Vec<RelFile>,
    /// Id of the prepared transaction that ends, if it is one: then the record's own xid is 0.
    pub twophase_xid: Option<u32>,
    /// Name of the prepared transaction, if given.
    pub gid: Option<&'a [u8]>,
    /// Replication origin, if any.
    pub origin: Option<XactOrigin>,
}

/// A commit.
pub type XactCommit<'a> = XactEnd<'a>;

/// An abort.
pub type XactAbort<'a> = XactEnd<'a>;

impl XactEnd<'_> {
    /// The time that `pg_commit_ts` stores: the origin's if there is one.
    pub fn commit_time(&self) -> i64 {
        self.origin.map_or(self.time, |origin| origin.time)
    }
}

/// Parses the main data of `COMMIT` and `COMMIT_PREPARED`; `info` is the record's `xl_info`.
pub fn parse_commit(version: PgVersion, info: u8, main_data: &[u8]) -> Result<XactCommit<'_>, MainDataError> {
    parse_end(version, info, main_data, true)
}

/// Parses the main data of `ABORT` and `ABORT_PREPARED`; `info` is the record's `xl_info`.
pub fn parse_abort(version: PgVersion, info: u8, main_data: &[u8]) -> Result<XactAbort<'_>, MainDataError> {
    parse_end(version, info, main_data, false)
}

fn parse_end(version: PgVersion, info: u8, data: &[u8], commit: bool) -> Result<XactEnd<'_>, MainDataError> {
    const INVALIDATION_SIZE: usize = 16;
    let mut cursor = Cursor::new(data);
    let mut end = XactEnd { time: cursor.i64()?, ..XactEnd::default() };
    if info & HAS_INFO == 0 {
        return Ok(end);
    }
    end.xinfo = cursor.u32()?;
    let has = |bit: u32| end.xinfo & bit != 0;
    if has(xinfo::DBINFO) {
        end.database = Some((cursor.u32()?, cursor.u32()?));
    }
    if has(xinfo::SUBXACTS) {
        end.subxacts = counted_u32s(&mut cursor)?;
    }
    if has(xinfo::RELS) {
        let count = crate::main_data::count(&mut cursor)?;
        end.dropped_rels = rel_files(&mut cursor, count)?;
    }
    if has(xinfo::DROPPED_STATS) && version >= PgVersion::V15 {
        skip_counted(&mut cursor, stats_item_size(version))?;
    }
    if has(xinfo::INVALS) && commit {
        skip_counted(&mut cursor, INVALIDATION_SIZE)?;
    }
    if has(xinfo::TWOPHASE) {
        end.twophase_xid = Some(cursor.u32()?);
        if has(xinfo::GID) {
            end.gid = Some(text(&mut cursor)?);
        }
    }
    if has(xinfo::ORIGIN) {
        end.origin = Some(XactOrigin { lsn: Lsn(cursor.u64()?), time: cursor.i64()? });
    }
    Ok(end)
}

/// Size of `xl_xact_stats_item`, whose object id grew to 64 bits in 18.
fn stats_item_size(version: PgVersion) -> usize {
    if version >= PgVersion::V18 { 16 } else { 12 }
}

/// Subtransactions and the top-level transaction that they belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XactAssignment {
    /// The top-level transaction.
    pub top_xid: u32,
    /// Its subtransactions.
    pub subxacts: Vec<u32>,
}

/// Parses the main data of `ASSIGNMENT`.
pub fn parse_assignment(main_data: &[u8]) -> Result<XactAssignment, MainDataError> {
    let mut cursor = Cursor::new(main_data);
    Ok(XactAssignment { top_xid: cursor.u32()?, subxacts: counted_u32s(&mut cursor)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    fn full_commit(stats_item: usize) -> Vec<u8> {
        let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>();
        bytes(&[
            &77i64.to_le_bytes(),
            &words(&[0x1BF, 5, 1663, 2, 101, 102, 1, 1663, 5, 16384, 1]),
            &vec![9; stats_item],
            &words(&[1]),
            &[8; 16],
            &words(&[500]),
            b"gid\0",
            &0x1_0000_0002u64.to_le_bytes(),
            &88i64.to_le_bytes(),
        ])
    }

    #[test]
    fn commit_with_everything() {
        for (version, item) in [(PgVersion::V15, 12), (PgVersion::V17, 12), (PgVersion::V18, 16)] {
            let data = full_commit(item);
            let commit = parse_commit(version, 0xB0, &data).unwrap();
            assert_eq!((commit.time, commit.commit_time()), (77, 88));
            assert_eq!((commit.database, commit.twophase_xid), (Some((5, 1663)), Some(500)));
            assert_eq!((&commit.subxacts[..], commit.gid), (&[101, 102][..], Some(&b"gid"[..])));
            assert_eq!(commit.dropped_rels, [RelFile { spc: 1663, db: 5, rel: 16384 }]);
            assert_eq!(commit.origin, Some(XactOrigin { lsn: Lsn(0x1_0000_0002), time: 88 }));
            for cut in 0..data.len() {
                assert!(parse_commit(version, 0xB0, &data[..cut]).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn without_info_only_the_time_counts() {
        let data = 5i64.to_le_bytes();
        let abort = parse_abort(PgVersion::V14, 0x20, &data).unwrap();
        assert_eq!(abort, XactEnd { time: 5, ..XactEnd::default() });
    }

    #[test]
    fn huge_and_negative_counts_are_errors() {
        for count in [-1i32, i32::MAX] {
            let data = bytes(&[&[0; 8], &2u32.to_le_bytes(), &count.to_le_bytes(), &[0; 8]]);
            assert!(parse_commit(PgVersion::V16, 0x80, &data).is_err());
        }
        assert_eq!(parse_assignment(&[1, 0, 0, 0, 255, 255, 255, 255]), Err(MainDataError::Count(-1)));
        assert_eq!(
            XactOp::from_info(0x70 | HAS_INFO).unwrap_err().to_string(),
            "resource manager Transaction has no operation 0x70"
        );
    }
}
