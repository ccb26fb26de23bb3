//! Buckets: allocation for a split, moving tuples.

use postgres_formats::cursor::{Cursor, u8_at, u16_at, u32_at};
use postgres_formats::maxalign;
use postgres_formats::page::PageMut;

use super::meta;
use super::page::{PREV, init, set_flags, set_link};
use crate::data::{take_tuple, take_u16s};
use crate::error::Fault;
use crate::index_tuple;
use crate::op::Op;

/// `xl_hash_split_allocate_page.flags`
const UPDATE_MASKS: u8 = 0x01;
const UPDATE_SPLITPOINT: u8 = 0x02;

/// `xl_hash_split_allocate_page`: new_bucket 0, old_bucket_flag 4, new_bucket_flag 6, flags 8. Blocks: 0 old bucket,
/// 1 new bucket, 2 metapage with data: masks, then splitpoint and its overflow pages, each only if flagged.
pub(super) fn allocate(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let new_bucket = u32_at(op.main, 0)?;
    match op.block.id {
        0 => {
            set_flags(page, u16_at(op.main, 4)?)?;
            return set_link(page, PREV, new_bucket);
        }
        1 => return init(page, new_bucket, new_bucket, u16_at(op.main, 6)?),
        _ => meta::set_max_bucket(page, new_bucket)?,
    }
    let flags = u8_at(op.main, 8)?;
    let mut data = Cursor::new(op.data());
    if flags & UPDATE_MASKS != 0 {
        let (low, high) = (data.u32()?, data.u32()?);
        meta::set_masks(page, low, high)?;
    }
    if flags & UPDATE_SPLITPOINT != 0 {
        let (splitpoint, pages) = (data.u32()?, data.u32()?);
        meta::set_splitpoint(page, splitpoint, pages)?;
    }
    Ok(())
}

/// Adds the tuples of the block data: `count` offsets, then as many tuples, padded to multiples of 8.
pub(super) fn add_tuples(op: &Op<'_>, count: u16, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let mut data = Cursor::new(op.data());
    for offset in take_u16s(&mut data, count.into())? {
        let size = maxalign(index_tuple::size(data.rest())?);
        page.insert_item(take_tuple(&mut data, size)?, offset)?;
    }
    Ok(())
}
