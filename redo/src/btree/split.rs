//! Page splits and new roots.

use postgres_formats::cursor::{Cursor, u16_at, u32_at};
use postgres_formats::maxalign;
use postgres_formats::page::PageMut;

use super::posting;
use super::special::{LEVEL, NO_BLOCK, Opaque, PREV, SPECIAL_SIZE, first_data_key, flag, init};
use crate::data::take_tuple;
use crate::error::Fault;
use crate::index_tuple;
use crate::op::Op;
use crate::page::{BLANK, RedoPage};

/// Block reference ids.
const LEFT: u8 = 0;
const RIGHT: u8 = 1;
const OLD_RIGHT_SIBLING: u8 = 2;

/// `xl_btree_split`.
struct SplitRecord {
    level: u32,
    first_right: u16,
    new_item: u16,
    posting_index: u16,
}

impl SplitRecord {
    fn read(main: &[u8]) -> Result<Self, Fault> {
        Ok(Self {
            level: u32_at(main, 0)?,
            first_right: u16_at(main, 4)?,
            new_item: u16_at(main, 6)?,
            posting_index: u16_at(main, 8)?,
        })
    }

    fn leaf_flag(&self) -> u16 {
        if self.level == 0 { flag::LEAF } else { 0 }
    }
}

/// Takes the next index tuple, which is padded to a multiple of 8.
fn take_padded<'a>(data: &mut Cursor<'a>) -> Result<&'a [u8], Fault> {
    let size = maxalign(index_tuple::size(data.rest())?);
    take_tuple(data, size)
}

/// The split page keeps its items up to `first_right` and gets a new high key. Items are rewritten in order.
///
/// Block data: the new item, if it goes to this page or swaps TIDs with a posting list on it; the high key.
pub(super) fn left(op: &Op<'_>, page: &mut PageMut<'_>, new_item_on_left: bool) -> Result<(), Fault> {
    let record = SplitRecord::read(op.main)?;
    let mut data = Cursor::new(op.data());

    let mut new_item = Vec::new();
    let mut swapped = None;
    if new_item_on_left || record.posting_index != 0 {
        new_item = take_padded(&mut data)?.to_vec();
        if record.posting_index != 0 {
            let offset = record.new_item.saturating_sub(1);
            let posting = posting::swap(&mut new_item, page.item(offset)?, record.posting_index)?;
            swapped = Some((offset, posting));
        }
    }
    let high_key = take_padded(&mut data)?;

    let mut bytes = BLANK;
    let mut rebuilt = PageMut::new(&mut bytes);
    let opaque = Opaque {
        prev: page.special_u32(SPECIAL_SIZE, PREV)?,
        next: op.need_blkno(RIGHT)?,
        level: page.special_u32(SPECIAL_SIZE, LEVEL)?,
        flags: flag::INCOMPLETE_SPLIT | record.leaf_flag(),
    };
    init(&mut rebuilt, opaque)?;
    rebuilt.append_item(high_key)?;
    for offset in first_data_key(page)?..record.first_right {
        if new_item_on_left && offset == record.new_item {
            rebuilt.append_item(&new_item)?;
        }
        match &swapped {
            Some((at, posting)) if *at == offset => rebuilt.append_item(posting)?,
            _ => rebuilt.append_item(page.item(offset)?)?,
        }
    }
    if new_item_on_left && record.new_item == record.first_right {
        rebuilt.append_item(&new_item)?;
    }
    page.bytes_mut().copy_from_slice(&bytes);
    Ok(())
}

/// The new right page: the block data are all its items.
pub(super) fn right(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let record = SplitRecord::read(op.main)?;
    let opaque = Opaque {
        prev: op.need_blkno(LEFT)?,
        next: op.blkno_of(OLD_RIGHT_SIBLING).unwrap_or(NO_BLOCK),
        level: record.level,
        flags: record.leaf_flag(),
    };
    init(page, opaque)?;
    restore_items(page, op.data())
}

/// `xl_btree_newroot`: root block 0, level 4. The block data are the items unless the root is a leaf.
pub(super) fn new_root(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let level = u32_at(op.main, 4)?;
    let leaf = if level == 0 { flag::LEAF } else { 0 };
    init(page, Opaque { prev: NO_BLOCK, next: NO_BLOCK, level, flags: flag::ROOT | leaf })?;
    if level > 0 {
        restore_items(page, op.data())?;
    }
    Ok(())
}

/// Fills an empty page from a copy of another page's tuple area, in which items are stored last to first.
fn restore_items(page: &mut PageMut<'_>, area: &[u8]) -> Result<(), Fault> {
    let mut items = Vec::new();
    let mut data = Cursor::new(area);
    while data.remaining() > 0 {
        items.push(take_padded(&mut data)?);
    }
    for item in items.into_iter().rev() {
        page.append_item(item)?;
    }
    Ok(())
}
