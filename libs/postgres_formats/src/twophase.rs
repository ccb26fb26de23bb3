//! Prepared transactions (`twophase.c`): the main data of a `PREPARE` record, which followed by a CRC is also the
//! file in `pg_twophase`.

use thiserror::Error;
use utils::lsn::Lsn;

use crate::{
    cursor::{Cursor, Truncated, slice_at, u32_at},
    main_data::{MainDataError, count, rel_files},
    record::RelFile,
    version::PgVersion,
};

/// The directory of the state files.
pub const DIRECTORY: &str = "pg_twophase";

const MAGIC: u32 = 0x57F9_4534;
const CRC_SIZE: usize = 4;
const ALIGN: usize = 8;

/// Why bytes are not the state of a prepared transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TwoPhaseError {
    /// A field is damaged.
    #[error("two-phase state: {0}")]
    Field(#[from] MainDataError),
    /// The magic number is wrong.
    #[error("two-phase state has magic {0:#x}")]
    Magic(u32),
    /// `total_len` differs from the length including the CRC.
    #[error("two-phase state says {said} bytes, but has {found}")]
    Length {
        /// `total_len`
        said: u32,
        /// Actual length including the CRC.
        found: usize,
    },
    /// The file's CRC is wrong.
    #[error("two-phase state has CRC {stored:#010x}, computed {computed:#010x}")]
    Crc {
        /// Stored in the file.
        stored: u32,
        /// Computed from the file's content.
        computed: u32,
    },
}

impl From<Truncated> for TwoPhaseError {
    fn from(error: Truncated) -> Self {
        Self::Field(error.into())
    }
}

/// A prepared transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedXact<'a> {
    /// Transaction id.
    pub xid: u32,
    /// Database OID.
    pub database: u32,
    /// Time of the prepare, in microseconds since 2000-01-01.
    pub prepared_at: i64,
    /// Role that prepared it.
    pub owner: u32,
    /// Name, without the terminating zero byte.
    pub gid: &'a [u8],
    /// Subtransactions.
    pub subxacts: Vec<u32>,
    /// Relations whose files are removed at commit.
    pub commit_rels: Vec<RelFile>,
    /// Relations whose files are removed at abort.
    pub abort_rels: Vec<RelFile>,
    /// Commit LSN at its replication origin; 0 if none.
    pub origin_lsn: Lsn,
    /// Commit time at its replication origin.
    pub origin_time: i64,
}

/// Parses the main data of a `PREPARE` record.
pub fn parse_prepare(version: PgVersion, main_data: &[u8]) -> Result<PreparedXact<'_>, TwoPhaseError> {
    let mut cursor = Cursor::new(main_data);
    let magic = cursor.u32()?;
    if magic != MAGIC {
        return Err(TwoPhaseError::Magic(magic));
    }
    let (said, found) = (cursor.u32()?, main_data.len() + CRC_SIZE);
    if said as usize != found {
        return Err(TwoPhaseError::Length { said, found });
    }
    let (xid, database, prepared_at, owner) = (cursor.u32()?, cursor.u32()?, cursor.i64()?, cursor.u32()?);
    let (subxacts, commit_rels, abort_rels) = (count(&mut cursor)?, count(&mut cursor)?, count(&mut cursor)?);
    if version >= PgVersion::V15 {
        // Counts of dropped statistics, which follow the relations.
        cursor.skip(8)?;
    }
    cursor.skip(4 + 1)?;
    cursor.align(2)?;
    let gid_len = usize::from(cursor.u16()?);
    cursor.align(ALIGN)?;
    let (origin_lsn, origin_time) = (Lsn(cursor.u64()?), cursor.i64()?);
    let gid = cursor.take(gid_len)?;
    let gid = gid.strip_suffix(&[0]).ok_or(MainDataError::Text)?;
    cursor.align(ALIGN)?;
    let subxacts = cursor.u32_array(subxacts)?;
    cursor.align(ALIGN)?;
    let commit_rels = rel_files(&mut cursor, commit_rels)?;
    cursor.align(ALIGN)?;
    let abort_rels = rel_files(&mut cursor, abort_rels)?;
    Ok(PreparedXact {
        xid,
        database,
        prepared_at,
        owner,
        gid,
        subxacts,
        commit_rels,
        abort_rels,
        origin_lsn,
        origin_time,
    })
}

/// The content of the state file of a transaction whose `PREPARE` record has this main data.
pub fn state_file(main_data: &[u8]) -> Vec<u8> {
    [main_data, &utils::crc32c::crc32c(main_data).to_le_bytes()].concat()
}

/// The main data of the `PREPARE` record for this state file, after checking the CRC.
pub fn main_data_of_file(file: &[u8]) -> Result<&[u8], TwoPhaseError> {
    let len = file.len().saturating_sub(CRC_SIZE);
    let content = slice_at(file, 0, len)?;
    let (stored, computed) = (u32_at(file, len)?, utils::crc32c::crc32c(content));
    if stored == computed { Ok(content) } else { Err(TwoPhaseError::Crc { stored, computed }) }
}

/// Name of the state file of transaction `xid` (with the epoch in the high 32 bits, which is in the name since 17).
pub fn file_name(version: PgVersion, xid: u64) -> String {
    if version >= PgVersion::V17 { format!("{xid:016X}") } else { format!("{:08X}", xid as u32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare(version: PgVersion) -> Vec<u8> {
        let mut data = vec![];
        let mut words = |words: &[u32]| words.iter().for_each(|w| data.extend_from_slice(&w.to_le_bytes()));
        words(&[MAGIC, 0, 700, 5, 11, 0, 10, 2, 1, 1]);
        if version >= PgVersion::V15 {
            words(&[0, 0]);
        }
        words(&[0]);
        data.extend_from_slice(&[1, 0]);
        data.extend_from_slice(&6u16.to_le_bytes());
        data.resize(data.len().next_multiple_of(8), 0);
        data.extend_from_slice(&[0x21; 16]);
        data.extend_from_slice(b"hello\0\0\0");
        [701u32, 702, 1663, 5, 9, 0xEEEE, 1663, 5, 8].iter().for_each(|w| data.extend_from_slice(&w.to_le_bytes()));
        let total = data.len() as u32 + 4;
        data[4..8].copy_from_slice(&total.to_le_bytes());
        data
    }

    #[test]
    fn prepare_in_both_layouts() {
        for version in [PgVersion::V14, PgVersion::V15, PgVersion::V18] {
            let data = prepare(version);
            let state = parse_prepare(version, &data).unwrap();
            assert_eq!((state.xid, state.database, state.owner, state.prepared_at), (700, 5, 10, 11));
            assert_eq!((state.gid, &state.subxacts[..]), (&b"hello"[..], &[701, 702][..]));
            assert_eq!(state.commit_rels, [RelFile { spc: 1663, db: 5, rel: 9 }]);
            assert_eq!(state.abort_rels, [RelFile { spc: 1663, db: 5, rel: 8 }]);
            let file = state_file(&data);
            assert_eq!(main_data_of_file(&file), Ok(&data[..]));
            let mut damaged = file.clone();
            damaged[9] ^= 1;
            assert!(main_data_of_file(&damaged).is_err());
            assert!(parse_prepare(version, &data[..data.len() - 1]).is_err());
        }
    }

    #[test]
    fn file_names_grew_in_17() {
        assert_eq!(file_name(PgVersion::V16, 0x1_0000_02BC), "000002BC");
        assert_eq!(file_name(PgVersion::V17, 0x1_0000_02BC), "00000001000002BC");
    }
}
