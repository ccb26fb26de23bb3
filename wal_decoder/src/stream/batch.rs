//! Batches of records, to reduce the cost per record of handing them to another task.

use bytes::Bytes;
use postgres_formats::record::{HEADER_SIZE, RecordHeader, check_crc};
use utils::lsn::Lsn;

use super::decoder::{State, WalRecord, WalStreamDecoder, page_end};
use super::error::WalError;

/// Consecutive records, which share the memory of the pieces that they came in.
#[derive(Clone, Debug, Default)]
pub struct RecordBatch {
    buffers: Vec<Bytes>,
    places: Vec<Place>,
}

/// Position of a record.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: Lsn,
    end: Lsn,
    buffer: usize,
    offset: usize,
    len: usize,
}

/// A record of a batch: see [`WalRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// LSN of its first byte.
    pub start: Lsn,
    /// LSN of its end.
    pub end: Lsn,
    /// The record without page headers and padding.
    pub bytes: &'a [u8],
}

impl RecordBatch {
    /// Appends a record.
    pub fn push(&mut self, record: WalRecord) {
        let WalRecord { start, end, bytes } = record;
        self.places.push(Place { start, end, buffer: self.buffers.len(), offset: 0, len: bytes.len() });
        self.buffers.push(bytes);
    }

    /// The records, in order.
    pub fn iter(&self) -> impl Iterator<Item = RecordRef<'_>> {
        self.places.iter().filter_map(|&Place { start, end, buffer, offset, len }| {
            let bytes = self.buffers.get(buffer)?.get(offset..offset + len)?;
            Some(RecordRef { start, end, bytes })
        })
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

impl WalStreamDecoder {
    /// Appends all complete records to `batch`: those that [`next`](Self::next) would return one by one. If `next`
    /// would then return an error, so does this, with the preceding records in the batch.
    pub fn take_records(&mut self, batch: &mut RecordBatch) -> Result<(), WalError> {
        loop {
            self.take_plain(batch);
            match self.next()? {
                Some(record) => batch.push(record),
                None => return Ok(()),
            }
        }
    }

    /// Takes records that lie entirely within the current page and the first piece, as long as they are valid and
    /// ordinary. All others are left to [`next`](Self::next).
    fn take_plain(&mut self, batch: &mut RecordBatch) {
        let from = self.input.lsn();
        let mut at = match self.state {
            State::Between => from,
            State::Skip { to } => to.max(from),
            _ => return,
        };
        let (Some(mut previous), Some(piece)) = (self.previous, self.input.front()) else { return };
        let end = page_end(from);
        if from.page_offset() == 0 || at >= end || self.failed.is_some() || self.cut_short.is_some() {
            return;
        }
        let page = piece.get(..(end.0 - from.0) as usize).unwrap_or(piece);
        let (buffer, known) = (batch.buffers.len(), batch.places.len());
        let mut used = from;
        loop {
            let offset = (at.0 - from.0) as usize;
            let Some(record) = page.get(offset..).and_then(|rest| self.plain_record(rest, previous)) else { break };
            used = Lsn(at.0 + record.len() as u64);
            let end = used.align();
            batch.places.push(Place { start: at, end, buffer, offset, len: record.len() });
            (previous, at) = (at, end);
        }
        if batch.places.len() > known {
            batch.buffers.push(piece.clone());
            (self.previous, self.decoded) = (Some(previous), at);
            self.state = State::Skip { to: at };
            self.input.skip_to(used);
        }
    }

    /// The record at the start of `rest`, if it is complete, valid, and not a segment switch.
    fn plain_record<'a>(&self, rest: &'a [u8], previous: Lsn) -> Option<&'a [u8]> {
        let header = RecordHeader::parse(self.version, rest.get(..HEADER_SIZE)?).ok()?;
        let record = rest.get(..header.total_len as usize)?;
        (Lsn(header.prev) == previous && !header.is_switch() && check_crc(record)).then_some(record)
    }
}
