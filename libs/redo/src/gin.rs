//! GIN (resource manager 13): an entry tree, posting trees of TIDs, a list of pending insertions.

mod insert;
mod pending;
mod posting_list;
mod recompress;

use postgres_formats::cursor::{slice_at, u16_at, u32_at};
use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::op::{Op, Outcome};
use crate::page::RedoPage;

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

/// Flags of a page.
mod flag {
    pub(super) const DATA: u16 = 0x01;
    pub(super) const LEAF: u16 = 0x02;
    pub(super) const DELETED: u16 = 0x04;
    pub(super) const META: u16 = 0x08;
    pub(super) const LIST: u16 = 0x10;
    pub(super) const LIST_FULLROW: u16 = 0x20;
    pub(super) const INCOMPLETE_SPLIT: u16 = 0x40;
    pub(super) const COMPRESSED: u16 = 0x80;
}

/// `GinPageOpaqueData`: right link 0, maxoff 4, flags 6.
const SPECIAL_SIZE: usize = 8;
const RIGHT_LINK: usize = 0;
const MAX_OFFSET: usize = 4;
const FLAGS: usize = 6;

const NO_BLOCK: u32 = u32::MAX;

/// Where a posting tree page's content starts, after the page header and a TID for the right bound.
const DATA_START: usize = 32;
/// `PostingItem`: child block as two halves, the high one first; key TID.
const POSTING_ITEM: usize = 10;

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

/// Starts an empty page (`GinInitPage`).
fn init(page: &mut PageMut<'_>, flags: u16) -> Result<(), Fault> {
    page.init(SPECIAL_SIZE as u16);
    page.put_special(SPECIAL_SIZE, RIGHT_LINK, &NO_BLOCK.to_le_bytes())?;
    Ok(page.put_special(SPECIAL_SIZE, FLAGS, &flags.to_le_bytes())?)
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

/// The page is marked, its content stays; `pd_prune_xid` holds the transaction id from which on it may be reused.
fn set_deleted(page: &mut PageMut<'_>, delete_xid: u32) -> Result<(), Fault> {
    page.set_prune_xid(delete_xid);
    Ok(page.change_special_flags(SPECIAL_SIZE, FLAGS, |flags| flags | flag::DELETED)?)
}

fn max_offset(page: &PageMut<'_>) -> Result<u16, Fault> {
    Ok(page.special_u16(SPECIAL_SIZE, MAX_OFFSET)?)
}

fn set_max_offset(page: &mut PageMut<'_>, max: u16) -> Result<(), Fault> {
    Ok(page.put_special(SPECIAL_SIZE, MAX_OFFSET, &max.to_le_bytes())?)
}

/// Where posting item `offset`, from 1, is on an inner page of a posting tree.
fn posting_item_at(offset: u16) -> Result<usize, Fault> {
    let index = offset.checked_sub(1).ok_or(Fault::Inconsistent("posting item 0"))?;
    Ok(DATA_START + usize::from(index) * POSTING_ITEM)
}

/// Sets the number of posting items, and with it the end of the content.
fn set_posting_items(page: &mut PageMut<'_>, count: u16) -> Result<(), Fault> {
    set_max_offset(page, count)?;
    page.set_content_end(DATA_START + usize::from(count) * POSTING_ITEM)
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
