//! Insertion of one index tuple.

use postgres_formats::cursor::{Cursor, slice_at, u16_at};
use postgres_formats::page::PageMut;

use super::posting;
use crate::error::Fault;
use crate::index_tuple;
use crate::op::Op;

/// `xl_btree_insert` is the offset, block data is the tuple.
pub(super) fn insert(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    Ok(page.insert_item(op.data(), u16_at(op.main, 0)?)?)
}

/// The new tuple's TID falls into the range of the preceding posting list: the two swap TIDs. Block data: index into
/// the posting list, then the tuple as originally to be inserted.
pub(super) fn insert_into_posting(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let offset = u16_at(op.main, 0)?;
    let mut data = Cursor::new(op.data());
    let posting_index = data.u16()?;
    let size = index_tuple::size(data.rest())?;
    let mut new_item = data.take(size)?.to_vec();

    let posting = page.item_mut(offset.saturating_sub(1))?;
    let swapped = posting::swap(&mut new_item, posting, posting_index)?;
    posting.copy_from_slice(slice_at(&swapped, 0, posting.len())?);
    Ok(page.insert_item(&new_item, offset)?)
}
