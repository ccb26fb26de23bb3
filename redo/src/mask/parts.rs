//! Parts of pages that several masks blank.

use postgres_formats::page::{LpFlags, PD_ALL_VISIBLE, PD_HAS_FREE_LINES, PD_PAGE_FULL, PageMut};

/// `mask_page_hint_bits`: hints about free space and visibility, which may be set without WAL.
pub(super) fn mask_hint_bits(page: &mut PageMut<'_>) {
    page.set_prune_xid(0);
    page.set_flags(page.flags() & !(PD_HAS_FREE_LINES | PD_PAGE_FULL | PD_ALL_VISIBLE));
}

/// `mask_unused_space`: bytes between line pointers and tuples, which are arbitrary.
pub(super) fn mask_unused(page: &mut PageMut<'_>) {
    let hole = usize::from(page.lower())..usize::from(page.upper());
    if let Some(hole) = page.bytes_mut().get_mut(hole) {
        hole.fill(0);
    }
}

/// `mask_lp_flags`: line pointers of leaf pages are marked dead without WAL.
pub(super) fn mask_line_pointer_flags(page: &mut PageMut<'_>) {
    for offset in 1..=page.max_offset() {
        if let Ok(item) = page.item_id(offset) {
            let _ = page.set_item_id(offset, item.with_flags(LpFlags::Unused));
        }
    }
}

/// `mask_page_content`: everything but the header, and the header's bounds of the hole.
pub(super) fn mask_content(page: &mut PageMut<'_>) {
    if let Some(content) = page.bytes_mut().get_mut(24..) {
        content.fill(0);
    }
    page.set_lower(0);
    page.set_upper(0);
}

/// Zeroes the bytes that align the next item, which are arbitrary.
pub(super) fn mask_padding(page: &mut PageMut<'_>, offset: u16) {
    if let Ok(item) = page.item_id(offset)
        && item.has_storage()
    {
        let end = usize::from(item.offset()) + usize::from(item.len());
        if let Some(padding) = page.bytes_mut().get_mut(end..end.next_multiple_of(8)) {
            padding.fill(0);
        }
    }
}
