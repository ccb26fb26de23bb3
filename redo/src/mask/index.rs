//! Masks of the index access methods.

use postgres_formats::page::PageMut;

use super::parts::{mask_content, mask_hint_bits, mask_line_pointer_flags, mask_unused};
use crate::btree;
use crate::page::RedoPage;

/// Flags of a hash page, `hasho_flag`, at byte 12 of a special area of 16 bytes (`access/hash.h`).
pub(super) mod hash_flag {
    pub(in crate::mask) const OVERFLOW: u16 = 0x01;
    pub(in crate::mask) const BUCKET: u16 = 0x02;
    pub(in crate::mask) const PAGE_TYPE: u16 = 0x0F;
    pub(in crate::mask) const HAS_DEAD: u16 = 0x80;
}

/// Flags of a GIN page, at byte 6 of a special area of 8 bytes (`access/ginblock.h`).
pub(super) mod gin_flag {
    pub(in crate::mask) const DELETED: u16 = 0x04;
}

/// Flags of a GiST page, at byte 12 of a special area of 16 bytes (`access/gist.h`).
pub(super) mod gist_flag {
    pub(in crate::mask) const LEAF: u16 = 0x01;
    pub(in crate::mask) const TUPLES_DELETED: u16 = 0x04;
    pub(in crate::mask) const FOLLOW_RIGHT: u16 = 0x08;
    pub(in crate::mask) const HAS_GARBAGE: u16 = 0x10;
}

/// BRIN: flags at byte 4, page type at byte 6 of a special area of 8 bytes (`access/brin_page.h`).
pub(super) mod brin_page {
    pub(in crate::mask) const EVACUATE: u16 = 0x01;
    pub(in crate::mask) const META: u16 = 0xF091;
    pub(in crate::mask) const REGULAR: u16 = 0xF093;
}

const HEADER: usize = 24;

/// A 16-bit field of the special area; 0 if the page has no special area of that size.
pub(super) fn special_u16(page: &PageMut<'_>, size: usize, at: usize) -> u16 {
    page.special_u16(size, at).unwrap_or(0)
}

/// Sets the field if the page has it.
pub(super) fn set_special_u16(page: &mut PageMut<'_>, size: usize, at: usize, value: u16) {
    let _ = page.put_special(size, at, &value.to_le_bytes());
}

fn clear_special_bits(page: &mut PageMut<'_>, size: usize, at: usize, bits: u16) {
    let value = special_u16(page, size, at) & !bits;
    set_special_u16(page, size, at, value);
}

/// `btree_mask`: kill hints, and marks that VACUUM leaves on pages while it scans them.
pub(super) fn mask_btree(page: &mut PageMut<'_>) {
    use btree::special::{CYCLE_ID, FLAGS, SPECIAL_SIZE, flag};
    mask_hint_bits(page);
    mask_unused(page);
    if special_u16(page, SPECIAL_SIZE, FLAGS) & flag::LEAF != 0 {
        mask_line_pointer_flags(page);
    }
    clear_special_bits(page, SPECIAL_SIZE, FLAGS, flag::HAS_GARBAGE | flag::SPLIT_END);
    set_special_u16(page, SPECIAL_SIZE, CYCLE_ID, 0);
}

/// `hash_mask`: kill hints; unused pages keep their old content.
pub(super) fn mask_hash(page: &mut PageMut<'_>) {
    mask_hint_bits(page);
    mask_unused(page);
    let page_type = special_u16(page, 16, 12) & hash_flag::PAGE_TYPE;
    if page_type == 0 {
        mask_content(page);
        return;
    }
    if page_type & (hash_flag::BUCKET | hash_flag::OVERFLOW) != 0 {
        mask_line_pointer_flags(page);
    }
    clear_special_bits(page, 16, 12, hash_flag::HAS_DEAD);
}

/// `gin_mask`: deleted pages keep their old content; not all pages maintain `pd_lower`.
pub(super) fn mask_gin(page: &mut PageMut<'_>) {
    mask_hint_bits(page);
    if special_u16(page, 8, 6) & gin_flag::DELETED != 0 {
        mask_content(page);
    } else if usize::from(page.lower()) > HEADER {
        mask_unused(page);
    }
}

/// `gist_mask`: NSN and the follow-right flag are set at the end of a split, kill hints at any time. Also
/// `F_TUPLES_DELETED`, which minor releases set differently on the primary and in redo, and which nothing reads.
pub(super) fn mask_gist(page: &mut PageMut<'_>) {
    mask_hint_bits(page);
    mask_unused(page);
    let _ = page.put_special(16, 0, &[0; 8]);
    let flags = special_u16(page, 16, 12);
    if flags & gist_flag::LEAF != 0 {
        mask_line_pointer_flags(page);
    }
    let hints = gist_flag::HAS_GARBAGE | gist_flag::TUPLES_DELETED;
    set_special_u16(page, 16, 12, (flags | gist_flag::FOLLOW_RIGHT) & !hints);
}

/// `spg_mask`: the hole of pages that maintain `pd_lower`.
pub(super) fn mask_spgist(page: &mut PageMut<'_>) {
    mask_hint_bits(page);
    if usize::from(page.lower()) >= HEADER {
        mask_unused(page);
    }
}

/// `brin_mask`: the hole except on revmap pages, which have none, and the flag that asks others to leave a page.
pub(super) fn mask_brin(page: &mut PageMut<'_>) {
    mask_hint_bits(page);
    let page_type = special_u16(page, 8, 6);
    if page_type == brin_page::REGULAR || (page_type == brin_page::META && usize::from(page.lower()) > HEADER) {
        mask_unused(page);
    }
    clear_special_bits(page, 8, 4, brin_page::EVACUATE);
}
