//! SLRUs: small logs of fixed-size entries in 8 kB pages without header, 32 pages to a file. Computes the page, file,
//! and position of an entry.

use crate::{BLCKSZ, cursor::Cursor, main_data::MainDataError, page::PageBytes, version::PgVersion};

/// Pages per segment file (`SLRU_PAGES_PER_SEGMENT`).
pub const PAGES_PER_SEGMENT: u32 = 32;

/// Transactions per page of `pg_xact`.
pub const CLOG_XACTS_PER_PAGE: u32 = 32768;
/// Multixacts per page of `pg_multixact/offsets`.
pub const OFFSETS_PER_PAGE: u32 = 2048;
/// Members per page of `pg_multixact/members`.
pub const MEMBERS_PER_PAGE: u32 = 1636;
/// Transactions per page of `pg_commit_ts`.
pub const COMMIT_TS_PER_PAGE: u32 = 819;

/// Size of a `pg_commit_ts` entry.
pub const COMMIT_TS_ENTRY_SIZE: usize = 10;

/// Members that share one group of flag bytes.
const MEMBERS_PER_GROUP: u32 = 4;
/// Four flag bytes and four transaction ids.
const MEMBER_GROUP_SIZE: u32 = 20;

/// The SLRUs that a cluster cannot start without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlruKind {
    /// Status of transactions.
    Clog,
    /// First member of each multixact.
    MultiXactOffsets,
    /// Members of multixacts.
    MultiXactMembers,
    /// Commit timestamps.
    CommitTs,
}

impl SlruKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Clog, Self::MultiXactOffsets, Self::MultiXactMembers, Self::CommitTs];

    /// The directory within the data directory.
    pub const fn directory(self) -> &'static str {
        match self {
            Self::Clog => "pg_xact",
            Self::MultiXactOffsets => "pg_multixact/offsets",
            Self::MultiXactMembers => "pg_multixact/members",
            Self::CommitTs => "pg_commit_ts",
        }
    }

    /// Number of entries that a page holds.
    pub const fn entries_per_page(self) -> u32 {
        match self {
            Self::Clog => CLOG_XACTS_PER_PAGE,
            Self::MultiXactOffsets => OFFSETS_PER_PAGE,
            Self::MultiXactMembers => MEMBERS_PER_PAGE,
            Self::CommitTs => COMMIT_TS_PER_PAGE,
        }
    }

    /// The page of entry `number`: a transaction id, multixact id, or member offset.
    pub const fn page_of(self, number: u32) -> SlruPage {
        SlruPage(number / self.entries_per_page())
    }
}

/// Number of a page within an SLRU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlruPage(pub u32);

impl SlruPage {
    /// The segment file that contains the page.
    pub const fn segment(self) -> u32 {
        self.0 / PAGES_PER_SEGMENT
    }

    /// Number of the page within its segment file.
    pub const fn block(self) -> u32 {
        self.0 % PAGES_PER_SEGMENT
    }
}

/// Name of segment file `segment` within its directory: at least four hexadecimal digits.
pub fn segment_file_name(segment: u32) -> String {
    format!("{segment:04X}")
}

/// The segment number of a file with this name; `None` if it is not a segment file.
pub fn parse_segment_file_name(name: &str) -> Option<u32> {
    let segment = u32::from_str_radix(name, 16).ok()?;
    (segment_file_name(segment) == name).then_some(segment)
}

/// Status of a transaction in `pg_xact`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XactStatus {
    /// Running, or lost in a crash.
    InProgress,
    /// Committed.
    Committed,
    /// Aborted.
    Aborted,
    /// A subtransaction that is committed if its parent is.
    SubCommitted,
}

/// The byte and the bit shift of `xid`'s status within its page.
pub const fn clog_position(xid: u32) -> (usize, u32) {
    let within = xid % CLOG_XACTS_PER_PAGE;
    ((within / 4) as usize, (within % 4) * 2)
}

