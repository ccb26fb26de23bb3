//! Compressed posting lists (`GinPostingList`): the first TID, the number of bytes, then the deltas between
//! consecutive TIDs as variable-length integers, seven bits per byte, lowest first.

use postgres_formats::cursor::{Cursor, slice_at, u16_at};

use crate::error::Fault;
use crate::heap::tuple::tid_bytes;
use crate::index_tuple::{TID_LEN, tid_block, tid_offset};

/// Bits of a TID's number that hold the offset (`MaxHeapTuplesPerPageBits`).
const OFFSET_BITS: u32 = 11;
/// Longest encoded delta: 43 bits.
const MAX_BYTES: u32 = 7;
/// First TID and length.
const HEADER: usize = 8;

/// A TID as an integer: block number, then offset.
pub(super) type TidNumber = u64;

/// The integer of the TID at the start of `bytes`.
pub(super) fn tid_number(bytes: &[u8]) -> Result<TidNumber, Fault> {
    Ok(u64::from(tid_block(bytes)?) << OFFSET_BITS | u64::from(tid_offset(bytes)?))
}

/// Length of the list at the start of `bytes`; lists are padded to a multiple of two bytes.
pub(super) fn size(bytes: &[u8]) -> Result<usize, Fault> {
    Ok(HEADER + usize::from(u16_at(bytes, TID_LEN)?).next_multiple_of(2))
}

/// The TIDs of the list at the start of `bytes`.
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<TidNumber>, Fault> {
    let mut tid = tid_number(bytes)?;
    let mut tids = vec![tid];
    let mut deltas = Cursor::new(slice_at(bytes, HEADER, usize::from(u16_at(bytes, TID_LEN)?))?);
    while deltas.remaining() > 0 {
        tid = tid.checked_add(take_delta(&mut deltas)?).ok_or(Fault::Inconsistent("posting list overflows"))?;
        tids.push(tid);
    }
    Ok(tids)
}

fn take_delta(bytes: &mut Cursor<'_>) -> Result<u64, Fault> {
    let mut value = 0;
    for position in 0..MAX_BYTES {
        let byte = bytes.u8()?;
        value |= u64::from(byte & 0x7F) << (position * 7);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Fault::Inconsistent("posting list has a number that does not end"))
}

/// Encodes `tids`, which must be ascending, as one list.
pub(super) fn encode(tids: &[TidNumber]) -> Result<Vec<u8>, Fault> {
    let Some((first, rest)) = tids.split_first() else {
        return Err(Fault::Inconsistent("posting list without TIDs"));
    };
    let mut list = Vec::with_capacity(HEADER + rest.len() * 2);
    let offset_mask = (1 << OFFSET_BITS) - 1;
    list.extend_from_slice(&tid_bytes((first >> OFFSET_BITS) as u32, (first & offset_mask) as u16));
    list.extend_from_slice(&[0; 2]);
    let mut previous = *first;
    for tid in rest {
        put_delta(&mut list, tid.wrapping_sub(previous));
        previous = *tid;
    }
    let too_long = Fault::Inconsistent("posting list is longer than a page");
    let bytes = u16::try_from(list.len() - HEADER).map_err(|_| too_long)?;
    if let Some(length) = list.get_mut(TID_LEN..HEADER) {
        length.copy_from_slice(&bytes.to_le_bytes());
    }
    list.resize(list.len().next_multiple_of(2), 0);
    Ok(list)
}

fn put_delta(list: &mut Vec<u8>, mut delta: u64) {
    while delta > 0x7F {
        list.push(0x80 | (delta & 0x7F) as u8);
        delta >>= 7;
    }
    list.push(delta as u8);
}

/// The union of both, ascending.
pub(super) fn merge(a: &[TidNumber], b: &[TidNumber]) -> Vec<TidNumber> {
    let mut merged: Vec<_> = a.iter().chain(b).copied().collect();
    merged.sort_unstable();
    merged.dedup();
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn layout() {
        let tids = [1 << 11 | 5, 1 << 11 | 6, 3 << 11 | 1];
        let list = encode(&tids).unwrap();
        // Deltas 1 and 4091 = 31 * 128 + 123, and a byte of padding.
        assert_eq!(list, [0, 0, 1, 0, 5, 0, 3, 0, 1, 0x80 | 123, 31, 0]);
        assert_eq!(size(&list).unwrap(), list.len());
        assert_eq!(decode(&list).unwrap(), tids);
    }

    #[test]
    fn numbers_without_end_are_refused() {
        let mut list = vec![0, 0, 1, 0, 5, 0, 8, 0];
        list.extend_from_slice(&[0xFF; 8]);
        assert!(decode(&list).is_err());
    }

    proptest! {
        #[test]
        fn decoding_inverts_encoding(tids in proptest::collection::btree_set(0u64..1 << 43, 1..200)) {
            let tids: Vec<_> = tids.into_iter().collect();
            prop_assert_eq!(decode(&encode(&tids).unwrap()).unwrap(), tids);
        }
    }
}
