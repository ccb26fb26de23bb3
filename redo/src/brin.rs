//! BRIN (resource manager 17): summaries on regular pages, found through the range map (revmap).

use postgres_formats::cursor::{u16_at, u32_at};
use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::heap::tuple::tid_bytes;
use crate::op::{Op, Outcome};
use crate::page::RedoPage;

/// `xl_info` bit: the regular page is new.
const INIT_PAGE: u8 = 0x80;

mod opcode {
    pub(super) const CREATE_INDEX: u8 = 0x00;
    pub(super) const INSERT: u8 = 0x10;
    pub(super) const UPDATE: u8 = 0x20;
    pub(super) const SAMEPAGE_UPDATE: u8 = 0x30;
    pub(super) const REVMAP_EXTEND: u8 = 0x40;
    pub(super) const DESUMMARIZE: u8 = 0x50;
}

/// The special area holds a page type in its last two bytes (`access/brin_page.h`).
const SPECIAL_SIZE: usize = 8;
const PAGE_TYPE: usize = 6;
const META: u16 = 0xF091;
const REVMAP: u16 = 0xF092;
const REGULAR: u16 = 0xF093;

/// `BrinMetaPageData`: magic, version, pages per range, last revmap page.
const META_START: usize = 24;
const META_SIZE: usize = 16;
const META_LAST_REVMAP: usize = META_START + 12;
const MAGIC: u32 = 0xA810_9CFA;

/// TIDs on a revmap page, right after the page header.
const REVMAP_START: usize = 24;
const REVMAP_ITEMS: u32 = 1360;
const TID_LEN: usize = 6;

pub(crate) fn redo(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let main = op.main;
    match (op.opcode() & !INIT_PAGE, op.block.id) {
        (opcode::CREATE_INDEX, 0) => create_index(main, page)?,
        (opcode::INSERT, id @ 0..=1) => insert(op, main, id, page)?,
        (opcode::UPDATE, id @ 0..=1) => insert(op, main.get(4..).unwrap_or_default(), id, page)?,
        (opcode::UPDATE, 2) => page.delete_item_keep_pointer(u16_at(main, 0)?)?,
        (opcode::SAMEPAGE_UPDATE, 0) => page.overwrite_item(u16_at(main, 0)?, op.data())?,
        (opcode::REVMAP_EXTEND, 0) => {
            page.put(META_LAST_REVMAP, &u32_at(main, 0)?.to_le_bytes())?;
            // Indexes created before 11 may not maintain it.
            page.set_content_end(META_START + META_SIZE)?;
        }
        (opcode::REVMAP_EXTEND, 1) => init(page, REVMAP)?,
        (opcode::DESUMMARIZE, 0) => set_revmap(page, u32_at(main, 4)?, u32_at(main, 0)?, u32::MAX, 0)?,
        (opcode::DESUMMARIZE, 1) => page.delete_item_keep_pointer(u16_at(main, 8)?)?,
        _ => return Err(Fault::Unsupported),
    }
    Ok(Outcome::Changed)
}

fn init(page: &mut PageMut<'_>, page_type: u16) -> Result<(), Fault> {
    page.init(SPECIAL_SIZE as u16);
    Ok(page.put_special(SPECIAL_SIZE, PAGE_TYPE, &page_type.to_le_bytes())?)
}

/// `xl_brin_createidx`: pages per range 0, version 4.
fn create_index(main: &[u8], page: &mut PageMut<'_>) -> Result<(), Fault> {
    init(page, META)?;
    let fields = [MAGIC, u32::from(u16_at(main, 4)?), u32_at(main, 0)?, 0];
    for (at, field) in (META_START..).step_by(4).zip(fields) {
        page.put(at, &field.to_le_bytes())?;
    }
    page.set_content_end(META_START + META_SIZE)
}

/// `xl_brin_insert`: heap block 0, pages per range 4, offset 8. Block 0 gets the tuple, block 1 is its revmap page.
fn insert(op: &Op<'_>, insert: &[u8], block_id: u8, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let (heap_blkno, pages_per_range, offset) = (u32_at(insert, 0)?, u32_at(insert, 4)?, u16_at(insert, 8)?);
    if block_id == 1 {
        return set_revmap(page, heap_blkno, pages_per_range, op.need_blkno(0)?, offset);
    }
    if op.opcode() & INIT_PAGE != 0 {
        init(page, REGULAR)?;
    }
    Ok(page.add_item(op.data(), offset)?)
}

fn set_revmap(
    page: &mut PageMut<'_>,
    heap_blkno: u32,
    pages_per_range: u32,
    blkno: u32,
    offset: u16,
) -> Result<(), Fault> {
    let range = heap_blkno.checked_div(pages_per_range).ok_or(Fault::Inconsistent("range has no pages"))?;
    let index = (range % REVMAP_ITEMS) as usize;
    Ok(page.put(REVMAP_START + index * TID_LEN, &tid_bytes(blkno, offset))?)
}
