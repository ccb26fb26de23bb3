//! Index tuples (`IndexTupleData`): a TID of six bytes, two bytes of size and flags, then the key.

use postgres_formats::cursor::{array_at, u16_at};

use crate::error::Fault;
use crate::heap::tuple::tid_bytes;

/// Length of the header (`sizeof(IndexTupleData)`).
pub(crate) const HEADER: usize = 8;
/// Length of a TID.
pub(crate) const TID_LEN: usize = 6;
/// Offset of `t_info`.
pub(crate) const INFO: usize = 6;
/// `INDEX_SIZE_MASK`
pub(crate) const SIZE_MASK: u16 = 0x1FFF;

/// Length of the tuple at the start of `bytes`, according to its header.
pub(crate) fn size(bytes: &[u8]) -> Result<usize, Fault> {
    Ok(usize::from(u16_at(bytes, INFO)? & SIZE_MASK))
}

/// Block number of the TID at the start of `bytes`.
pub(crate) fn tid_block(bytes: &[u8]) -> Result<u32, Fault> {
    let [b2, b3, b0, b1] = array_at(bytes, 0)?;
    Ok(u32::from_le_bytes([b0, b1, b2, b3]))
}

/// Offset number of the TID at the start of `bytes`.
pub(crate) fn tid_offset(bytes: &[u8]) -> Result<u16, Fault> {
    Ok(u16_at(bytes, 4)?)
}

/// Writes a TID at the start of `bytes`.
pub(crate) fn set_tid(bytes: &mut [u8], blkno: u32, offset: u16) -> Result<(), Fault> {
    let tid = bytes.first_chunk_mut::<TID_LEN>();
    *tid.ok_or(Fault::Inconsistent("item is too short for a TID"))? = tid_bytes(blkno, offset);
    Ok(())
}
