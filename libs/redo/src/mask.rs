//! Blanking of page content that WAL does not determine, so that pages can be compared byte for byte.
//!
//! [`mask_page`] follows the masks of PostgreSQL's own consistency check (`wal_consistency_checking`), with which the
//! images in records have to be compared. [`mask_for_files`] blanks less: what differs between a replayed page and the
//! file of a cleanly stopped server.

mod files;
mod index;
#[cfg(test)]
mod tests;

use postgres_formats::page::{LpFlags, PD_ALL_VISIBLE, PD_HAS_FREE_LINES, PD_PAGE_FULL, PageMut};
use postgres_formats::rmgr::RmgrId;

use crate::heap::tuple::{TupleMut, infomask};

pub use files::{PageKind, mask_for_files};

/// A speculative insertion's `t_ctid` has this offset number and a token (`SpecTokenOffsetNumber`).
const SPECULATIVE: u16 = 0xFFFE;

/// Blanks on the page with block number `blkno` what a consistency check of records of resource manager `rmid` ignores.
///
/// Masked bytes become zero. A page whose header makes no sense is only masked as far as it does.
pub fn mask_page(rmid: u8, blkno: u32, page: &mut [u8; 8192]) {
    let page = &mut PageMut::new(page);
    mask_lsn_and_checksum(page);
    match RmgrId(rmid) {
        RmgrId::HEAP | RmgrId::HEAP2 => mask_heap(page, blkno),
        RmgrId::BTREE => index::mask_btree(page),
        RmgrId::HASH => index::mask_hash(page),
        RmgrId::GIN => index::mask_gin(page),
        RmgrId::GIST => index::mask_gist(page),
        RmgrId::SPGIST => index::mask_spgist(page),
        RmgrId::BRIN => index::mask_brin(page),
        RmgrId::SEQ | RmgrId::GENERIC => mask_unused(page),
        // Others have no mask: XLOG images are always applied, never compared.
        _ => {}
    }
}

/// `mask_page_lsn_and_checksum`: primary and replay may set them at different times.
fn mask_lsn_and_checksum(page: &mut PageMut<'_>) {
    page.set_lsn(0);
    page.set_checksum(0);
}

/// `mask_page_hint_bits`: hints about free space and visibility, which may be set without WAL.
fn mask_hint_bits(page: &mut PageMut<'_>) {
    page.set_prune_xid(0);
    page.set_flags(page.flags() & !(PD_HAS_FREE_LINES | PD_PAGE_FULL | PD_ALL_VISIBLE));
}

/// `mask_unused_space`: bytes between line pointers and tuples are what happened to be there.
fn mask_unused(page: &mut PageMut<'_>) {
    let hole = usize::from(page.lower())..usize::from(page.upper());
    if let Some(hole) = page.bytes_mut().get_mut(hole) {
        hole.fill(0);
    }
}

/// `mask_lp_flags`: line pointers of leaf pages are marked dead without WAL.
fn mask_line_pointer_flags(page: &mut PageMut<'_>) {
    for offset in 1..=page.max_offset() {
        if let Ok(item) = page.item_id(offset) {
            let _ = page.set_item_id(offset, item.with_flags(LpFlags::Unused));
        }
    }
}

/// `mask_page_content`: everything but the header, and its bounds of the hole.
fn mask_content(page: &mut PageMut<'_>) {
    if let Some(content) = page.bytes_mut().get_mut(24..) {
        content.fill(0);
    }
    page.set_lower(0);
    page.set_upper(0);
}

/// `heap_mask`: hint bits of tuples, command ids, speculative tokens, alignment padding.
fn mask_heap(page: &mut PageMut<'_>, blkno: u32) {
    mask_hint_bits(page);
    mask_unused(page);
    for offset in 1..=page.max_offset() {
        mask_padding(page, offset);
        if page.item_id(offset).is_ok_and(|item| item.is_normal()) {
            mask_heap_tuple(page, blkno, offset);
        }
    }
}

fn mask_heap_tuple(page: &mut PageMut<'_>, blkno: u32, offset: u16) {
    let Ok(mut tuple) = page.item_mut(offset).map_err(Into::into).and_then(TupleMut::new) else {
        return;
    };
    let mask = tuple.infomask();
    // Frozen is not a hint, but then only xmax bits can be.
    let hints = if mask & infomask::XMIN_FROZEN == infomask::XMIN_FROZEN {
        infomask::XMAX_INVALID | infomask::XMAX_COMMITTED
    } else {
        infomask::XACT_MASK
    };
    tuple.set_infomask(mask & !hints);
    tuple.set_xvac(0);
    if tuple.ctid_offset() == SPECULATIVE {
        tuple.set_ctid(blkno, offset);
    }
}

/// Zeroes the bytes that align the next item: they are whatever was there before.
fn mask_padding(page: &mut PageMut<'_>, offset: u16) {
    if let Ok(item) = page.item_id(offset)
        && item.has_storage()
    {
        let end = usize::from(item.offset()) + usize::from(item.len());
        if let Some(padding) = page.bytes_mut().get_mut(end..end.next_multiple_of(8)) {
            padding.fill(0);
        }
    }
}
