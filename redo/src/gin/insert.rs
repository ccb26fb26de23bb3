//! Insertion into the entry tree or a posting tree.

use postgres_formats::cursor::{array_at, slice_at, u8_at, u16_at};
use postgres_formats::page::PageMut;

use super::page::{POSTING_ITEM, max_offset, posting_item_at, set_posting_items};
use super::recompress;
use crate::error::Fault;
use crate::index_tuple;
use crate::op::Op;

/// `ginxlogInsert.flags`
const IS_DATA: u16 = 0x01;
const IS_LEAF: u16 = 0x02;

/// `ginxlogInsert`: flags 0; on inner pages followed by the blocks of the split child: left 2, right 6.
pub(super) fn insert(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let flags = u16_at(op.main, 0)?;
    let right_child = if flags & IS_LEAF == 0 { Some(array_at(op.main, 6)?) } else { None };
    match (flags & IS_DATA != 0, right_child) {
        (false, right_child) => insert_entry(op.data(), right_child, page),
        (true, None) => recompress::redo(op.data(), page),
        (true, Some(right_child)) => insert_posting_item(op.data(), right_child, page),
    }
}

/// Block data (`ginxlogInsertEntry`): offset 0, isDelete 2, tuple 4. The existing downlink to the split child now
/// points to its right half, the new tuple to the left one.
fn insert_entry(data: &[u8], right_child: Option<[u8; 4]>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let offset = u16_at(data, 0)?;
    if let Some([b2, b3, b0, b1]) = right_child {
        index_tuple::set_tid(page.item_mut(offset)?, u32::from_le_bytes([b0, b1, b2, b3]), 0)?;
    }
    if u8_at(data, 2)? != 0 {
        page.delete_item(offset)?;
    }
    let tuple = data.get(4..).unwrap_or_default();
    Ok(page.insert_item(slice_at(tuple, 0, index_tuple::size(tuple)?)?, offset)?)
}

/// Block data (`ginxlogInsertDataInternal`): offset 0, posting item 2.
fn insert_posting_item(data: &[u8], right_child: [u8; 4], page: &mut PageMut<'_>) -> Result<(), Fault> {
    let offset = u16_at(data, 0)?;
    let item: [u8; POSTING_ITEM] = array_at(data, 2)?;
    let count = max_offset(page)?;
    let later = count.checked_add(1).and_then(|end| end.checked_sub(offset));
    let later = later.ok_or(Fault::Inconsistent("no such posting item"))?;
    let at = posting_item_at(offset)?;
    page.put(at, &right_child)?;
    let moved = page.slice(at, usize::from(later) * POSTING_ITEM)?.to_vec();
    page.put(at + POSTING_ITEM, &moved)?;
    page.put(at, &item)?;
    set_posting_items(page, count + 1)
}