/// The status of `xid`; `page` must be the page that contains it.
pub fn clog_status(page: &PageBytes, xid: u32) -> XactStatus {
    let (byte, shift) = clog_position(xid);
    match page.get(byte).map_or(0, |bits| bits >> shift & 3) {
        0 => XactStatus::InProgress,
        1 => XactStatus::Committed,
        2 => XactStatus::Aborted,
        _ => XactStatus::SubCommitted,
    }
}

/// Sets the status of `xid`; `page` must be the page that contains it.
pub fn set_clog_status(page: &mut PageBytes, xid: u32, status: XactStatus) {
    let (byte, shift) = clog_position(xid);
    if let Some(bits) = page.get_mut(byte) {
        *bits = *bits & !(3 << shift) | (status as u8) << shift;
    }
}

/// Byte offset of multixact `id`'s entry (a `u32` member offset) within its page.
pub const fn offset_position(id: u32) -> usize {
    (id % OFFSETS_PER_PAGE) as usize * 4
}

/// Byte offsets of a member's status (one byte) and of its transaction id (`u32`) within its page.
pub const fn member_position(offset: u32) -> (usize, usize) {
    let within = offset % MEMBERS_PER_PAGE;
    let group = within / MEMBERS_PER_GROUP * MEMBER_GROUP_SIZE;
    let number = within % MEMBERS_PER_GROUP;
    ((group + number) as usize, (group + MEMBERS_PER_GROUP + 4 * number) as usize)
}

/// Byte offset of the commit timestamp entry of `xid` (time as `i64`, origin as `u16`) within its page.
pub const fn commit_ts_position(xid: u32) -> usize {
    (xid % COMMIT_TS_PER_PAGE) as usize * COMMIT_TS_ENTRY_SIZE
}

/// Reads a page number of a record: 32 bits up to 16, then 64 bits, of which logged SLRUs never use more than 32.
pub(crate) fn page_number(version: PgVersion, cursor: &mut Cursor<'_>) -> Result<u32, MainDataError> {
    if !version.wide_slru_pages() {
        return Ok(cursor.u32()?);
    }
    let page = cursor.u64()?;
    u32::try_from(page).map_err(|_| MainDataError::Value { field: "page number", value: page })
}

// Entries never extend beyond the end of a page.
const _: () = assert!(commit_ts_position(COMMIT_TS_PER_PAGE - 1) + COMMIT_TS_ENTRY_SIZE <= BLCKSZ);
const _: () = assert!(member_position(MEMBERS_PER_PAGE - 1).1 + 4 <= BLCKSZ);
const _: () = assert!(clog_position(CLOG_XACTS_PER_PAGE - 1).0 < BLCKSZ);
const _: () = assert!(offset_position(OFFSETS_PER_PAGE - 1) + 4 <= BLCKSZ);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        assert_eq!(SlruKind::Clog.page_of(32768), SlruPage(1));
        assert_eq!((SlruPage(33).segment(), SlruPage(33).block()), (1, 1));
        assert_eq!(clog_position(32768 + 7), (1, 6));
        assert_eq!(member_position(1636 + 6), (22, 32));
        assert_eq!(commit_ts_position(820), 10);
        assert_eq!(segment_file_name(0x12345), "12345");
        assert_eq!(parse_segment_file_name("00FF"), Some(255));
        for bad in ["FF", "00ff", "+0FF", "", "00012", "0000.tmp"] {
            assert_eq!(parse_segment_file_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn statuses_do_not_disturb_their_neighbours() {
        let mut page = [0; BLCKSZ];
        let all = [XactStatus::Committed, XactStatus::Aborted, XactStatus::SubCommitted, XactStatus::InProgress];
        for (xid, status) in (100..).zip(all.into_iter().cycle()).take(40) {
            set_clog_status(&mut page, xid, XactStatus::SubCommitted);
            set_clog_status(&mut page, xid, status);
        }
        for (xid, status) in (100..).zip(all.into_iter().cycle()).take(40) {
            assert_eq!(clog_status(&page, xid), status);
        }
        assert_eq!(clog_status(&page, 99), XactStatus::InProgress);
        assert_eq!(clog_status(&page, 140), XactStatus::InProgress);
    }
}
