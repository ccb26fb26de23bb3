//! Multixacts: offsets of their members, the members, and the removal of old ones.

use pageserver_api::record::WalRecord;
use pageserver_api::reltag::SlruKind;
use postgres_formats::multixact::{MultiXactMember, MultiXactRecord};
use postgres_formats::slru::{MEMBERS_PER_PAGE, OFFSETS_PER_PAGE, PAGES_PER_SEGMENT};

use super::slru::{page_precedes, segment_precedes};
use super::{IngestError, WalIngest};
use crate::store::PageStore;

const FIRST_MULTI: u32 = 1;
/// Members per segment file.
const MEMBERS_PER_SEGMENT: u32 = MEMBERS_PER_PAGE * PAGES_PER_SEGMENT;

impl<S: PageStore> WalIngest<S> {
    pub(super) fn apply_multixact(&mut self, record: &MultiXactRecord) -> Result<(), IngestError> {
        match record {
            MultiXactRecord::ZeroOffsetsPage { page } => self.zero_slru_page(SlruKind::MultiXactOffsets, *page),
            MultiXactRecord::ZeroMembersPage { page } => self.zero_slru_page(SlruKind::MultiXactMembers, *page),
            MultiXactRecord::Create { id, offset, members } => self.create_multi(*id, *offset, members),
            MultiXactRecord::Truncate { oldest_db, ids, members } => {
                self.truncate_multixacts(*ids, *members);
                self.counters.oldest_multi(ids.1, *oldest_db);
            }
        }
        Ok(())
    }

    fn create_multi(&mut self, id: u32, offset: u32, members: &[MultiXactMember]) {
        let count = members.len() as u32;
        // The members of the next multixact start after these. Its entry may be on the next page, which minor
        // releases before 15.16 had not initialized at this point: the page is then created here, and a record that
        // zeroes it later finds no multixact there.
        let next = id.wrapping_add(1).max(FIRST_MULTI);
        let pages = [id / OFFSETS_PER_PAGE, next / OFFSETS_PER_PAGE];
        for page in pages.iter().take(if pages[0] == pages[1] { 1 } else { 2 }) {
            let change = WalRecord::MultiXactOffset { multi: id, offset, members: count };
            self.change_slru_page(SlruKind::MultiXactOffsets, *page, change);
        }
        self.put_members(offset, members);
        self.counters.create_multi(id, offset, count);
        members.iter().for_each(|member| self.counters.see_xid(member.xid));
    }

    /// Writes one change for each page that has some of the members.
    fn put_members(&mut self, offset: u32, members: &[MultiXactMember]) {
        let (mut at, mut rest) = (offset, members);
        while !rest.is_empty() {
            // The last page before the wraparound is shorter.
            let in_page = (MEMBERS_PER_PAGE - at % MEMBERS_PER_PAGE).min((u32::MAX - at).saturating_add(1));
            let (here, later) = rest.split_at(rest.len().min(in_page as usize));
            let list = here.iter().map(|member| (member.xid, u32::from(member.status))).collect();
            let change = WalRecord::MultiXactMembers { offset: at, members: list };
            self.change_slru_page(SlruKind::MultiXactMembers, at / MEMBERS_PER_PAGE, change);
            at = at.wrapping_add(here.len() as u32);
            rest = later;
        }
    }

    /// Removes segments as `PerformMembersTruncation` and `PerformOffsetsTruncation` do.
    fn truncate_multixacts(&mut self, ids: (u32, u32), members: (u32, u32)) {
        let (first, end) = (members.0 / MEMBERS_PER_SEGMENT, members.1 / MEMBERS_PER_SEGMENT);
        self.remove_slru_segments(SlruKind::MultiXactMembers, |segment| {
            if first <= end { (first..end).contains(&segment) } else { segment >= first || segment < end }
        });
        let last_gone = if ids.1 <= FIRST_MULTI { u32::MAX } else { ids.1 - 1 };
        self.remove_slru_segments(SlruKind::MultiXactOffsets, |segment| {
            segment_precedes(segment, last_gone / OFFSETS_PER_PAGE, |a, b| {
                page_precedes(a, b, OFFSETS_PER_PAGE, FIRST_MULTI + 1)
            })
        });
    }
}
