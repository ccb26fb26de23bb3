//! Posting list tuples: one key with the sorted TIDs of several heap tuples.
//!
//! The tuple's own TID encodes this: its block number is the list's byte offset, its offset number the list's length.

use postgres_formats::cursor::{slice_at, u16_at};
use postgres_formats::maxalign;

use crate::error::Fault;
use crate::index_tuple::{self, INFO, SIZE_MASK, TID_LEN};

/// `INDEX_ALT_TID_MASK` in `t_info`: the TID is not that of a heap tuple.
pub(super) const ALT_TID: u16 = 0x2000;
/// `BT_IS_POSTING` in the TID's offset number.
const IS_POSTING: u16 = 0x2000;
/// `BT_OFFSET_MASK`
const COUNT_MASK: u16 = 0x0FFF;

/// The parts of a leaf tuple.
#[derive(Clone, Copy)]
pub(super) struct LeafTuple<'a> {
    /// Header and key, without posting list.
    pub(super) key: &'a [u8],
    /// The heap TIDs, six bytes each: the posting list, or the only TID.
    pub(super) tids: &'a [u8],
}

impl<'a> LeafTuple<'a> {
    pub(super) fn parse(tuple: &'a [u8]) -> Result<Self, Fault> {
        if !is_posting(tuple)? {
            let size = index_tuple::size(tuple)?;
            return Ok(Self { key: slice_at(tuple, 0, size)?, tids: slice_at(tuple, 0, TID_LEN)? });
        }
        let count = usize::from(index_tuple::tid_offset(tuple)? & COUNT_MASK);
        let list_at = index_tuple::tid_block(tuple)? as usize;
        Ok(Self { key: slice_at(tuple, 0, list_at)?, tids: slice_at(tuple, list_at, count * TID_LEN)? })
    }
}

pub(super) fn is_posting(tuple: &[u8]) -> Result<bool, Fault> {
    let alt = u16_at(tuple, INFO)? & ALT_TID != 0;
    Ok(alt && index_tuple::tid_offset(tuple)? & IS_POSTING != 0)
}

/// Forms a tuple with `key` (header included) for the heap tuples `tids`: a plain one if there is only one
/// (`_bt_form_posting`).
pub(super) fn form(key: &[u8], tids: &[u8]) -> Result<Vec<u8>, Fault> {
    let count = tids.len() / TID_LEN;
    let size = if count > 1 { maxalign(key.len() + tids.len()) } else { key.len() };
    let too_long = Fault::Inconsistent("posting list tuple would be too long");
    if size > usize::from(SIZE_MASK) || count > usize::from(COUNT_MASK) {
        return Err(too_long);
    }
    let mut tuple = Vec::with_capacity(size);
    tuple.extend_from_slice(key);
    let info = u16_at(key, INFO)? & !SIZE_MASK | size as u16;
    if count > 1 {
        tuple.extend_from_slice(tids);
        tuple.resize(size, 0);
        index_tuple::set_tid(&mut tuple, key.len() as u32, count as u16 | IS_POSTING)?;
        set_info(&mut tuple, info | ALT_TID)?;
    } else {
        put(&mut tuple, 0, slice_at(tids, 0, TID_LEN)?)?;
        set_info(&mut tuple, info & !ALT_TID)?;
    }
    Ok(tuple)
}

/// Puts the TID of `new_item` into `posting` at index `at` and moves its last TID to `new_item` (`_bt_swap_posting`).
pub(super) fn swap(new_item: &mut [u8], posting: &[u8], at: u16) -> Result<Vec<u8>, Fault> {
    if !is_posting(posting)? {
        return Err(Fault::Inconsistent("item is not a posting list tuple"));
    }
    let LeafTuple { key, tids } = LeafTuple::parse(posting)?;
    let at = usize::from(at) * TID_LEN;
    if at == 0 || at >= tids.len() {
        return Err(Fault::Inconsistent("posting list has no such index"));
    }
    let (kept, last) = tids.split_at(tids.len() - TID_LEN);
    let mut swapped = posting.to_vec();
    put(&mut swapped, key.len() + at, slice_at(new_item, 0, TID_LEN)?)?;
    put(&mut swapped, key.len() + at + TID_LEN, kept.get(at..).unwrap_or_default())?;
    put(new_item, 0, last)?;
    Ok(swapped)
}

fn set_info(tuple: &mut [u8], info: u16) -> Result<(), Fault> {
    put(tuple, INFO, &info.to_le_bytes())
}

fn put(tuple: &mut [u8], at: usize, bytes: &[u8]) -> Result<(), Fault> {
    let target = tuple.get_mut(at..at + bytes.len());
    target.ok_or(Fault::Inconsistent("index tuple is too short"))?.copy_from_slice(bytes);
    Ok(())
}
