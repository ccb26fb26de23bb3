//! Parsing of lists in record data.

use postgres_formats::cursor::Cursor;

use crate::error::Fault;
use crate::index_tuple;

/// The next `count` 16-bit integers, mostly offset numbers.
pub(crate) fn take_u16s(data: &mut Cursor<'_>, count: usize) -> Result<Vec<u16>, Fault> {
    Ok(u16s(data.take(count.saturating_mul(2))?))
}

/// All 16-bit integers in `bytes`.
pub(crate) fn u16s(bytes: &[u8]) -> Vec<u16> {
    let (words, _) = bytes.as_chunks::<2>();
    words.iter().copied().map(u16::from_le_bytes).collect()
}

/// The next index tuple, with the length that its header gives.
pub(crate) fn take_index_tuple<'a>(data: &mut Cursor<'a>) -> Result<&'a [u8], Fault> {
    take_tuple(data, index_tuple::size(data.rest())?)
}

/// The next `size` bytes as a tuple, which must not be empty: so a list of tuples always terminates.
pub(crate) fn take_tuple<'a>(data: &mut Cursor<'a>, size: usize) -> Result<&'a [u8], Fault> {
    if size == 0 {
        return Err(Fault::Inconsistent("tuple has no length"));
    }
    Ok(data.take(size)?)
}
