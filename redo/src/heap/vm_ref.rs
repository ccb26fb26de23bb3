//! The visibility map page as a block reference of heap records, which 17.11, 18.6 and later minor releases write
//! when they clear bits. Older releases clear the bits without one: then it is the caller's task ([`crate::vm`]).

use postgres_formats::cursor::u8_at;
use postgres_formats::heap::{ALL_VISIBLE_CLEARED, op as opcode};
use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::op::{Op, Outcome};
use crate::vm;

/// Block reference ids in update records.
const HEAP_NEW: u8 = 0;
const HEAP_OLD: u8 = 1;
const VM_OF_NEW: u8 = 2;

pub(super) fn redo(op: &Op<'_>, opcode: u8, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    match opcode {
        opcode::INSERT | opcode::DELETE => clear_referenced_bits(op, page, vm::VALID_BITS),
        opcode::LOCK => clear_referenced_bits(op, page, vm::ALL_FROZEN),
        opcode::UPDATE | opcode::HOT_UPDATE => update(op, page),
        _ => Err(Fault::Inconsistent("record type has no business with the visibility map")),
    }
}

/// Clears `bits` of the record's heap block (block reference 0).
pub(crate) fn clear_referenced_bits(op: &Op<'_>, page: &mut PageMut<'_>, bits: u8) -> Result<Outcome, Fault> {
    let changed = vm::clear_bits(page.bytes_mut(), op.need_blkno(HEAP_NEW)?, bits);
    Ok(outcome(changed))
}

/// The map page of the new block also holds the old block's bits if it covers both; otherwise the old block's map
/// page has its own reference.
fn update(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let flags = u8_at(op.main, 7)?;
    let new_blkno = op.need_blkno(HEAP_NEW)?;
    let old_blkno = op.blkno_of(HEAP_OLD).unwrap_or(new_blkno);
    let covered = |blkno| vm::position(blkno).page == op.block.blkno;

    let mut changed = false;
    if op.block.id == VM_OF_NEW {
        changed |= vm::clear_bits(page.bytes_mut(), new_blkno, vm::VALID_BITS);
        let old_too = flags & ALL_VISIBLE_CLEARED != 0 && covered(old_blkno);
        changed |= old_too && vm::clear_bits(page.bytes_mut(), old_blkno, vm::VALID_BITS);
    } else {
        changed |= vm::clear_bits(page.bytes_mut(), old_blkno, vm::VALID_BITS);
    }
    Ok(outcome(changed))
}

fn outcome(changed: bool) -> Outcome {
    if changed { Outcome::Changed } else { Outcome::Unchanged }
}
