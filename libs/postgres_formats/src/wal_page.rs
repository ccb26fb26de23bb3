//! Headers of WAL pages (`XLogPageHeaderData`, `XLogLongPageHeaderData`).

use thiserror::Error;
use utils::lsn::Lsn;

use crate::{
    cursor::{Cursor, Truncated},
    version::PgVersion,
};

/// Size of a WAL page in bytes.
pub const WAL_PAGE_SIZE: usize = crate::BLCKSZ;
/// Size of a page header.
pub const SHORT_HEADER_SIZE: usize = 24;
/// Size of the header of a segment's first page.
pub const LONG_HEADER_SIZE: usize = 40;

/// `XLP_FIRST_IS_CONTRECORD`: the page begins with the rest of a record.
pub const FIRST_IS_CONTRECORD: u16 = 0x0001;
/// `XLP_LONG_HEADER`: first page of a segment.
pub const LONG_HEADER: u16 = 0x0002;
/// `XLP_BKP_REMOVABLE`: archivers may omit the full-page images on the page.
pub const BKP_REMOVABLE: u16 = 0x0004;
/// `XLP_FIRST_IS_OVERWRITE_CONTRECORD`: the record that should continue here was cut short by a crash.
pub const FIRST_IS_OVERWRITE_CONTRECORD: u16 = 0x0008;

const ALL_FLAGS: u16 = 0x000F;

/// Additional fields in the header of a segment's first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongHeader {
    /// System identifier, as in the control file.
    pub system_identifier: u64,
    /// Size of a segment in bytes.
    pub segment_size: u32,
    /// Size of a WAL page in bytes.
    pub page_size: u32,
}

/// Header of a WAL page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalPageHeader {
    /// `xlp_magic`: identifies the version.
    pub magic: u16,
    /// `xlp_info` flags.
    pub info: u16,
    /// Timeline of the first record that starts on the page.
    pub timeline: u32,
    /// LSN of the page's start.
    pub address: Lsn,
    /// Length of the rest of the record with which the page begins; 0 if none.
    pub remaining_len: u32,
    /// Only on the first page of a segment.
    pub long: Option<LongHeader>,
}

/// What is wrong with a page header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WalPageError {
    /// The header is incomplete.
    #[error("WAL page header: {0}")]
    Truncated(#[from] Truncated),
    /// The magic number is not that of the version.
    #[error("WAL page has magic {found:04X}, expected {expected:04X}")]
    Magic {
        /// The page's magic number.
        found: u16,
        /// The version's magic number.
        expected: u16,
    },
    /// Unknown flags, or a long header at the wrong position.
    #[error("WAL page has invalid info bits {0:04X}")]
    Info(u16),
    /// WAL of another cluster.
    #[error("WAL page is of system {found}, expected {expected}")]
    System {
        /// The page's system identifier.
        found: u64,
        /// The expected system identifier.
        expected: u64,
    },
    /// A different segment size.
    #[error("WAL page says segments of {found} bytes, expected {expected}")]
    SegmentSize {
        /// The page's segment size.
        found: u32,
        /// The expected segment size.
        expected: u32,
    },
    /// A different WAL page size.
    #[error("WAL page says pages of {0} bytes")]
    PageSize(u32),
    /// The page belongs to another position: usually left over from before the segment file was recycled.
    #[error("WAL page has address {found}, expected {expected}")]
    Address {
        /// The address in the page.
        found: Lsn,
        /// The actual position of the page.
        expected: Lsn,
    },
    /// The timeline is older than that of an earlier page.
    #[error("WAL page is of timeline {found} after timeline {seen}")]
    Timeline {
        /// The page's timeline.
        found: u32,
        /// Newest timeline seen before.
        seen: u32,
    },
}

/// The expectations for checking a page header.
#[derive(Clone, Copy, Debug)]
pub struct WalPageContext {
    /// Major version.
    pub version: PgVersion,
    /// Size of a segment in bytes.
    pub segment_size: u32,
    /// System identifier, if known.
    pub system_identifier: Option<u64>,
    /// Newest timeline of the preceding pages, if any.
    pub timeline: Option<u32>,
}

impl WalPageHeader {
    /// Size of the header of the page at `address`.
    pub const fn size_at(address: Lsn, segment_size: u32) -> usize {
        if address.0.is_multiple_of(segment_size as u64) { LONG_HEADER_SIZE } else { SHORT_HEADER_SIZE }
    }

    /// Decodes a header; a long one if its flag says so.
    pub fn decode(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut cursor = Cursor::new(bytes);
        let (magic, info, timeline) = (cursor.u16()?, cursor.u16()?, cursor.u32()?);
        let (address, remaining_len) = (Lsn(cursor.u64()?), cursor.u32()?);
        cursor.skip(4)?;
        let long = if info & LONG_HEADER != 0 {
            Some(LongHeader { system_identifier: cursor.u64()?, segment_size: cursor.u32()?, page_size: cursor.u32()? })
        } else {
            None
        };
        Ok(Self { magic, info, timeline, address, remaining_len, long })
    }

