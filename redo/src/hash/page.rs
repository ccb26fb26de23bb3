//! Definitions shared by all pages of hash indexes.

use postgres_formats::cursor::u32_at;
use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::op::Op;
use crate::page::RedoPage;

/// `hasho_flag`
pub(super) mod flag {
    pub(in crate::hash) const UNUSED: u16 = 0;
    pub(in crate::hash) const OVERFLOW: u16 = 0x01;
    pub(in crate::hash) const BITMAP: u16 = 0x04;
    pub(in crate::hash) const META: u16 = 0x08;
    pub(in crate::hash) const NEEDS_SPLIT_CLEANUP: u16 = 0x40;
    pub(in crate::hash) const HAS_DEAD: u16 = 0x80;
}

/// `HashPageOpaqueData`: prev 0, next 4, bucket 8, flags 12, page id 14.
pub(super) const SPECIAL_SIZE: usize = 16;
pub(super) const PREV: usize = 0;
pub(super) const NEXT: usize = 4;
pub(super) const FLAGS: usize = 12;
/// `HASHO_PAGE_ID`
pub(super) const HASH_PAGE: u16 = 0xFF80;

/// No block, no bucket.
pub(super) const NONE: u32 = u32::MAX;

/// Initializes an empty page (`_hash_initbuf`): the primary page of a bucket stores in `prev` the highest bucket at
/// that time.
pub(super) fn init(page: &mut PageMut<'_>, prev: u32, bucket: u32, flags: u16) -> Result<(), Fault> {
    page.init(SPECIAL_SIZE as u16);
    page.put_special(SPECIAL_SIZE, PREV, &prev.to_le_bytes())?;
    page.put_special(SPECIAL_SIZE, NEXT, &NONE.to_le_bytes())?;
    page.put_special(SPECIAL_SIZE, 8, &bucket.to_le_bytes())?;
    page.put_special(SPECIAL_SIZE, FLAGS, &flags.to_le_bytes())?;
    Ok(page.put_special(SPECIAL_SIZE, 14, &HASH_PAGE.to_le_bytes())?)
}

pub(super) fn set_link(page: &mut PageMut<'_>, link: usize, blkno: u32) -> Result<(), Fault> {
    Ok(page.put_special(SPECIAL_SIZE, link, &blkno.to_le_bytes())?)
}

pub(super) fn set_flags(page: &mut PageMut<'_>, flags: u16) -> Result<(), Fault> {
    Ok(page.put_special(SPECIAL_SIZE, FLAGS, &flags.to_le_bytes())?)
}

pub(super) fn clear_flag(page: &mut PageMut<'_>, flag: u16) -> Result<(), Fault> {
    Ok(page.change_special_flags(SPECIAL_SIZE, FLAGS, |flags| flags & !flag)?)
}

/// The 32-bit integer that is a block's entire data.
pub(super) fn data_u32(op: &Op<'_>) -> Result<u32, Fault> {
    Ok(u32_at(op.data(), 0)?)
}
