//! Changes to SLRU pages: transaction status, multixacts, commit timestamps.
//!
//! These pages have no header and no LSN, and the records that change them have no block references; the caller knows
//! which pages a record touches and passes one page at a time. Entries on other pages are skipped, so the same list
//! can be passed for each page of a record.

use postgres_formats::page::PageBytes;
use postgres_formats::slru::{
    self as place, CLOG_XACTS_PER_PAGE, COMMIT_TS_PER_PAGE, MEMBERS_PER_PAGE, OFFSETS_PER_PAGE,
};

/// Multixact ids wrap around to this (`FirstMultiXactId`).
const FIRST_MULTIXACT: u32 = 1;

/// Outcome of a transaction in `pg_xact`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XactStatus {
    /// `TRANSACTION_STATUS_COMMITTED`.
    Committed,
    /// `TRANSACTION_STATUS_ABORTED`.
    Aborted,
}

/// Sets the status of those of `xids` that are on `pg_xact` page `pageno`.
pub fn set_xact_status(page: &mut PageBytes, pageno: u32, xids: impl IntoIterator<Item = u32>, status: XactStatus) {
    let status = match status {
        XactStatus::Committed => place::XactStatus::Committed,
        XactStatus::Aborted => place::XactStatus::Aborted,
    };
    for xid in xids.into_iter().filter(|xid| xid / CLOG_XACTS_PER_PAGE == pageno) {
        place::set_clog_status(page, xid, status);
    }
}

/// Records on `pg_multixact/offsets` page `pageno` where the members of multixact `mid` start and, like minor
/// releases since February 2026 (14.21, 15.16, 16.12, 17.8, 18.2), where those of the next multixact will start.
///
/// Older servers themselves write the second entry later, with the same value, so writing it for them is harmless.
pub fn create_multixact_offset(page: &mut PageBytes, pageno: u32, mid: u32, first_member: u32, members: u32) {
    set_multixact_offset(page, pageno, mid, first_member);
    let next_mid = mid.wrapping_add(1).max(FIRST_MULTIXACT);
    // Offset 0 means "not written yet", so no multixact may start there.
    let next_offset = first_member.wrapping_add(members).max(1);
    set_multixact_offset(page, pageno, next_mid, next_offset);
}

/// Sets only the entry of multixact `mid`, if it is on `pg_multixact/offsets` page `pageno`.
pub fn set_multixact_offset(page: &mut PageBytes, pageno: u32, mid: u32, first_member: u32) {
    if mid / OFFSETS_PER_PAGE == pageno {
        put(page, place::offset_position(mid), &first_member.to_le_bytes());
    }
}

/// Writes those of `members` (transaction id, `MultiXactStatus`) that are on `pg_multixact/members` page `pageno`;
/// the first has offset `first_member`, the others follow modulo 2^32.
pub fn create_multixact_members(
    page: &mut PageBytes,
    pageno: u32,
    first_member: u32,
    members: impl IntoIterator<Item = (u32, u8)>,
) {
    let mut member = first_member;
    for (xid, status) in members {
        if member / MEMBERS_PER_PAGE == pageno {
            let (status_at, xid_at) = place::member_position(member);
            put(page, status_at, &[status]);
            put(page, xid_at, &xid.to_le_bytes());
        }
        member = member.wrapping_add(1);
    }
}

/// Sets commit time (microseconds since 2000-01-01) and replication origin of those of `xids` that are on
/// `pg_commit_ts` page `pageno`.
pub fn set_commit_ts(
    page: &mut PageBytes,
    pageno: u32,
    xids: impl IntoIterator<Item = u32>,
    time_us: i64,
    origin: u16,
) {
    for xid in xids.into_iter().filter(|xid| xid / COMMIT_TS_PER_PAGE == pageno) {
        let at = place::commit_ts_position(xid);
        put(page, at, &time_us.to_le_bytes());
        put(page, at + 8, &origin.to_le_bytes());
    }
}

/// All positions above are within the page by construction.
fn put(page: &mut PageBytes, at: usize, bytes: &[u8]) {
    if let Some(target) = page.get_mut(at..at + bytes.len()) {
        target.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_touches_only_its_bits_and_its_page() {
        let mut page = [0u8; 8192];
        set_xact_status(&mut page, 1, [32768, 32770, 32771, 5], XactStatus::Committed);
        set_xact_status(&mut page, 1, [32769], XactStatus::Aborted);
        set_xact_status(&mut page, 1, [65535], XactStatus::Committed);
        assert_eq!(page[0], 0b01_01_10_01);
        assert_eq!(page[8191], 0b01_00_00_00);
        assert!(page[1..8191].iter().all(|b| *b == 0));
        set_xact_status(&mut page, 1, [32768], XactStatus::Aborted);
        assert_eq!(page[0], 0b01_01_10_10);
    }

    #[test]
    fn multixact_offset_sets_the_next_one_too() {
        let mut page = [0u8; 8192];
        create_multixact_offset(&mut page, 0, 7, 100, 3);
        assert_eq!(page[28..36], [100, 0, 0, 0, 103, 0, 0, 0]);
    }

    #[test]
    fn multixact_offset_across_pages_and_wraparound() {
        let (mut first, mut second) = ([0u8; 8192], [0u8; 8192]);
        create_multixact_offset(&mut first, 0, 2047, 9, 2);
        create_multixact_offset(&mut second, 1, 2047, 9, 2);
        assert_eq!(first[8188..], [9, 0, 0, 0]);
        assert_eq!(second[..4], [11, 0, 0, 0]);

        let mut page = [0u8; 8192];
        create_multixact_offset(&mut page, 0, u32::MAX, u32::MAX, 1);
        assert_eq!(page[..8], [0, 0, 0, 0, 1, 0, 0, 0], "both the id and the offset skip zero");
    }

    #[test]
    fn members_fill_groups() {
        let mut page = [0u8; 8192];
        create_multixact_members(&mut page, 1, 1635, [(7, 1), (8, 4), (9, 5), (10, 0), (11, 3), (12, 2)]);
        assert_eq!(page[..4], [4, 5, 0, 3]);
        assert_eq!(page[4..20], [8, 0, 0, 0, 9, 0, 0, 0, 10, 0, 0, 0, 11, 0, 0, 0]);
        assert_eq!(page[20..28], [2, 0, 0, 0, 12, 0, 0, 0]);

        let mut previous = [0u8; 8192];
        create_multixact_members(&mut previous, 0, 1635, [(7, 1), (8, 4)]);
        assert_eq!(previous[408 * 20 + 3], 1);
        assert_eq!(previous[408 * 20 + 16..408 * 20 + 20], [7, 0, 0, 0]);
    }

    #[test]
    fn commit_ts_entry() {
        let mut page = [0u8; 8192];
        set_commit_ts(&mut page, 2, [819 * 2 + 818, 3], -2, 0x0102);
        let at = 8180;
        assert_eq!(page[at..at + 10], [0xFE, 255, 255, 255, 255, 255, 255, 255, 2, 1]);
        assert!(page[..at].iter().all(|b| *b == 0));
    }
}
