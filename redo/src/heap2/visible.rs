//! Setting visibility map bits: block 0 is the map page, block 1 the heap page.

use postgres_formats::cursor::u8_at;
use postgres_formats::heap::VM_FORK;
use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::op::{Op, Outcome};
use crate::page::RedoPage;
use crate::vm;

/// Block reference id of the heap page.
const HEAP_PAGE: u8 = 1;

/// `xl_heap_visible`: conflict xid 0, flags 4 (since 16 with one more flag, for catalogs).
pub(super) fn redo(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    if op.block.fork != VM_FORK {
        page.set_all_visible(true);
        // The flag is a hint; the page LSN advances only if hints are logged.
        let hints_are_logged = op.ctx.data_checksums || op.ctx.wal_log_hints;
        return Ok(if hints_are_logged { Outcome::Changed } else { Outcome::ChangedKeepLsn });
    }
    let bits = u8_at(op.main, 4)? & vm::VALID_BITS;
    let heap_blkno = op.need_blkno(HEAP_PAGE)?;
    if vm::status(page.bytes(), heap_blkno) == bits {
        return Ok(Outcome::Unchanged);
    }
    vm::set_bits(page.bytes_mut(), heap_blkno, bits);
    Ok(Outcome::Changed)
}
