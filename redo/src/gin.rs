//! GIN (resource manager 13): an entry tree, posting trees of TIDs, a list of pending insertions.

mod insert;
mod page;
mod pending;
mod posting_list;
mod recompress;

use postgres_formats::cursor::{slice_at, u16_at, u32_at};
use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::op::{Op, Outcome};
use crate::page::RedoPage;
use page::{
    DATA_START, FLAGS, POSTING_ITEM, RIGHT_LINK, SPECIAL_SIZE, flag, init, max_offset, posting_item_at,
    set_posting_items,
};

/// Record types (`access/ginxlog.h`).
mod opcode {
    pub(super) const CREATE_PTREE: u8 = 0x10;
    pub(super) const INSERT: u8 = 0x20;
    pub(super) const SPLIT: u8 = 0x30;
    pub(super) const VACUUM_PAGE: u8 = 0x40;
    pub(super) const DELETE_PAGE: u8 = 0x50;
    pub(super) const UPDATE_META_PAGE: u8 = 0x60;
    pub(super) const INSERT_LISTPAGE: u8 = 0x70;
    pub(super) const DELETE_LISTPAGE: u8 = 0x80;
    pub(super) const VACUUM_DATA_LEAF_PAGE: u8 = 0x90;
}

pub(crate) fn redo(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let main = op.main;
    match (op.opcode(), op.block.id) {
        (opcode::CREATE_PTREE, 0) => create_posting_tree(main, page)?,
        (opcode::INSERT, 0) => insert::insert(op, page)?,
        (opcode::INSERT, 1) | (opcode::SPLIT, 3) => clear_incomplete_split(page)?,
        (opcode::SPLIT | opcode::VACUUM_PAGE, 0..=2) => {
            return Err(Fault::Inconsistent("record has no image to apply"));
        }
        (opcode::DELETE_PAGE, 0) => set_deleted(page, u32_at(main, 8)?)?,
        (opcode::DELETE_PAGE, 1) => delete_posting_item(page, u16_at(main, 0)?)?,
        (opcode::DELETE_PAGE, 2) => page.put_special(SPECIAL_SIZE, RIGHT_LINK, &u32_at(main, 4)?.to_le_bytes())?,
        (opcode::UPDATE_META_PAGE, 0) => pending::restore_meta(page, slice_at(main, 16, pending::META_SIZE)?)?,
        (opcode::UPDATE_META_PAGE, 1) => pending::update_tail(op, page)?,
        (opcode::INSERT_LISTPAGE, 0) => pending::insert_list_page(op, page)?,
        (opcode::DELETE_LISTPAGE, 0) => pending::restore_meta(page, slice_at(main, 0, pending::META_SIZE)?)?,
        (opcode::DELETE_LISTPAGE, _) => init(page, flag::DELETED)?,
        (opcode::VACUUM_DATA_LEAF_PAGE, 0) => recompress::redo(op.data(), page)?,
        _ => return Err(Fault::Unsupported),
    }
    Ok(Outcome::Changed)
}

fn clear_incomplete_split(page: &mut PageMut<'_>) -> Result<(), Fault> {
    Ok(page.change_special_flags(SPECIAL_SIZE, FLAGS, |flags| flags & !flag::INCOMPLETE_SPLIT)?)
}

/// `ginxlogCreatePostingTree`: size 0, then that many bytes of posting lists.
fn create_posting_tree(main: &[u8], page: &mut PageMut<'_>) -> Result<(), Fault> {
    let size = u32_at(main, 0)? as usize;
    init(page, flag::DATA | flag::LEAF | flag::COMPRESSED)?;
    page.put(DATA_START, slice_at(main, 4, size)?)?;
    page.set_content_end(DATA_START + size)
}

/// Marks the page and keeps its content; `pd_prune_xid` holds the transaction id from which on it may be reused.
fn set_deleted(page: &mut PageMut<'_>, delete_xid: u32) -> Result<(), Fault> {
    page.set_prune_xid(delete_xid);
    Ok(page.change_special_flags(SPECIAL_SIZE, FLAGS, |flags| flags | flag::DELETED)?)
}

fn delete_posting_item(page: &mut PageMut<'_>, offset: u16) -> Result<(), Fault> {
    let count = max_offset(page)?;
    let later = count.checked_sub(offset).ok_or(Fault::Inconsistent("no such posting item"))?;
    let at = posting_item_at(offset)?;
    let moved = page.slice(at + POSTING_ITEM, usize::from(later) * POSTING_ITEM)?.to_vec();
    page.put(at, &moved)?;
    set_posting_items(page, count - 1)
}

#[cfg(test)]
mod tests;