    /// The header's bytes: 24, or 40 with a long header. The long header's flag is set or cleared as needed.
    pub fn encode(&self) -> Vec<u8> {
        let info = self.info & !LONG_HEADER | if self.long.is_some() { LONG_HEADER } else { 0 };
        let mut bytes = Vec::with_capacity(LONG_HEADER_SIZE);
        bytes.extend_from_slice(&self.magic.to_le_bytes());
        bytes.extend_from_slice(&info.to_le_bytes());
        bytes.extend_from_slice(&self.timeline.to_le_bytes());
        bytes.extend_from_slice(&self.address.0.to_le_bytes());
        bytes.extend_from_slice(&self.remaining_len.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        if let Some(long) = self.long {
            bytes.extend_from_slice(&long.system_identifier.to_le_bytes());
            bytes.extend_from_slice(&long.segment_size.to_le_bytes());
            bytes.extend_from_slice(&long.page_size.to_le_bytes());
        }
        bytes
    }

    /// Checks that the page belongs at `address` (`XLogReaderValidatePageHeader`).
    pub fn check(&self, address: Lsn, context: &WalPageContext) -> Result<(), WalPageError> {
        let expected = context.version.wal_magic();
        if self.magic != expected {
            return Err(WalPageError::Magic { found: self.magic, expected });
        }
        let first_of_segment = address.0.is_multiple_of(context.segment_size.into());
        if self.info & !ALL_FLAGS != 0 || first_of_segment != self.long.is_some() {
            return Err(WalPageError::Info(self.info));
        }
        if let Some(long) = self.long {
            check_long(&long, context)?;
        }
        if self.address != address {
            return Err(WalPageError::Address { found: self.address, expected: address });
        }
        match context.timeline {
            Some(seen) if self.timeline < seen => Err(WalPageError::Timeline { found: self.timeline, seen }),
            _ => Ok(()),
        }
    }

    /// Whether the page begins with the rest of a record.
    pub const fn begins_with_rest(&self) -> bool {
        self.info & FIRST_IS_CONTRECORD != 0
    }

    /// Whether the record that should continue on the page was cut short.
    pub const fn overwrites_contrecord(&self) -> bool {
        self.info & FIRST_IS_OVERWRITE_CONTRECORD != 0
    }
}

fn check_long(long: &LongHeader, context: &WalPageContext) -> Result<(), WalPageError> {
    match context.system_identifier {
        Some(expected) if long.system_identifier != expected => {
            Err(WalPageError::System { found: long.system_identifier, expected })
        }
        _ if long.segment_size != context.segment_size => {
            Err(WalPageError::SegmentSize { found: long.segment_size, expected: context.segment_size })
        }
        _ if long.page_size as usize != WAL_PAGE_SIZE => Err(WalPageError::PageSize(long.page_size)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u32 = 1 << 20;

    fn header(address: u64, long: bool) -> WalPageHeader {
        let version = PgVersion::V16;
        let long = long.then_some(LongHeader { system_identifier: 9, segment_size: SEGMENT, page_size: 8192 });
        let info = if long.is_some() { LONG_HEADER } else { 0 };
        let magic = version.wal_magic();
        WalPageHeader { magic, info, timeline: 3, address: Lsn(address), remaining_len: 0, long }
    }

    fn check(header: WalPageHeader, address: u64) -> Result<(), WalPageError> {
        let version = PgVersion::V16;
        let context = WalPageContext { version, segment_size: SEGMENT, system_identifier: Some(9), timeline: Some(3) };
        header.check(Lsn(address), &context)
    }

    #[test]
    fn round_trip() {
        for (header, size) in [(header(SEGMENT.into(), true), 40), (header(8192, false), 24)] {
            let bytes = header.encode();
            assert_eq!(bytes.len(), size);
            assert_eq!(WalPageHeader::decode(&bytes), Ok(header));
            assert_eq!(check(header, header.address.0), Ok(()));
            assert!(WalPageHeader::decode(&bytes[..size - 1]).is_err());
        }
    }

    #[test]
    fn each_broken_rule_has_its_error() {
        let (short, long) = (header(8192, false), header(0, true));
        let changed_long = |change: fn(&mut LongHeader)| {
            let mut header = long;
            header.long.iter_mut().for_each(change);
            check(header, 0)
        };
        assert!(matches!(check(WalPageHeader { magic: 1, ..short }, 8192), Err(WalPageError::Magic { .. })));
        assert_eq!(check(WalPageHeader { info: 0x10, ..short }, 8192), Err(WalPageError::Info(0x10)));
        assert_eq!(check(header(0, false), 0), Err(WalPageError::Info(0)));
        assert_eq!(check(header(8192, true), 8192), Err(WalPageError::Info(2)));
        assert!(matches!(changed_long(|long| long.system_identifier = 8), Err(WalPageError::System { .. })));
        assert!(matches!(changed_long(|long| long.segment_size = 8), Err(WalPageError::SegmentSize { .. })));
        assert_eq!(changed_long(|long| long.page_size = 8), Err(WalPageError::PageSize(8)));
        assert!(matches!(check(short, 16384), Err(WalPageError::Address { .. })));
        assert!(matches!(check(WalPageHeader { timeline: 2, ..short }, 8192), Err(WalPageError::Timeline { .. })));
        assert_eq!(check(WalPageHeader { timeline: 4, ..short }, 8192), Ok(()));
    }
}
