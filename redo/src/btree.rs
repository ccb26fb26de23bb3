//! Btree (resource manager 11).

mod dedup;
mod insert;
mod meta;
mod posting;
pub(crate) mod special;
mod split;
mod unlink;
mod vacuum;

use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::op::{Op, Outcome};

use special::{clear_incomplete_split, set_prev};

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

#[cfg(test)]
mod tests;
