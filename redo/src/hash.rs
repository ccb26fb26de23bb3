//! Hash (resource manager 12).

mod bucket;
mod meta;
mod overflow;
mod page;

use postgres_formats::cursor::{Cursor, u8_at, u16_at};
use postgres_formats::page::PageMut;

use crate::data::{take_u16s, u16s};
use crate::error::Fault;
use crate::op::{Op, Outcome};
use page::{clear_flag, flag, set_flags};

/// Record types (`access/hash_xlog.h`).
mod opcode {
    pub(super) const INIT_META_PAGE: u8 = 0x00;
    pub(super) const INIT_BITMAP_PAGE: u8 = 0x10;
    pub(super) const INSERT: u8 = 0x20;
    pub(super) const ADD_OVFL_PAGE: u8 = 0x30;
    pub(super) const SPLIT_ALLOCATE_PAGE: u8 = 0x40;
    pub(super) const SPLIT_PAGE: u8 = 0x50;
    pub(super) const SPLIT_COMPLETE: u8 = 0x60;
    pub(super) const MOVE_PAGE_CONTENTS: u8 = 0x70;
    pub(super) const SQUEEZE_PAGE: u8 = 0x80;
    pub(super) const DELETE: u8 = 0x90;
    pub(super) const SPLIT_CLEANUP: u8 = 0xA0;
    pub(super) const UPDATE_META_PAGE: u8 = 0xB0;
    pub(super) const VACUUM_ONE_PAGE: u8 = 0xC0;
}

pub(crate) fn redo(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let main = op.main;
    match (op.opcode(), op.block.id) {
        (opcode::INIT_META_PAGE, 0) => meta::init(op, page)?,
        (opcode::INIT_BITMAP_PAGE, 0) => overflow::init_bitmap(page, u16_at(main, 0)?)?,
        (opcode::INIT_BITMAP_PAGE, 1) => meta::add_first_bitmap(page)?,
        (opcode::INSERT, 0) => page.insert_item(op.data(), u16_at(main, 0)?)?,
        (opcode::INSERT, 1) => meta::change_tuples(page, |n| n + 1.0)?,
        (opcode::ADD_OVFL_PAGE, 0..=4) => overflow::add(op, page)?,
        (opcode::SPLIT_ALLOCATE_PAGE, 0..=2) => bucket::allocate(op, page)?,
        (opcode::SPLIT_PAGE, 0) => return Err(Fault::Inconsistent("bucket split record has no image to apply")),
        (opcode::SPLIT_COMPLETE, 0) => set_flags(page, u16_at(main, 0)?)?,
        (opcode::SPLIT_COMPLETE, 1) => set_flags(page, u16_at(main, 2)?)?,
        // The primary bucket page is referenced only for locking.
        (opcode::MOVE_PAGE_CONTENTS | opcode::SQUEEZE_PAGE | opcode::DELETE, 0) => return Ok(Outcome::Unchanged),
        (opcode::MOVE_PAGE_CONTENTS, 1) => bucket::add_tuples(op, u16_at(main, 0)?, page)?,
        (opcode::MOVE_PAGE_CONTENTS, 2) => page.delete_items(&u16s(op.data()))?,
        (opcode::SQUEEZE_PAGE, 1..=6) => return overflow::squeeze(op, page),
        (opcode::DELETE, 1) => delete(op, page)?,
        (opcode::SPLIT_CLEANUP, 0) => clear_flag(page, flag::NEEDS_SPLIT_CLEANUP)?,
        (opcode::UPDATE_META_PAGE, 0) => meta::set_tuples(op, page)?,
        (opcode::VACUUM_ONE_PAGE, 0) => vacuum_one_page(op, page)?,
        (opcode::VACUUM_ONE_PAGE, 1) => {
            let removed = f64::from(u16_at(main, 4)?);
            meta::change_tuples(page, |n| n - removed)?;
        }
        _ => return Err(Fault::Unsupported),
    }
    Ok(Outcome::Changed)
}

/// `xl_hash_delete`: clear_dead_marking 0. Block data: offsets.
fn delete(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    page.delete_items(&u16s(op.data()))?;
    if u8_at(op.main, 0)? != 0 {
        clear_flag(page, flag::HAS_DEAD)?;
    }
    Ok(())
}

/// `xl_hash_vacuum_one_page`: conflict xid 0, ntuples 4 (two bytes since 16, four before, with the upper two always
/// zero), offsets 8.
fn vacuum_one_page(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let count = u16_at(op.main, 4)?;
    let mut main = Cursor::new(op.main);
    main.skip(8)?;
    page.delete_items(&take_u16s(&mut main, count.into())?)?;
    clear_flag(page, flag::HAS_DEAD)
}

#[cfg(test)]
mod tests;
