//! Heap tuple headers (`HeapTupleHeaderData`): field offsets, flag bits, and the edits that redo makes.

use postgres_formats::cursor::{Cursor, u16_at};

use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::op::Op;

/// Length of the fixed part, after which the null bitmap or data starts (`SizeofHeapTupleHeader`).
pub(crate) const HEADER: usize = 23;

const XMIN: usize = 0;
const XMAX: usize = 4;
/// `t_cid`, shared with `t_xvac`.
const CID: usize = 8;
const CTID: usize = 12;
const INFOMASK2: usize = 18;
const INFOMASK: usize = 20;
const HOFF: usize = 22;

/// `t_infomask` bits (`access/htup_details.h`).
pub(crate) mod infomask {
    pub(crate) const KEYSHR_LOCK: u16 = 0x0010;
    pub(crate) const COMBO_CID: u16 = 0x0020;
    pub(crate) const EXCL_LOCK: u16 = 0x0040;
    pub(crate) const LOCK_ONLY: u16 = 0x0080;
    /// Both committed and invalid: frozen.
    pub(crate) const XMIN_FROZEN: u16 = 0x0300;
    pub(crate) const XMAX_COMMITTED: u16 = 0x0400;
    pub(crate) const XMAX_INVALID: u16 = 0x0800;
    pub(crate) const IS_MULTI: u16 = 0x1000;
    /// `HEAP_XMAX_BITS`
    pub(crate) const XMAX_BITS: u16 = IS_MULTI | KEYSHR_LOCK | EXCL_LOCK | LOCK_ONLY | XMAX_COMMITTED | XMAX_INVALID;
    pub(crate) const MOVED: u16 = 0xC000;
    /// All bits that concern visibility (`HEAP_XACT_MASK`).
    pub(crate) const XACT_MASK: u16 = 0xFFF0;
}

/// `t_infomask2` bits.
pub(crate) mod infomask2 {
    pub(crate) const KEYS_UPDATED: u16 = 0x2000;
    pub(crate) const HOT_UPDATED: u16 = 0x4000;
}

/// `XLHL_*` bits, which encode the lock part of the info masks in records.
mod infobits {
    pub(super) const IS_MULTI: u8 = 0x01;
    pub(super) const LOCK_ONLY: u8 = 0x02;
    pub(super) const EXCL_LOCK: u8 = 0x04;
    pub(super) const KEYSHR_LOCK: u8 = 0x08;
    pub(super) const KEYS_UPDATED: u8 = 0x10;
}

/// An existing heap tuple on a page.
pub(crate) struct TupleMut<'p> {
    bytes: &'p mut [u8],
}

impl<'p> TupleMut<'p> {
    /// `bytes` is the item with the length of its line pointer; it must hold at least a header.
    pub(crate) fn new(bytes: &'p mut [u8]) -> Result<Self, Fault> {
        if bytes.len() < HEADER {
            return Err(Fault::Inconsistent("heap item is shorter than a tuple header"));
        }
        Ok(Self { bytes })
    }

    fn put(&mut self, at: usize, value: &[u8]) {
        if let Some(field) = self.bytes.get_mut(at..at + value.len()) {
            field.copy_from_slice(value);
        }
    }

    fn u16(&self, at: usize) -> u16 {
        // `new` has checked that the header is complete.
        u16_at(self.bytes, at).unwrap_or(0)
    }

    pub(crate) fn infomask(&self) -> u16 {
        self.u16(INFOMASK)
    }

    pub(crate) fn set_infomask(&mut self, value: u16) {
        self.put(INFOMASK, &value.to_le_bytes());
    }

    pub(crate) fn infomask2(&self) -> u16 {
        self.u16(INFOMASK2)
    }

    pub(crate) fn set_infomask2(&mut self, value: u16) {
        self.put(INFOMASK2, &value.to_le_bytes());
    }

    pub(crate) fn set_xmin(&mut self, xid: u32) {
        self.put(XMIN, &xid.to_le_bytes());
    }

    pub(crate) fn set_xmax(&mut self, xid: u32) {
        self.put(XMAX, &xid.to_le_bytes());
    }

    /// Sets `t_xvac`, which only tuples moved by an ancient VACUUM FULL have.
    pub(crate) fn set_xvac(&mut self, xid: u32) {
        self.put(CID, &xid.to_le_bytes());
    }

    /// `HeapTupleHeaderSetCmax(0)` without combo command id.
    pub(crate) fn reset_cmax(&mut self) {
        self.put(CID, &[0; 4]);
        self.set_infomask(self.infomask() & !infomask::COMBO_CID);
    }

    pub(crate) fn ctid_offset(&self) -> u16 {
        self.u16(CTID + 4)
    }

