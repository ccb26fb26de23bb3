//! Btree (resource manager 11).

mod dedup;
mod insert;
mod meta;
mod posting;
mod split;
mod unlink;
mod vacuum;

use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::op::{Op, Outcome};
use crate::page::RedoPage;

/// Record types (`access/nbtxlog.h`).
mod opcode {
    pub(super) const INSERT_LEAF: u8 = 0x00;
    pub(super) const INSERT_UPPER: u8 = 0x10;
    pub(super) const INSERT_META: u8 = 0x20;
    pub(super) const SPLIT_L: u8 = 0x30;
    pub(super) const SPLIT_R: u8 = 0x40;
    pub(super) const INSERT_POST: u8 = 0x50;
    pub(super) const DEDUP: u8 = 0x60;
    pub(super) const DELETE: u8 = 0x70;
    pub(super) const UNLINK_PAGE: u8 = 0x80;
    pub(super) const UNLINK_PAGE_META: u8 = 0x90;
    pub(super) const NEWROOT: u8 = 0xA0;
    pub(super) const MARK_PAGE_HALFDEAD: u8 = 0xB0;
    pub(super) const VACUUM: u8 = 0xC0;
    pub(super) const META_CLEANUP: u8 = 0xE0;
}

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
const PREV: usize = 0;
const NEXT: usize = 4;
const LEVEL: usize = 8;

/// No sibling.
const NO_BLOCK: u32 = 0;
/// The high key's offset on pages that have a right sibling.
const HIGH_KEY: u16 = 1;

pub(crate) fn redo(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    match (op.opcode(), op.block.id) {
        (opcode::INSERT_LEAF | opcode::INSERT_UPPER | opcode::INSERT_META, 0) => insert::insert(op, page)?,
        (opcode::INSERT_UPPER | opcode::INSERT_META, 1) => clear_incomplete_split(page)?,
        (opcode::INSERT_META, 2) => meta::restore(op, page)?,
        (opcode::INSERT_POST, 0) => insert::insert_into_posting(op, page)?,
        (opcode::SPLIT_L, 0) => split::left(op, page, true)?,
        (opcode::SPLIT_R, 0) => split::left(op, page, false)?,
        (opcode::SPLIT_L | opcode::SPLIT_R, 1) => split::right(op, page)?,
        (opcode::SPLIT_L | opcode::SPLIT_R, 2) => set_prev(page, op.need_blkno(1)?)?,
        (opcode::SPLIT_L | opcode::SPLIT_R, 3) => clear_incomplete_split(page)?,
        (opcode::DEDUP, 0) => dedup::redo(op, page)?,
        (opcode::DELETE, 0) => vacuum::delete(op, page)?,
        (opcode::VACUUM, 0) => vacuum::vacuum(op, page)?,
        (opcode::UNLINK_PAGE | opcode::UNLINK_PAGE_META, 0..=3) => unlink::unlink(op, page)?,
        (opcode::UNLINK_PAGE_META, 4) => meta::restore(op, page)?,
        (opcode::MARK_PAGE_HALFDEAD, 0 | 1) => unlink::mark_half_dead(op, page)?,
        (opcode::NEWROOT, 0) => split::new_root(op, page)?,
        (opcode::NEWROOT, 1) => clear_incomplete_split(page)?,
        (opcode::NEWROOT, 2) | (opcode::META_CLEANUP, 0) => meta::restore(op, page)?,
        _ => return Err(Fault::Unsupported),
    }
    Ok(Outcome::Changed)
}

/// The special area's content.
#[derive(Clone, Copy)]
struct Opaque {
    prev: u32,
    next: u32,
    level: u32,
    flags: u16,
}

/// Starts an empty page; vacuum's cycle id is zero on it.
fn init(page: &mut PageMut<'_>, opaque: Opaque) -> Result<(), Fault> {
    page.init(SPECIAL_SIZE as u16);
    page.put_special(SPECIAL_SIZE, PREV, &opaque.prev.to_le_bytes())?;
    page.put_special(SPECIAL_SIZE, NEXT, &opaque.next.to_le_bytes())?;
    page.put_special(SPECIAL_SIZE, LEVEL, &opaque.level.to_le_bytes())?;
    page.put_special(SPECIAL_SIZE, FLAGS, &opaque.flags.to_le_bytes())?;
    Ok(())
}

fn clear_incomplete_split(page: &mut PageMut<'_>) -> Result<(), Fault> {
    clear_flag(page, flag::INCOMPLETE_SPLIT)
}

fn clear_flag(page: &mut PageMut<'_>, flag: u16) -> Result<(), Fault> {
    Ok(page.change_special_flags(SPECIAL_SIZE, FLAGS, |flags| flags & !flag)?)
}

fn set_prev(page: &mut PageMut<'_>, blkno: u32) -> Result<(), Fault> {
    Ok(page.put_special(SPECIAL_SIZE, PREV, &blkno.to_le_bytes())?)
}

fn set_next(page: &mut PageMut<'_>, blkno: u32) -> Result<(), Fault> {
    Ok(page.put_special(SPECIAL_SIZE, NEXT, &blkno.to_le_bytes())?)
}

/// Offset of the first item that is not the high key (`P_FIRSTDATAKEY`).
fn first_data_key(page: &PageMut<'_>) -> Result<u16, Fault> {
    let next = page.special_u32(SPECIAL_SIZE, NEXT)?;
    Ok(if next == NO_BLOCK { HIGH_KEY } else { HIGH_KEY + 1 })
}

#[cfg(test)]
mod tests;
