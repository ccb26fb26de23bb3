//! Redo of heap insertions of one or many tuples.

use postgres_formats::cursor::{Cursor, u8_at, u16_at};
use postgres_formats::heap::{ALL_VISIBLE_CLEARED, INIT_PAGE};
use postgres_formats::page::PageMut;

use super::tuple::{LoggedHeader, new_tuple};
use crate::error::Fault;
use crate::op::{Op, Outcome};
use crate::page::RedoPage;

/// `XLH_INSERT_ALL_FROZEN_SET`, on multi-inserts only.
const ALL_FROZEN_SET: u8 = 0x20;

/// `xl_heap_insert`: offnum 0, flags 2. Block data: header, then the tuple after its fixed part.
pub(super) fn insert(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    init_if_asked(op, page);
    let offset = u16_at(op.main, 0)?;
    let flags = u8_at(op.main, 2)?;

    let mut data = Cursor::new(op.data());
    let header = LoggedHeader::read(&mut data)?;
    let mut tuple = new_tuple(op, header, 0, offset);
    tuple.extend_from_slice(data.rest());
    page.add_item(&tuple, offset)?;

    if flags & ALL_VISIBLE_CLEARED != 0 {
        page.set_all_visible(false);
    }
    Ok(Outcome::Changed)
}

/// `xl_heap_multi_insert`: flags 0, ntuples 2, then the offsets unless the page is new: there they count from 1.
/// Block data: for each tuple, aligned to 2, the data length, the logged header, the data.
pub(crate) fn multi_insert(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    init_if_asked(op, page);
    let main = op.main;
    let flags = u8_at(main, 0)?;
    let count = u16_at(main, 2)?;
    let is_init = op.opcode() & INIT_PAGE != 0;

    let mut data = Cursor::new(op.data());
    for i in 0..count {
        let offset = if is_init { i.saturating_add(1) } else { u16_at(main, 4 + 2 * usize::from(i))? };
        data.align(2)?;
        let len = data.u16()?;
        let header = LoggedHeader::read(&mut data)?;
        let mut tuple = new_tuple(op, header, 0, offset);
        tuple.extend_from_slice(data.take(usize::from(len))?);
        page.add_item(&tuple, offset)?;
    }

    if flags & ALL_VISIBLE_CLEARED != 0 {
        page.set_all_visible(false);
    }
    if flags & ALL_FROZEN_SET != 0 {
        page.set_all_visible(true);
    }
    Ok(Outcome::Changed)
}

fn init_if_asked(op: &Op<'_>, page: &mut PageMut<'_>) {
    if op.opcode() & INIT_PAGE != 0 {
        page.init(0);
    }
}
