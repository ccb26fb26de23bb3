//! Heap (resource manager 10): single-tuple changes to table pages.

mod insert;
pub(crate) mod tuple;
mod update;
mod vm_ref;

use postgres_formats::cursor::{u8_at, u16_at, u32_at};
use postgres_formats::heap::{ALL_VISIBLE_CLEARED, INIT_PAGE, VM_FORK, op as opcode};
use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::op::{Op, Outcome};
use crate::page::RedoPage;
use tuple::tuple_mut;

pub(crate) use insert::multi_insert;
pub(crate) use vm_ref::clear_referenced_bits;

/// `xl_heap_delete.flags`
mod delete_flag {
    /// A speculative insertion is undone.
    pub(super) const IS_SUPER: u8 = 0x08;
    pub(super) const IS_PARTITION_MOVE: u8 = 0x10;
}

pub(crate) fn redo(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let opcode = op.opcode() & !INIT_PAGE;
    if op.block.fork == VM_FORK {
        return vm_ref::redo(op, opcode, page);
    }
    match opcode {
        opcode::INSERT => insert::insert(op, page),
        opcode::DELETE => delete(op, page),
        opcode::UPDATE => update::update(op, page, false),
        opcode::HOT_UPDATE => update::update(op, page, true),
        opcode::CONFIRM => confirm(op, page),
        opcode::LOCK => lock(op, page),
        opcode::INPLACE => inplace(op, page),
        _ => Err(Fault::Unsupported),
    }
}

/// `xl_heap_delete`: xmax 0, offnum 4, infobits 6, flags 7. An old tuple may follow, only for logical decoding.
fn delete(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let main = op.main;
    let offset = u16_at(main, 4)?;
    let flags = u8_at(main, 7)?;

    let mut tuple = tuple_mut(page, offset)?;
    tuple.set_infobits(u8_at(main, 6)?);
    tuple.set_hot_updated(false);
    if flags & delete_flag::IS_SUPER != 0 {
        tuple.set_xmin(0);
    } else {
        tuple.set_xmax(u32_at(main, 0)?);
    }
    tuple.reset_cmax();
    if flags & delete_flag::IS_PARTITION_MOVE != 0 {
        tuple.set_moved_partitions();
    } else {
        tuple.set_ctid(op.block.blkno, offset);
    }

    page.set_prunable(op.header.xid);
    if flags & ALL_VISIBLE_CLEARED != 0 {
        page.set_all_visible(false);
    }
    Ok(Outcome::Changed)
}

/// Confirms a speculative insertion: `xl_heap_confirm` is the offset.
fn confirm(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let offset = u16_at(op.main, 0)?;
    tuple_mut(page, offset)?.set_ctid(op.block.blkno, offset);
    Ok(Outcome::Changed)
}

/// `xl_heap_lock`: xmax 0, offnum 4, infobits 6, flags 7.
fn lock(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let main = op.main;
    let offset = u16_at(main, 4)?;
    let mut tuple = tuple_mut(page, offset)?;
    tuple.set_infobits(u8_at(main, 6)?);
    if tuple.is_locked_only() {
        // It is not an update, so there is no newer version to point to.
        tuple.set_hot_updated(false);
        tuple.set_ctid(op.block.blkno, offset);
    }
    tuple.set_xmax(u32_at(main, 0)?);
    tuple.reset_cmax();
    Ok(Outcome::Changed)
}

/// `xl_heap_lock_updated` (a Heap2 record with the layout of `xl_heap_lock`): a later version of a locked tuple.
pub(crate) fn lock_updated(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let main = op.main;
    let mut tuple = tuple_mut(page, u16_at(main, 4)?)?;
    tuple.set_infobits(u8_at(main, 6)?);
    tuple.set_xmax(u32_at(main, 0)?);
    Ok(Outcome::Changed)
}

/// Overwrites a tuple's attributes with others of the same length; main data starts with the offset (18 adds
/// invalidation messages, which do not concern the page).
fn inplace(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let mut tuple = tuple_mut(page, u16_at(op.main, 0)?)?;
    let attributes = tuple.attributes()?;
    if attributes.len() != op.data().len() {
        return Err(Fault::Inconsistent("in-place update changes the tuple's length"));
    }
    attributes.copy_from_slice(op.data());
    Ok(Outcome::Changed)
}

#[cfg(test)]
mod tests;
