//! Definitions shared by all GIN pages.

use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::page::RedoPage;

/// Flags of a page.
pub(super) mod flag {
    pub(in crate::gin) const DATA: u16 = 0x01;
    pub(in crate::gin) const LEAF: u16 = 0x02;
    pub(in crate::gin) const DELETED: u16 = 0x04;
    pub(in crate::gin) const META: u16 = 0x08;
    pub(in crate::gin) const LIST: u16 = 0x10;
    pub(in crate::gin) const LIST_FULLROW: u16 = 0x20;
    pub(in crate::gin) const INCOMPLETE_SPLIT: u16 = 0x40;
    pub(in crate::gin) const COMPRESSED: u16 = 0x80;
}

/// `GinPageOpaqueData`: right link 0, maxoff 4, flags 6.
pub(super) const SPECIAL_SIZE: usize = 8;
pub(super) const RIGHT_LINK: usize = 0;
pub(super) const MAX_OFFSET: usize = 4;
pub(super) const FLAGS: usize = 6;

pub(super) const NO_BLOCK: u32 = u32::MAX;

/// Start of a posting tree page's content, after the page header and a TID for the right bound.
pub(super) const DATA_START: usize = 32;
/// `PostingItem`: child block as two halves, the high one first; key TID.
pub(super) const POSTING_ITEM: usize = 10;

/// Initializes an empty page (`GinInitPage`).
pub(super) fn init(page: &mut PageMut<'_>, flags: u16) -> Result<(), Fault> {
    page.init(SPECIAL_SIZE as u16);
    page.put_special(SPECIAL_SIZE, RIGHT_LINK, &NO_BLOCK.to_le_bytes())?;
    Ok(page.put_special(SPECIAL_SIZE, FLAGS, &flags.to_le_bytes())?)
}

pub(super) fn max_offset(page: &PageMut<'_>) -> Result<u16, Fault> {
    Ok(page.special_u16(SPECIAL_SIZE, MAX_OFFSET)?)
}

pub(super) fn set_max_offset(page: &mut PageMut<'_>, max: u16) -> Result<(), Fault> {
    Ok(page.put_special(SPECIAL_SIZE, MAX_OFFSET, &max.to_le_bytes())?)
}

/// Position of posting item `offset`, counted from 1, on an inner page of a posting tree.
pub(super) fn posting_item_at(offset: u16) -> Result<usize, Fault> {
    let index = offset.checked_sub(1).ok_or(Fault::Inconsistent("posting item 0"))?;
    Ok(DATA_START + usize::from(index) * POSTING_ITEM)
}

/// Sets the number of posting items, and with it the end of the content.
pub(super) fn set_posting_items(page: &mut PageMut<'_>, count: u16) -> Result<(), Fault> {
    set_max_offset(page, count)?;
    page.set_content_end(DATA_START + usize::from(count) * POSTING_ITEM)
}
