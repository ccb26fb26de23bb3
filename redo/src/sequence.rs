//! Sequence (resource manager 15): the record rebuilds the whole page.

use postgres_formats::cursor::slice_at;
use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::op::{Op, Outcome};
use crate::page::RedoPage;

const LOG: u8 = 0x00;
/// The special area holds this number (`SEQ_MAGIC`), padded to eight bytes.
pub(crate) const MAGIC: u32 = 0x1717;
const SPECIAL_SIZE: usize = 8;
/// The tuple follows the relation's locator in the main data.
const TUPLE: usize = 12;

pub(crate) fn redo(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    if op.opcode() != LOG {
        return Err(Fault::Unsupported);
    }
    let len = op.main.len().saturating_sub(TUPLE);
    let tuple = slice_at(op.main, TUPLE, len)?;
    page.init(SPECIAL_SIZE as u16);
    page.put_special(SPECIAL_SIZE, 0, &MAGIC.to_le_bytes())?;
    page.add_item(tuple, 1)?;
    Ok(Outcome::Changed)
}
