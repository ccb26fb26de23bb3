//! The list of pending insertions, and the metapage, which records its head and tail.

use postgres_formats::cursor::{Cursor, u32_at};
use postgres_formats::page::PageMut;

use super::page::{NO_BLOCK, RIGHT_LINK, SPECIAL_SIZE, flag, init, max_offset, set_max_offset};
use crate::data::take_index_tuple;
use crate::error::Fault;
use crate::op::Op;
use crate::page::RedoPage;

/// Start and size of `GinMetaPageData`.
const META_START: usize = 24;
pub(super) const META_SIZE: usize = 56;

/// Records carry the metapage's entire content.
pub(super) fn restore_meta(page: &mut PageMut<'_>, content: &[u8]) -> Result<(), Fault> {
    init(page, flag::META)?;
    page.put(META_START, content)?;
    page.set_content_end(META_START + META_SIZE)
}

/// The list's last page. `ginxlogUpdateMeta`: relation 0, metadata 16, prevTail 72, newRightlink 76, ntuples 80.
/// Either the tuples of the block data are added to it, or pages were appended to the list.
pub(super) fn update_tail(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    if u32_at(op.main, 80)? == 0 {
        return Ok(page.put_special(SPECIAL_SIZE, RIGHT_LINK, &u32_at(op.main, 76)?.to_le_bytes())?);
    }
    append_tuples(op, page)?;
    // Counts heap rows; each record adds one.
    let rows = max_offset(page)?.wrapping_add(1);
    set_max_offset(page, rows)
}

/// A new page of the list. `ginxlogInsertListPage`: rightlink 0, ntuples 4.
pub(super) fn insert_list_page(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let right_link = u32_at(op.main, 0)?;
    let is_last = right_link == NO_BLOCK;
    init(page, if is_last { flag::LIST | flag::LIST_FULLROW } else { flag::LIST })?;
    page.put_special(SPECIAL_SIZE, RIGHT_LINK, &right_link.to_le_bytes())?;
    set_max_offset(page, u16::from(is_last))?;
    append_tuples(op, page)
}

fn append_tuples(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let mut data = Cursor::new(op.data());
    while data.remaining() > 0 {
        page.append_item(take_index_tuple(&mut data)?)?;
    }
    Ok(())
}
