//! SLRUs: their segments and lengths; pages zeroed, changed, and removed with their segments.

use bytes::Bytes;
use pageserver_api::key::slru_block_key;
use pageserver_api::record::WalRecord;
use pageserver_api::reltag::SlruKind;
use postgres_formats::BLCKSZ;
use postgres_formats::clog::ClogRecord;
use postgres_formats::commit_ts::CommitTsRecord;
use postgres_formats::slru::{CLOG_XACTS_PER_PAGE, COMMIT_TS_PER_PAGE, PAGES_PER_SEGMENT};
use redo::slru as page_redo;

use super::relations::ZERO_PAGE;
use super::{IngestError, WalIngest};
use crate::store::PageStore;

impl<S: PageStore> WalIngest<S> {
    /// Whether an SLRU has this page.
    pub(super) fn slru_page_exists(&self, kind: SlruKind, page: u32) -> bool {
        self.slrus.size(kind, page / PAGES_PER_SEGMENT).is_some_and(|size| page % PAGES_PER_SEGMENT < size)
    }

    /// Starts a page as zeros.
    pub(super) fn zero_slru_page(&mut self, kind: SlruKind, page: u32) {
        self.put_new_slru_page(kind, page, Bytes::from_static(&ZERO_PAGE));
    }

    /// Applies a change to a page. A missing page starts as zeros, as in the server's replay.
    pub(super) fn change_slru_page(&mut self, kind: SlruKind, page: u32, change: WalRecord) {
        let (segment, block) = (page / PAGES_PER_SEGMENT, page % PAGES_PER_SEGMENT);
        if self.slru_page_exists(kind, page) {
            self.put_change(slru_block_key(kind, segment, block), change);
            return;
        }
        let mut image = Box::new(ZERO_PAGE);
        apply_to_page(&mut image, page, &change);
        self.put_new_slru_page(kind, page, Bytes::copy_from_slice(&image[..]));
    }

    fn put_new_slru_page(&mut self, kind: SlruKind, page: u32, image: Bytes) {
        let (segment, block) = (page / PAGES_PER_SEGMENT, page % PAGES_PER_SEGMENT);
        let before = self.slrus.extend(kind, segment, block + 1);
        for skipped in before..block {
            self.put_image(slru_block_key(kind, segment, skipped), Bytes::from_static(&ZERO_PAGE));
        }
        self.put_image(slru_block_key(kind, segment, block), image);
    }

    pub(super) fn remove_slru_segments(&mut self, kind: SlruKind, goes: impl Fn(u32) -> bool) {
        self.slrus.remove(kind, goes);
    }

    pub(super) fn apply_clog(&mut self, record: &ClogRecord) -> Result<(), IngestError> {
        match *record {
            ClogRecord::ZeroPage { page } => self.zero_slru_page(SlruKind::Clog, page),
            ClogRecord::Truncate { page, oldest_xid, oldest_xid_db } => {
                self.remove_slru_segments(SlruKind::Clog, |segment| {
                    segment_precedes(segment, page, |a, b| xid_page_precedes(a, b, CLOG_XACTS_PER_PAGE))
                });
                self.counters.oldest_xid(oldest_xid, oldest_xid_db);
            }
        }
        Ok(())
    }

    pub(super) fn apply_commit_ts(&mut self, record: &CommitTsRecord) -> Result<(), IngestError> {
        match *record {
            CommitTsRecord::ZeroPage { page } => self.zero_slru_page(SlruKind::CommitTs, page),
            CommitTsRecord::Truncate { page, oldest_xid } => {
                self.remove_slru_segments(SlruKind::CommitTs, |segment| {
                    segment_precedes(segment, page, |a, b| xid_page_precedes(a, b, COMMIT_TS_PER_PAGE))
                });
                self.counters.oldest_commit_ts(oldest_xid);
            }
        }
        Ok(())
    }
}

/// Whether a whole segment is before `cutoff`, rounded down to its segment (`SlruMayDeleteSegment`).
pub(super) fn segment_precedes(segment: u32, cutoff: u32, precedes: impl Fn(u32, u32) -> bool) -> bool {
    let cutoff = cutoff - cutoff % PAGES_PER_SEGMENT;
    let first = segment.saturating_mul(PAGES_PER_SEGMENT);
    precedes(first, cutoff) && precedes(first.saturating_add(PAGES_PER_SEGMENT - 1), cutoff)
}

/// Whether page `a` of a transaction log is before page `b` on the circle of ids (`CLOGPagePrecedes`): its first id
/// is before all ids of `b`.
fn xid_page_precedes(a: u32, b: u32, per_page: u32) -> bool {
    const FIRST_NORMAL_XID: u32 = 3;
    page_precedes(a, b, per_page, FIRST_NORMAL_XID + 1)
}

/// Like [`xid_page_precedes`]; `first` skips special ids.
pub(super) fn page_precedes(a: u32, b: u32, per_page: u32, first: u32) -> bool {
    let first_id = |page: u32| page.wrapping_mul(per_page).wrapping_add(first);
    let precedes = |a: u32, b: u32| (a.wrapping_sub(b) as i32) < 0;
    precedes(first_id(a), first_id(b)) && precedes(first_id(a), first_id(b).wrapping_add(per_page - 1))
}

/// Applies a change to page number `page` of its SLRU.
pub(super) fn apply_to_page(image: &mut [u8; BLCKSZ], page: u32, change: &WalRecord) {
    use page_redo::XactStatus::{Aborted, Committed};
    match change {
        WalRecord::ClogSetCommitted { xids, .. } => {
            page_redo::set_xact_status(image, page, xids.iter().copied(), Committed);
        }
        WalRecord::ClogSetAborted { xids } => {
            page_redo::set_xact_status(image, page, xids.iter().copied(), Aborted);
        }
        WalRecord::MultiXactOffset { multi, offset, members } => {
            page_redo::create_multixact_offset(image, page, *multi, *offset, *members);
        }
        WalRecord::MultiXactMembers { offset, members } => {
            let members = members.iter().map(|(xid, status)| (*xid, *status as u8));
            page_redo::create_multixact_members(image, page, *offset, members);
        }
        WalRecord::CommitTs { xids, timestamp, origin } => {
            page_redo::set_commit_ts(image, page, xids.iter().copied(), *timestamp, *origin);
        }
        WalRecord::Postgres { .. } | WalRecord::ClearVisibilityMap { .. } | WalRecord::TruncateVisibilityMap { .. } => {
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_before_the_cutoff_go_also_across_the_wraparound() {
        let goes = |segment, cutoff| segment_precedes(segment, cutoff, |a, b| xid_page_precedes(a, b, 32768));
        assert!(goes(0, 33) && goes(0, 63) && goes(1, 64));
        assert!(!goes(0, 31) && !goes(1, 63) && !goes(2, 64));
        // 4096 segments hold all ids; those more than half a circle ahead are old ones.
        assert!(goes(4095, 32) && !goes(1000, 32 * 4095));
    }
}
