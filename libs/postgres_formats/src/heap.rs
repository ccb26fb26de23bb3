//! Heap records (resource managers 9 and 10; `heapam_xlog.h`): opcodes, flags, and the visibility map bits that they
//! clear without a block reference.

use smallvec::SmallVec;

use crate::{
    cursor::u8_at,
    main_data::MainDataError,
    record::{DecodedRecord, RelFile},
    rmgr::RmgrId,
};

/// Opcodes of resource manager `Heap`; some can be combined with [`INIT_PAGE`].
pub mod op {
    /// Insert one tuple.
    pub const INSERT: u8 = 0x00;
    /// Delete a tuple.
    pub const DELETE: u8 = 0x10;
    /// Update to a tuple on another page, or with changed index keys.
    pub const UPDATE: u8 = 0x20;
    /// `TRUNCATE`, for logical decoding only.
    pub const TRUNCATE: u8 = 0x30;
    /// Update within the page that needs no index entries.
    pub const HOT_UPDATE: u8 = 0x40;
    /// Confirm a speculative insertion.
    pub const CONFIRM: u8 = 0x50;
    /// Lock a tuple.
    pub const LOCK: u8 = 0x60;
    /// Overwrite a tuple in place.
    pub const INPLACE: u8 = 0x70;
}

/// Opcodes of resource manager `Heap2`.
pub mod op2 {
    /// A logical rewrite mapping file.
    pub const REWRITE: u8 = 0x00;
    /// 14-16: prune; 17 and later: prune on access.
    pub const PRUNE: u8 = 0x10;
    /// 14-16: second pass of vacuum; 17 and later: prune during its first pass.
    pub const VACUUM: u8 = 0x20;
    /// 14-16: freeze tuples; 17 and later: second pass of vacuum.
    pub const FREEZE_PAGE: u8 = 0x30;
    /// Set visibility map bits.
    pub const VISIBLE: u8 = 0x40;
    /// Insert several tuples.
    pub const MULTI_INSERT: u8 = 0x50;
    /// Lock an updated version of a tuple.
    pub const LOCK_UPDATED: u8 = 0x60;
    /// A new command id, for logical decoding only.
    pub const NEW_CID: u8 = 0x70;
}

/// `XLOG_HEAP_INIT_PAGE`: the page is initialized by the record.
pub const INIT_PAGE: u8 = 0x80;

/// Fork number of the visibility map.
pub const VM_FORK: u8 = 2;
/// Visibility map bit: all tuples of the heap page are visible to everyone.
pub const VM_ALL_VISIBLE: u8 = 0x01;
/// Visibility map bit: all tuples of the heap page are frozen.
pub const VM_ALL_FROZEN: u8 = 0x02;

/// Flag of inserts, deletes, and locks: the page's bits were cleared. In updates: the old page's.
pub const ALL_VISIBLE_CLEARED: u8 = 0x01;
/// Flag of updates: the new page's bits were cleared.
pub const NEW_ALL_VISIBLE_CLEARED: u8 = 0x02;

/// Visibility map bits that a record clears without referencing the map page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmClear {
    /// Relation.
    pub rel: RelFile,
    /// Heap block whose bits are cleared.
    pub heap_blkno: u32,
    /// Bits to clear: `VM_*`.
    pub bits: u8,
}

/// Whether the flags of a heap record say that visibility map bits were cleared.
pub fn clears_vm(rec: &DecodedRecord<'_>) -> Result<bool, MainDataError> {
    let Some((flags_at, _)) = clearing_record(rec) else { return Ok(false) };
    let flags = u8_at(rec.main_data, flags_at)?;
    Ok(flags & (ALL_VISIBLE_CLEARED | NEW_ALL_VISIBLE_CLEARED) != 0)
}

/// The visibility map changes of a record that are not among its block references.
///
/// Up to 16 they never are; later minor releases of 17 and 18 have block references for them, so the result is empty.
/// The map page's LSN does not change, and a missing map page needs no change. Empty for records that are not heap
/// records.
pub fn implicit_vm_clears(rec: &DecodedRecord<'_>) -> Result<SmallVec<[VmClear; 2]>, MainDataError> {
    let mut clears = SmallVec::new();
    let Some((flags_at, bits)) = clearing_record(rec) else { return Ok(clears) };
    let flags = u8_at(rec.main_data, flags_at)?;
    if rec.blocks.iter().any(|block| block.fork == VM_FORK) {
        return Ok(clears);
    }
    let is_update = rec.header.rmgr() == RmgrId::HEAP && matches!(opcode(rec), op::UPDATE | op::HOT_UPDATE);
    let new = rec.block(0);
    let old = rec.block(1).filter(|_| is_update).or(new);
    if flags & ALL_VISIBLE_CLEARED != 0 {
        clears.extend(old.map(|block| VmClear { rel: block.rel, heap_blkno: block.blkno, bits }));
    }
    if is_update && flags & NEW_ALL_VISIBLE_CLEARED != 0 {
        clears.extend(new.map(|block| VmClear { rel: block.rel, heap_blkno: block.blkno, bits }));
    }
    Ok(clears)
}

fn opcode(rec: &DecodedRecord<'_>) -> u8 {
    rec.header.info & 0x70
}

/// Offset of the flags in the main data, and the bits that the record clears if a flag says so.
fn clearing_record(rec: &DecodedRecord<'_>) -> Option<(usize, u8)> {
    const BOTH: u8 = VM_ALL_VISIBLE | VM_ALL_FROZEN;
    match (rec.header.rmgr(), opcode(rec)) {
        (RmgrId::HEAP, op::INSERT) => Some((2, BOTH)),
        (RmgrId::HEAP, op::DELETE | op::UPDATE | op::HOT_UPDATE) => Some((7, BOTH)),
        (RmgrId::HEAP, op::LOCK) | (RmgrId::HEAP2, op2::LOCK_UPDATED) => Some((7, VM_ALL_FROZEN)),
        (RmgrId::HEAP2, op2::MULTI_INSERT) => Some((0, BOTH)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
