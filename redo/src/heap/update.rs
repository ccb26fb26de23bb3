//! Redo of heap updates. Block 0 is the page of the *new* version; the old version is on block 1 if that is a
//! different page.

use postgres_formats::cursor::{Cursor, u8_at, u16_at, u32_at};
use postgres_formats::heap::{ALL_VISIBLE_CLEARED, INIT_PAGE, NEW_ALL_VISIBLE_CLEARED};
use postgres_formats::page::PageMut;

use super::tuple::{LoggedHeader, new_tuple, tuple_mut};
use crate::error::Fault;
use crate::op::{Op, Outcome};
use crate::page::RedoPage;

/// Block reference ids.
const NEW_PAGE: u8 = 0;
const OLD_PAGE: u8 = 1;

/// `xl_heap_update.flags`
mod flag {
    pub(super) const PREFIX_FROM_OLD: u8 = 0x20;
    pub(super) const SUFFIX_FROM_OLD: u8 = 0x40;
}

/// `xl_heap_update`.
struct UpdateRecord {
    old_xmax: u32,
    old_offset: u16,
    old_infobits: u8,
    flags: u8,
    new_xmax: u32,
    new_offset: u16,
}

impl UpdateRecord {
    fn read(main: &[u8]) -> Result<Self, Fault> {
        Ok(Self {
            old_xmax: u32_at(main, 0)?,
            old_offset: u16_at(main, 4)?,
            old_infobits: u8_at(main, 6)?,
            flags: u8_at(main, 7)?,
            new_xmax: u32_at(main, 8)?,
            new_offset: u16_at(main, 12)?,
        })
    }
}

pub(super) fn update(op: &Op<'_>, page: &mut PageMut<'_>, hot: bool) -> Result<Outcome, Fault> {
    let record = UpdateRecord::read(op.main)?;
    if op.block.id == OLD_PAGE {
        supersede_old(op, &record, page, hot)?;
        return Ok(Outcome::Changed);
    }
    let same_page = !op.has_block(OLD_PAGE);
    if op.opcode() & INIT_PAGE != 0 {
        page.init(0);
    } else if same_page {
        supersede_old(op, &record, page, hot)?;
    }
    insert_new(op, &record, page, same_page)?;
    Ok(Outcome::Changed)
}

/// Marks the old version as updated and points it to the new one.
fn supersede_old(op: &Op<'_>, record: &UpdateRecord, page: &mut PageMut<'_>, hot: bool) -> Result<(), Fault> {
    let new_blkno = op.need_blkno(NEW_PAGE)?;
    let mut tuple = tuple_mut(page, record.old_offset)?;
    tuple.set_infobits(record.old_infobits);
    tuple.set_hot_updated(hot);
    tuple.set_xmax(record.old_xmax);
    tuple.reset_cmax();
    tuple.set_ctid(new_blkno, record.new_offset);
    page.set_prunable(op.header.xid);
    if record.flags & ALL_VISIBLE_CLEARED != 0 {
        page.set_all_visible(false);
    }
    Ok(())
}

/// Adds the new version. The record may omit a common prefix and suffix if both versions are on this page: only the
/// old one's attributes are read, which [`supersede_old`] does not touch.
fn insert_new(op: &Op<'_>, record: &UpdateRecord, page: &mut PageMut<'_>, same_page: bool) -> Result<(), Fault> {
    let mut data = Cursor::new(op.data());
    let prefix_len = shared_len(&mut data, record.flags & flag::PREFIX_FROM_OLD)?;
    let suffix_len = shared_len(&mut data, record.flags & flag::SUFFIX_FROM_OLD)?;
    let header = LoggedHeader::read(&mut data)?;

    let mut tuple = new_tuple(op, header, record.new_xmax, record.new_offset);
    if prefix_len == 0 && suffix_len == 0 {
        tuple.extend_from_slice(data.rest());
    } else if same_page {
        let mut old = tuple_mut(page, record.old_offset)?;
        let old = old.attributes()?;
        if prefix_len != 0 {
            tuple.extend_from_slice(data.take(header.bitmap_len()?)?);
        }
        let too_short = Fault::Inconsistent("old tuple is shorter than what the new one shares with it");
        let suffix_at = old.len().checked_sub(suffix_len);
        let (Some(prefix), Some(suffix)) = (old.get(..prefix_len), suffix_at.and_then(|at| old.get(at..))) else {
            return Err(too_short);
        };
        tuple.extend_from_slice(prefix);
        tuple.extend_from_slice(data.rest());
        tuple.extend_from_slice(suffix);
    } else {
        return Err(Fault::Inconsistent("update shares data with an old tuple on another page"));
    }
    page.add_item(&tuple, record.new_offset)?;

    if record.flags & NEW_ALL_VISIBLE_CLEARED != 0 {
        page.set_all_visible(false);
    }
    Ok(())
}

fn shared_len(data: &mut Cursor<'_>, flag: u8) -> Result<usize, Fault> {
    Ok(if flag != 0 { usize::from(data.u16()?) } else { 0 })
}
