//! Masks for comparing with the files of a cleanly stopped server: only what a server changes without WAL.

use postgres_formats::page::{LpFlags, PD_HAS_FREE_LINES, PD_PAGE_FULL, PageMut, PageRef};

use super::index::{gin_flag, gist_flag, hash_flag, set_special_u16, special_u16};
use super::parts::{mask_content, mask_padding, mask_unused};
use crate::btree;
use crate::heap::tuple::{TupleMut, infomask};
use crate::sequence;

/// The kind of object to which a page belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// A table's page.
    Heap,
    /// A page of a btree index.
    Btree,
    /// A page of a hash index.
    Hash,
    /// A page of a GIN index.
    Gin,
    /// A page of a GiST index.
    Gist,
    /// A page of an SP-GiST index.
    Spgist,
    /// A page of a BRIN index.
    Brin,
    /// A sequence's only page.
    Sequence,
    /// A page of a visibility map.
    VisibilityMap,
    /// A page of a free space map.
    FreeSpaceMap,
    /// A page of something else, such as a bloom index, or not a page at all.
    Other,
}

impl PageKind {
    /// Guesses the kind from the fork number and the page's special area.
    pub fn guess(fork: u8, page: &[u8; 8192]) -> Self {
        let page = PageRef::new(page);
        match fork {
            1 => return Self::FreeSpaceMap,
            2 => return Self::VisibilityMap,
            _ if page.is_new() => return Self::Other,
            _ => {}
        }
        // Most index types have a page id in the last two bytes; a btree's cycle id is always below these.
        let id = page.u16_at(8190).unwrap_or(0);
        match page.special() {
            8192 => return Self::Heap,
            8176 if id == 0xFF80 => return Self::Hash,
            8176 if id == 0xFF81 => return Self::Gist,
            8176 => return Self::Btree,
            8184 => {}
            _ => return Self::Other,
        }
        let is_sequence = page.u32_at(8184).is_ok_and(|magic| magic == sequence::MAGIC);
        match id {
            0xFF82 => Self::Spgist,
            0xF091..=0xF093 => Self::Brin,
            // Bloom, an extension that uses generic WAL.
            0xFF83 => Self::Other,
            _ if is_sequence => Self::Sequence,
            _ => Self::Gin,
        }
    }
}

/// Blanks the parts of a page that a server may change without WAL. The LSN stays, because it is logged.
pub fn mask_for_files(kind: PageKind, page: &mut [u8; 8192]) {
    if kind == PageKind::FreeSpaceMap {
        // Only logged by occasional images; its content need only be plausible.
        page.fill(0);
        return;
    }
    let page = &mut PageMut::new(page);
    // Set when a page is written out.
    page.set_checksum(0);
    if kind == PageKind::VisibilityMap || page.is_new() {
        return;
    }
    let is_gin_deleted = kind == PageKind::Gin && special_u16(page, 8, 6) & gin_flag::DELETED != 0;
    if is_gin_deleted {
        // A page is deleted together with its content, which redo leaves as it is.
        mask_content(page);
        return;
    }
    mask_hole(kind, page);
    // Free space hints, which readers set; on heap pages `pd_prune_xid` too is lost or set without WAL.
    page.set_flags(page.flags() & !(PD_HAS_FREE_LINES | PD_PAGE_FULL));
    match kind {
        PageKind::Heap => mask_heap(page),
        PageKind::Btree => mask_btree(page),
        PageKind::Hash => mask_leaf_hints(page, 12, hash_flag::HAS_DEAD),
        PageKind::Gist => mask_leaf_hints(page, 12, gist_flag::HAS_GARBAGE | gist_flag::TUPLES_DELETED),
        PageKind::Spgist => mask_spgist_meta(page),
        _ => {}
    }
}

/// Clears the hole, which keeps old bytes; pages of some kinds have none, or do not maintain `pd_lower` (then it is
/// 24). In SP-GiST only metapages of old indexes do not: a data page without items has 24, and images omit its hole.
fn mask_hole(kind: PageKind, page: &mut PageMut<'_>) {
    let maintains_lower = match kind {
        PageKind::Brin => special_u16(page, 8, 6) != 0xF092,
        PageKind::Spgist => !is_spgist_meta(page) || page.lower() > 24,
        PageKind::Gin | PageKind::Other => page.lower() > 24,
        _ => true,
    };
    if maintains_lower {
        mask_unused(page);
    }
}

/// Command ids are meaningless after their transaction, and commit status bits are set by readers.
fn mask_heap(page: &mut PageMut<'_>) {
    page.set_prune_xid(0);
    for offset in 1..=page.max_offset() {
        mask_padding(page, offset);
        if !page.item_id(offset).is_ok_and(|item| item.is_normal()) {
            continue;
        }
        let Ok(mut tuple) = page.item_mut(offset).map_err(Into::into).and_then(TupleMut::new) else {
            continue;
        };
        let mask = tuple.infomask();
        let mut hints = infomask::COMBO_CID | infomask::XMAX_COMMITTED | infomask::XMAX_INVALID;
        if mask & infomask::XMIN_FROZEN != infomask::XMIN_FROZEN {
            hints |= infomask::XMIN_FROZEN;
        }
        tuple.set_infomask(mask & !hints);
        tuple.set_xvac(0);
    }
}

/// Kill hints, and marks that VACUUM leaves on pages while it scans them.
fn mask_btree(page: &mut PageMut<'_>) {
    use btree::special::{CYCLE_ID, FLAGS, flag};
    mask_leaf_hints(page, FLAGS, flag::HAS_GARBAGE | flag::SPLIT_END);
    set_special_u16(page, 16, CYCLE_ID, 0);
}

/// Index scans mark line pointers dead, and set a flag on the page when they do.
fn mask_leaf_hints(page: &mut PageMut<'_>, flags_at: usize, hints: u16) {
    for offset in 1..=page.max_offset() {
        if let Ok(item) = page.item_id(offset)
            && item.flags() == LpFlags::Dead
            && item.has_storage()
        {
            let _ = page.set_item_id(offset, item.with_flags(LpFlags::Normal));
        }
    }
    let flags = special_u16(page, 16, flags_at) & !hints;
    set_special_u16(page, 16, flags_at, flags);
}

fn is_spgist_meta(page: &PageMut<'_>) -> bool {
    const META: u16 = 0x01;
    special_u16(page, 8, 0) & META != 0
}

/// The metapage caches pages with free space, without WAL.
fn mask_spgist_meta(page: &mut PageMut<'_>) {
    const LAST_USED_PAGES: usize = 28;
    if is_spgist_meta(page)
        && let Some(cache) = page.bytes_mut().get_mut(LAST_USED_PAGES..8184)
    {
        cache.fill(0);
    }
}
