//! Changes that no block reference of a WAL record declares: visibility map bits and SLRU pages.

use pageserver_api::key::Key;
use pageserver_api::record::WalRecord;
use pageserver_api::reltag::SlruKind;
use postgres_formats::record::peek;
use redo::slru::{self, XactStatus};
use redo::vm;

pub(super) const PAGE_SIZE: usize = 8192;
/// A page's bytes.
pub(super) type Page = [u8; PAGE_SIZE];

/// Pages per SLRU segment file (`SLRU_PAGES_PER_SEGMENT`).
const SLRU_PAGES_PER_SEGMENT: u32 = 32;
const VM_FORK: u8 = 2;

/// Whether the record is meaningless without an earlier version of its page. A missing visibility map page has all
/// bits clear, so more can be cleared; SLRU pages are always initialized by a record of their own.
pub(super) fn needs_page(record: &WalRecord) -> bool {
    match record {
        // A hint record without an image changes nothing, and would leave the page all zero.
        WalRecord::Postgres { will_init, record, .. } => {
            !will_init && peek(record).is_some_and(|header| header.is_hint())
        }
        WalRecord::ClearVisibilityMap { .. } | WalRecord::TruncateVisibilityMap { .. } => false,
        WalRecord::ClogSetCommitted { .. }
        | WalRecord::ClogSetAborted { .. }
        | WalRecord::MultiXactOffset { .. }
        | WalRecord::MultiXactMembers { .. }
        | WalRecord::CommitTs { .. } => true,
    }
}

/// Applies `record` to the page of `key`. Fails if the record is not for a page of that kind.
pub(super) fn apply(key: Key, page: &mut Page, record: &WalRecord) -> Result<(), String> {
    match record {
        WalRecord::Postgres { .. } => Err("is a WAL record".to_owned()),
        WalRecord::ClearVisibilityMap { heap_blocks, flags } => {
            let map_page = vm_page(key)?;
            for block in heap_blocks.iter().filter(|block| vm::position(**block).page == map_page) {
                vm::clear_bits(page, *block, *flags);
            }
            Ok(())
        }
        WalRecord::TruncateVisibilityMap { first_heap_block } => {
            truncate(vm_page(key)?, page, *first_heap_block);
            Ok(())
        }
        WalRecord::ClogSetCommitted { xids, .. } => set_status(key, page, xids, XactStatus::Committed),
        WalRecord::ClogSetAborted { xids } => set_status(key, page, xids, XactStatus::Aborted),
        WalRecord::MultiXactOffset { multi, offset, members } => {
            let pageno = slru_page(key, SlruKind::MultiXactOffsets)?;
            slru::create_multixact_offset(page, pageno, *multi, *offset, *members);
            Ok(())
        }
        WalRecord::MultiXactMembers { offset, members } => {
            let pageno = slru_page(key, SlruKind::MultiXactMembers)?;
            if members.iter().any(|(_, status)| *status > u32::from(u8::MAX)) {
                return Err("multixact member status is no byte".to_owned());
            }
            let members = members.iter().map(|(xid, status)| (*xid, *status as u8));
            slru::create_multixact_members(page, pageno, *offset, members);
            Ok(())
        }
        WalRecord::CommitTs { xids, timestamp, origin } => {
            let pageno = slru_page(key, SlruKind::CommitTs)?;
            slru::set_commit_ts(page, pageno, xids.iter().copied(), *timestamp, *origin);
            Ok(())
        }
    }
}

fn set_status(key: Key, page: &mut Page, xids: &[u32], status: XactStatus) -> Result<(), String> {
    slru::set_xact_status(page, slru_page(key, SlruKind::Clog)?, xids.iter().copied(), status);
    Ok(())
}

/// Clears the bits of all heap blocks from `first_heap_block` on.
fn truncate(map_page: u32, page: &mut Page, first_heap_block: u32) {
    let cut = vm::position(first_heap_block);
    match cut.page.cmp(&map_page) {
        std::cmp::Ordering::Less => vm::truncate_tail(page, 0, 0),
        std::cmp::Ordering::Equal => vm::truncate_tail(page, cut.byte, cut.shift),
        std::cmp::Ordering::Greater => {}
    }
}

/// Number of the visibility map page with key `key`.
fn vm_page(key: Key) -> Result<u32, String> {
    match key.to_rel_block() {
        Some((rel, block)) if rel.forknum == VM_FORK => Ok(block),
        _ => Err("changes a visibility map, but the key is no page of one".to_owned()),
    }
}

/// Number, counted across all segments, of the page of SLRU `kind` with key `key`.
fn slru_page(key: Key, kind: SlruKind) -> Result<u32, String> {
    match key.to_slru_block() {
        Some((found, segment, block)) if found == kind => {
            Ok(segment.wrapping_mul(SLRU_PAGES_PER_SEGMENT).wrapping_add(block))
        }
        _ => Err(format!("changes {}, but the key is no page of it", kind.dir())),
    }
}
