//! GiST (resource manager 14).
//!
//! The flag `F_TUPLES_DELETED`, which some minor releases set and nothing reads, is never set here.

use postgres_formats::cursor::{Cursor, u8_at, u16_at, u32_at, u64_at};
use postgres_formats::page::{PageMut, split_u64};
use postgres_formats::version::PgVersion;

use crate::data::{take_index_tuple, take_u16s};
use crate::error::Fault;
use crate::op::{Op, Outcome};
use crate::page::RedoPage;

mod opcode {
    pub(super) const PAGE_UPDATE: u8 = 0x00;
    pub(super) const DELETE: u8 = 0x10;
    pub(super) const PAGE_SPLIT: u8 = 0x30;
    pub(super) const PAGE_DELETE: u8 = 0x60;
}

/// Flags of a page.
mod flag {
    pub(super) const LEAF: u16 = 0x01;
    pub(super) const DELETED: u16 = 0x02;
    pub(super) const FOLLOW_RIGHT: u16 = 0x08;
    pub(super) const HAS_GARBAGE: u16 = 0x10;
}

/// `GISTPageOpaqueData`: NSN (halves swapped as in page LSNs) 0, right link 8, flags 12, page id 14.
const SPECIAL_SIZE: usize = 16;
const NSN: usize = 0;
const RIGHT_LINK: usize = 8;
const FLAGS: usize = 12;
const PAGE_ID: usize = 14;
/// `GIST_PAGE_ID`
const GIST_PAGE: u16 = 0xFF81;

const ROOT_BLKNO: u32 = 0;
const NO_BLOCK: u32 = u32::MAX;
/// Start and size of a deleted page's only content: the transaction id from which on the page may be reused.
const DELETE_XID: usize = 24;
const DELETE_XID_SIZE: usize = 8;

pub(crate) fn redo(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    if is_left_child(op) {
        finish_left_child(op, page)?;
        return Ok(Outcome::Changed);
    }
    match (op.opcode(), op.block.id) {
        (opcode::PAGE_UPDATE, 0) => update(op, page)?,
        (opcode::DELETE, 0) => delete(op, page)?,
        (opcode::PAGE_SPLIT, _) => split(op, page)?,
        (opcode::PAGE_DELETE, 0) => set_deleted(page, u64_at(op.main, 0)?)?,
        (opcode::PAGE_DELETE, 1) => page.delete_item(u16_at(op.main, 8)?)?,
        _ => return Err(Fault::Unsupported),
    }
    Ok(Outcome::Changed)
}

/// The record's images were taken before the split of the left child is finished, so this is needed after restoring
/// an image, too.
pub(crate) fn after_image(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    if is_left_child(op) { finish_left_child(op, page) } else { Ok(()) }
}

/// Whether the block is the left half of an earlier split whose downlink this record inserts.
fn is_left_child(op: &Op<'_>) -> bool {
    matches!((op.opcode(), op.block.id), (opcode::PAGE_UPDATE, 1) | (opcode::PAGE_SPLIT, 0))
}

fn finish_left_child(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    page.put_special(SPECIAL_SIZE, NSN, &split_u64(op.end_lsn))?;
    Ok(page.change_special_flags(SPECIAL_SIZE, FLAGS, |flags| flags & !flag::FOLLOW_RIGHT)?)
}

/// `gistxlogPageUpdate`: ntodelete 0, ntoinsert 2. Block data: offsets to delete, tuples to add.
fn update(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let (deletions, insertions) = (u16_at(op.main, 0)?, u16_at(op.main, 2)?);
    let mut data = Cursor::new(op.data());
    let deleted = take_u16s(&mut data, deletions.into())?;
    match deleted.as_slice() {
        // A replaced tuple keeps its position.
        [offset] if insertions == 1 => page.overwrite_item(*offset, take_index_tuple(&mut data)?)?,
        offsets => page.delete_items(offsets)?,
    }
    append_tuples(page, data)
}

fn append_tuples(page: &mut PageMut<'_>, mut tuples: Cursor<'_>) -> Result<(), Fault> {
    while tuples.remaining() > 0 {
        page.append_item(take_index_tuple(&mut tuples)?)?;
    }
    Ok(())
}

/// `gistxlogDelete`: conflict xid 0, ntodelete 4, then the offsets (16 inserts a flag for catalogs before them).
fn delete(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let count = u16_at(op.main, 4)?;
    let mut main = Cursor::new(op.main);
    main.skip(if op.ctx.version >= PgVersion::V16 { 8 } else { 6 })?;
    page.delete_items(&take_u16s(&mut main, count.into())?)?;
    Ok(page.change_special_flags(SPECIAL_SIZE, FLAGS, |flags| flags & !flag::HAS_GARBAGE)?)
}

/// `gistxlogPageSplit`: origrlink 0, orignsn 8, origleaf 16, npage 18, markfollowright 20. Blocks from 1 on are the
/// new pages, from left to right; the data of each is the number of its tuples and the tuples.
fn split(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let main = op.main;
    let is_leaf = u8_at(main, 16)? != 0;
    let pages = u16_at(main, 18)?;
    let mark_follow_right = u8_at(main, 20)? != 0;

    let is_root_split = op.need_blkno(1)? == ROOT_BLKNO;
    let is_root = op.block.blkno == ROOT_BLKNO;
    let is_last = u16::from(op.block.id) == pages;
    let right_link = match (is_root, is_last) {
        (true, _) => NO_BLOCK,
        (false, true) => u32_at(main, 0)?,
        (false, false) => op.need_blkno(op.block.id.saturating_add(1))?,
    };
    let mut flags = if is_leaf && !is_root { flag::LEAF } else { 0 };
    if !is_last && !is_root_split && mark_follow_right {
        flags |= flag::FOLLOW_RIGHT;
    }

    page.init(SPECIAL_SIZE as u16);
    page.put_special(SPECIAL_SIZE, NSN, &split_u64(u64_at(main, 8)?))?;
    page.put_special(SPECIAL_SIZE, RIGHT_LINK, &right_link.to_le_bytes())?;
    page.put_special(SPECIAL_SIZE, FLAGS, &flags.to_le_bytes())?;
    page.put_special(SPECIAL_SIZE, PAGE_ID, &GIST_PAGE.to_le_bytes())?;
    let mut data = Cursor::new(op.data());
    data.skip(4)?;
    append_tuples(page, data)
}

fn set_deleted(page: &mut PageMut<'_>, delete_xid: u64) -> Result<(), Fault> {
    page.change_special_flags(SPECIAL_SIZE, FLAGS, |flags| flags | flag::DELETED)?;
    page.put(DELETE_XID, &delete_xid.to_le_bytes())?;
    page.set_content_end(DELETE_XID + DELETE_XID_SIZE)
}
