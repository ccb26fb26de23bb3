//! The special area of a btree page (`access/nbtree.h`).

use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::page::RedoPage;

/// `btpo_flags`
pub(crate) mod flag {
    pub(crate) const LEAF: u16 = 0x01;
    pub(crate) const ROOT: u16 = 0x02;
    pub(crate) const DELETED: u16 = 0x04;
    pub(crate) const META: u16 = 0x08;
    pub(crate) const HALF_DEAD: u16 = 0x10;
    pub(crate) const SPLIT_END: u16 = 0x20;
    pub(crate) const HAS_GARBAGE: u16 = 0x40;
    pub(crate) const INCOMPLETE_SPLIT: u16 = 0x80;
    pub(crate) const HAS_FULLXID: u16 = 0x100;
}

/// Size of the special area, `BTPageOpaqueData`: prev 0, next 4, level 8, flags 12, cycle id 14.
pub(crate) const SPECIAL_SIZE: usize = 16;
pub(crate) const FLAGS: usize = 12;
pub(crate) const CYCLE_ID: usize = 14;
pub(crate) const PREV: usize = 0;
pub(crate) const NEXT: usize = 4;
pub(crate) const LEVEL: usize = 8;

/// No sibling.
pub(crate) const NO_BLOCK: u32 = 0;
/// The high key's offset on pages that have a right sibling.
pub(crate) const HIGH_KEY: u16 = 1;

/// The content of the special area.
#[derive(Clone, Copy)]
pub(crate) struct Opaque {
    pub(crate) prev: u32,
    pub(crate) next: u32,
    pub(crate) level: u32,
    pub(crate) flags: u16,
}

/// Initializes an empty page with a zero vacuum cycle id.
pub(crate) fn init(page: &mut PageMut<'_>, opaque: Opaque) -> Result<(), Fault> {
    page.init(SPECIAL_SIZE as u16);
    page.put_special(SPECIAL_SIZE, PREV, &opaque.prev.to_le_bytes())?;
    page.put_special(SPECIAL_SIZE, NEXT, &opaque.next.to_le_bytes())?;
    page.put_special(SPECIAL_SIZE, LEVEL, &opaque.level.to_le_bytes())?;
    page.put_special(SPECIAL_SIZE, FLAGS, &opaque.flags.to_le_bytes())?;
    Ok(())
}

pub(crate) fn clear_incomplete_split(page: &mut PageMut<'_>) -> Result<(), Fault> {
    clear_flag(page, flag::INCOMPLETE_SPLIT)
}

pub(crate) fn clear_flag(page: &mut PageMut<'_>, flag: u16) -> Result<(), Fault> {
    Ok(page.change_special_flags(SPECIAL_SIZE, FLAGS, |flags| flags & !flag)?)
}

pub(crate) fn set_prev(page: &mut PageMut<'_>, blkno: u32) -> Result<(), Fault> {
    Ok(page.put_special(SPECIAL_SIZE, PREV, &blkno.to_le_bytes())?)
}

pub(crate) fn set_next(page: &mut PageMut<'_>, blkno: u32) -> Result<(), Fault> {
    Ok(page.put_special(SPECIAL_SIZE, NEXT, &blkno.to_le_bytes())?)
}

/// Offset of the first item that is not the high key (`P_FIRSTDATAKEY`).
pub(crate) fn first_data_key(page: &PageMut<'_>) -> Result<u16, Fault> {
    let next = page.special_u32(SPECIAL_SIZE, NEXT)?;
    Ok(if next == NO_BLOCK { HIGH_KEY } else { HIGH_KEY + 1 })
}
