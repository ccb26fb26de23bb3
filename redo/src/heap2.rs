//! Heap2 (resource manager 9): pruning, freezing, visibility map bits, multi-inserts.

mod freeze;
mod prune;
mod visible;

use postgres_formats::heap::{INIT_PAGE, VM_FORK, op2 as opcode};
use postgres_formats::page::PageMut;
use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;

use crate::error::Fault;
use crate::heap;
use crate::op::{Op, Outcome};
use crate::vm;

pub(crate) fn redo(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let opcode = op.opcode() & !INIT_PAGE;
    if opcode == opcode::VISIBLE {
        return visible::redo(op, page);
    }
    if op.block.fork == VM_FORK {
        return match opcode {
            opcode::MULTI_INSERT => heap::clear_referenced_bits(op, page, vm::VALID_BITS),
            opcode::LOCK_UPDATED => heap::clear_referenced_bits(op, page, vm::ALL_FROZEN),
            _ => Err(Fault::Inconsistent("record type has no business with the visibility map")),
        };
    }
    let version = op.ctx.version;
    match opcode {
        // One common format replaces three.
        opcode::PRUNE..=opcode::FREEZE_PAGE if version >= PgVersion::V17 => prune::prune_and_freeze(op, page),
        opcode::PRUNE => prune::prune(op, page),
        opcode::VACUUM => prune::vacuum(op, page),
        opcode::FREEZE_PAGE if version == PgVersion::V16 => freeze::freeze_by_plans(op, page),
        opcode::FREEZE_PAGE => freeze::freeze_tuples(op, page),
        opcode::MULTI_INSERT => heap::multi_insert(op, page),
        opcode::LOCK_UPDATED => heap::lock_updated(op, page),
        _ => Err(Fault::Unsupported),
    }
}

/// Whether the record initializes a missing page: VISIBLE does so with visibility map pages.
pub(crate) fn may_create_page(op: &Op<'_>) -> bool {
    op.header.rmid == RmgrId::HEAP2.0 && op.opcode() == opcode::VISIBLE && op.block.fork == VM_FORK
}

#[cfg(test)]
mod tests;
