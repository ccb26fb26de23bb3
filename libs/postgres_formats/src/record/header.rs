//! The fixed record header (`XLogRecord`): parsing, validity, CRC.

use thiserror::Error;

use super::decoded::{HEADER_SIZE, RecordHeader};
use crate::{
    cursor::{Cursor, Truncated, u32_at},
    rmgr::RmgrId,
    version::PgVersion,
};

/// Offset of `xl_crc`, which the CRC does not cover.
const CRC_OFFSET: usize = 20;

/// What is wrong with a fixed record header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// There are fewer bytes than a header.
    #[error("record header: {0}")]
    Truncated(#[from] Truncated),
    /// `xl_tot_len` is less than a header.
    #[error("record length {0} is less than that of a record header")]
    TooShort(u32),
    /// `xl_rmid` is not a resource manager of this version.
    #[error("invalid resource manager id {0}")]
    InvalidRmgr(u8),
}

impl RecordHeader {
    /// Parses the first [`HEADER_SIZE`] bytes and makes all checks that need only these.
    #[inline]
    pub fn parse(version: PgVersion, bytes: &[u8]) -> Result<Self, HeaderError> {
        let header = Self::parse_unchecked(bytes)?;
        if (header.total_len as usize) < HEADER_SIZE {
            return Err(HeaderError::TooShort(header.total_len));
        }
        if !RmgrId(header.rmid).is_valid(version) {
            return Err(HeaderError::InvalidRmgr(header.rmid));
        }
        Ok(header)
    }

    #[inline]
    fn parse_unchecked(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut cursor = Cursor::new(bytes);
        let (total_len, xid, prev) = (cursor.u32()?, cursor.u32()?, cursor.u64()?);
        let (info, rmid) = (cursor.u8()?, cursor.u8()?);
        cursor.skip(2)?;
        Ok(Self { total_len, xid, prev, info, rmid, crc: cursor.u32()? })
    }

    /// The header's bytes, with padding zeroed.
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        let (head, tail) = bytes.split_at_mut(16);
        let head_words = u128::from(self.total_len) | u128::from(self.xid) << 32 | u128::from(self.prev) << 64;
        head.copy_from_slice(&head_words.to_le_bytes());
        let tail_words = u64::from(self.info) | u64::from(self.rmid) << 8 | u64::from(self.crc) << 32;
        tail.copy_from_slice(&tail_words.to_le_bytes());
        bytes
    }

    /// Builds the record from this header and `body`, with its CRC.
    pub fn with_body(self, body: &[u8]) -> Vec<u8> {
        let header = self.encode();
        let (covered, _) = header.split_at(CRC_OFFSET);
        let crc = utils::crc32c::crc32c_append(utils::crc32c::crc32c(body), covered);
        [&Self { crc, ..self }.encode()[..], body].concat()
    }
}

/// CRC-32C of a record: everything after the header first, then the header up to the CRC field.
///
/// `None` if `bytes` is shorter than a header.
pub fn record_crc(bytes: &[u8]) -> Option<u32> {
    let (header, body) = bytes.split_first_chunk::<HEADER_SIZE>()?;
    let covered = header.first_chunk::<CRC_OFFSET>()?;
    Some(utils::crc32c::crc32c_append(utils::crc32c::crc32c(body), covered))
}

/// The header at the start of `bytes`, unchecked; `None` if there are too few.
pub fn peek(bytes: &[u8]) -> Option<RecordHeader> {
    RecordHeader::parse_unchecked(bytes).ok()
}

/// Whether the CRC of a whole record is valid.
pub fn check_crc(bytes: &[u8]) -> bool {
    u32_at(bytes, CRC_OFFSET).is_ok_and(|stored| record_crc(bytes) == Some(stored))
}
