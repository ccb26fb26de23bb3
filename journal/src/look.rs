//! Bytes of a segment, looked at without a journal, for those who hand it bytes that nobody wrote.

use std::ops::Range;

use layer_format::FormatError;
use utils::lsn::Lsn;

use crate::batch::{BLOCK, HEADER, Id, Kind, SegmentHeader, seal, segment_header};
use crate::segment::{batches_of, header_of};

/// A piece of WAL in the file of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whose it is.
    pub id: Id,
    /// The LSN of its first byte.
    pub lsn: Lsn,
    /// Where it is in the file; `None` if what was journaled before is void from the LSN on.
    pub bytes: Option<Range<usize>>,
}

/// What a segment's file has, in order.
///
/// # Errors
/// If it does not begin as one. Batches that are damaged are left out.
pub fn look(file: &[u8]) -> Result<Vec<Found>, FormatError> {
    let segment = header_of(file).map_err(|error| FormatError(error.to_string()))?;
    let mut found = Vec::new();
    for batch in batches_of(file, &segment)? {
        let at = batch.offset as usize;
        found.extend(batch.frames.into_iter().map(|frame| Found {
            id: frame.id,
            lsn: frame.lsn,
            bytes: (frame.kind == Kind::Wal).then(|| at + frame.wal.start..at + frame.wal.end),
        }));
    }
    Ok(found)
}

/// A segment with these bytes as the frames of its only batch, with checksums that are right.
pub fn sealed(frames: &[u8]) -> Vec<u8> {
    let padded = (HEADER + frames.len()).next_multiple_of(BLOCK);
    let segment = SegmentHeader { number: 1, len: u32::try_from(BLOCK + padded).unwrap_or(u32::MAX), key: 7 };
    let mut batch = vec![0; HEADER];
    batch.extend_from_slice(frames);
    seal(&mut batch, &segment, 1);
    batch.resize(padded, 0);
    [segment_header(&segment), batch].concat()
}
