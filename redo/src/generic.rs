//! Generic (resource manager 20): byte ranges to overwrite; extensions such as bloom log their changes this way.

use postgres_formats::cursor::Cursor;
use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::op::{Op, Outcome};

/// Block data: ranges, each with offset, length and bytes. The hole is zeroed, because it is never logged.
pub(crate) fn redo(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let mut data = Cursor::new(op.data());
    while data.remaining() > 0 {
        let offset = data.u16()?;
        let len = data.u16()?;
        page.put(offset.into(), data.take(len.into())?)?;
    }
    let hole = page.layout()?;
    page.slice_mut(hole.lower, hole.upper - hole.lower)?.fill(0);
    Ok(Outcome::Changed)
}