    pub(crate) fn set_ctid(&mut self, blkno: u32, offset: u16) {
        self.put(CTID, &tid_bytes(blkno, offset));
    }

    /// `t_ctid` of a tuple that an update moved to another partition.
    pub(crate) fn set_moved_partitions(&mut self) {
        self.set_ctid(u32::MAX, 0xFFFD);
    }

    pub(crate) fn set_hot_updated(&mut self, on: bool) {
        let bits = self.infomask2() & !infomask2::HOT_UPDATED;
        self.set_infomask2(if on { bits | infomask2::HOT_UPDATED } else { bits });
    }

    /// Replaces the lock and xmax state with the record's (`fix_infomask_from_infobits`).
    pub(crate) fn set_infobits(&mut self, bits: u8) {
        let mut mask = self.infomask() & !(infomask::XMAX_BITS | infomask::MOVED);
        for (bit, flag) in [
            (infobits::IS_MULTI, infomask::IS_MULTI),
            (infobits::LOCK_ONLY, infomask::LOCK_ONLY),
            (infobits::EXCL_LOCK, infomask::EXCL_LOCK),
            (infobits::KEYSHR_LOCK, infomask::KEYSHR_LOCK),
        ] {
            if bits & bit != 0 {
                mask |= flag;
            }
        }
        self.set_infomask(mask);
        let mask2 = self.infomask2() & !infomask2::KEYS_UPDATED;
        let keys_updated = bits & infobits::KEYS_UPDATED != 0;
        self.set_infomask2(if keys_updated { mask2 | infomask2::KEYS_UPDATED } else { mask2 });
    }

    /// Whether xmax only locks the tuple (`HEAP_XMAX_IS_LOCKED_ONLY`).
    pub(crate) fn is_locked_only(&self) -> bool {
        let mask = self.infomask();
        let lock_bits = infomask::IS_MULTI | infomask::EXCL_LOCK | infomask::KEYSHR_LOCK;
        mask & infomask::LOCK_ONLY != 0 || mask & lock_bits == infomask::EXCL_LOCK
    }

    /// Everything from `t_hoff` on: the tuple's attributes.
    pub(crate) fn attributes(&mut self) -> Result<&mut [u8], Fault> {
        let hoff = self.bytes.get(HOFF).copied().unwrap_or(0);
        let attributes = self.bytes.get_mut(usize::from(hoff)..);
        attributes.ok_or(Fault::Inconsistent("heap tuple header is longer than the item"))
    }
}

/// The stored form of a TID: block number high half, low half, offset.
pub(crate) fn tid_bytes(blkno: u32, offset: u16) -> [u8; 6] {
    let [b0, b1, b2, b3] = blkno.to_le_bytes();
    let [o0, o1] = offset.to_le_bytes();
    [b2, b3, b0, b1, o0, o1]
}

/// `xl_heap_header`: the part of a tuple header that records carry for a new tuple.
#[derive(Clone, Copy)]
pub(crate) struct LoggedHeader {
    pub(crate) infomask2: u16,
    pub(crate) infomask: u16,
    pub(crate) hoff: u8,
}

impl LoggedHeader {
    pub(crate) fn read(data: &mut Cursor<'_>) -> Result<Self, Fault> {
        Ok(Self { infomask2: data.u16()?, infomask: data.u16()?, hoff: data.u8()? })
    }

    /// Length of null bitmap and padding, between the fixed part and the attributes.
    pub(crate) fn bitmap_len(self) -> Result<usize, Fault> {
        let len = usize::from(self.hoff).checked_sub(HEADER);
        len.ok_or(Fault::Inconsistent("heap tuple's data starts within its header"))
    }
}

/// Builds the header of a new tuple whose `t_ctid` is its own address; the caller appends everything after the fixed
/// part.
pub(crate) fn new_tuple(op: &Op<'_>, header: LoggedHeader, xmax: u32, offset: u16) -> Vec<u8> {
    let mut tuple = Vec::with_capacity(HEADER + op.data().len());
    tuple.extend_from_slice(&op.header.xid.to_le_bytes());
    tuple.extend_from_slice(&xmax.to_le_bytes());
    tuple.extend_from_slice(&[0; 4]);
    tuple.extend_from_slice(&tid_bytes(op.block.blkno, offset));
    tuple.extend_from_slice(&header.infomask2.to_le_bytes());
    tuple.extend_from_slice(&(header.infomask & !infomask::COMBO_CID).to_le_bytes());
    tuple.push(header.hoff);
    tuple
}

/// The heap tuple at line pointer `offset`.
pub(crate) fn tuple_mut<'p>(page: &'p mut PageMut<'_>, offset: u16) -> Result<TupleMut<'p>, Fault> {
    TupleMut::new(page.item_mut(offset)?)
}
