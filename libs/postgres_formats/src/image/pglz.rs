//! Decompression of PostgreSQL's own LZ format (`pg_lzcompress.c`).
//!
//! The data is a sequence of groups: a control byte, then for each of its bits, lowest first, a literal byte (0) or a
//! back reference (1). A back reference is two bytes: the low nibble of the first is the length minus 3, its high
//! nibble and the second byte are the distance; after a length nibble of 15 another byte adds to the length.

use thiserror::Error;

use crate::cursor::{Cursor, Truncated};

/// Length of the shortest back reference.
const MIN_MATCH: usize = 3;
/// Length that indicates that another length byte follows.
const LONG_MATCH: usize = MIN_MATCH + 15;

/// Why the data is not valid output of the compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PglzError {
    /// A control byte announces more data than there is, or the output is not full at the end.
    #[error("compressed data ends too early: {0}")]
    Truncated(#[from] Truncated),
    /// Input remains when the output is full.
    #[error("{0} bytes of compressed data are left when the output is full")]
    Trailing(usize),
    /// A back reference that points before the start, or to itself.
    #[error("back reference by {distance} bytes at output offset {at}")]
    Distance {
        /// Distance in bytes.
        distance: usize,
        /// Output offset of the reference.
        at: usize,
    },
}

/// Fills `out` exactly from `source`. If the last back reference exceeds `out` it is cut, as the server does.
pub(super) fn decompress(source: &[u8], out: &mut [u8]) -> Result<(), PglzError> {
    let mut input = Cursor::new(source);
    let mut at = 0;
    while at < out.len() {
        let control = input.u8()?;
        for bit in 0..8 {
            let Some(place) = out.get_mut(at) else { break };
            if control >> bit & 1 == 0 {
                *place = input.u8()?;
                at += 1;
            } else {
                at += copy_match(&mut input, out, at)?;
            }
        }
    }
    if input.remaining() == 0 { Ok(()) } else { Err(PglzError::Trailing(input.remaining())) }
}

/// Reads one back reference and copies it to `out[at..]`; returns the number of bytes written.
fn copy_match(input: &mut Cursor<'_>, out: &mut [u8], at: usize) -> Result<usize, PglzError> {
    let [first, second] = input.array::<2>()?.map(usize::from);
    let distance = (first & 0xF0) << 4 | second;
    let mut len = (first & 0x0F) + MIN_MATCH;
    if len == LONG_MATCH {
        len += usize::from(input.u8()?);
    }
    if distance == 0 || distance > at {
        return Err(PglzError::Distance { distance, at });
    }
    let len = len.min(out.len() - at);
    let (done, rest) = out.split_at_mut(at);
    let pattern = done.get(at - distance..).unwrap_or_default();
    let target = rest.get_mut(..len).unwrap_or_default();
    for chunk in target.chunks_mut(distance) {
        // Source and target overlap when the match is longer than its distance: the pattern repeats.
        chunk.copy_from_slice(pattern.get(..chunk.len()).unwrap_or_default());
    }
    Ok(len)
}
