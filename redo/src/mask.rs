//! Blanks page content that WAL does not determine, so that pages can be compared byte for byte.
//!
//! [`mask_page`] follows the masks of PostgreSQL's own consistency check (`wal_consistency_checking`), which are
//! required to compare with the images in such records. [`mask_for_files`] blanks less: only the differences between
//! a replayed page and the file of a cleanly stopped server.

mod files;
mod index;
mod parts;
#[cfg(test)]
mod tests;

use postgres_formats::page::PageMut;
use postgres_formats::rmgr::RmgrId;

use parts::{mask_hint_bits, mask_padding, mask_unused};

use crate::heap::tuple::{TupleMut, infomask};

pub use files::{PageKind, mask_for_files};

/// The `t_ctid` of a speculative insertion has this offset number and a token (`SpecTokenOffsetNumber`).
const SPECULATIVE: u16 = 0xFFFE;

/// Blanks on the page with block number `blkno` everything that a consistency check for resource manager `rmid`
/// ignores.
///
/// Masked bytes become zero. A page with an invalid header is masked only as far as it can be interpreted.
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
    // Frozen is not a hint, but if it is set only xmax bits can be hints.
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
