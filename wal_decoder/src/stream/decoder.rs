//! The decoder: bytes in, whole records out.

use bytes::Bytes;
use postgres_formats::{
    record::{HEADER_SIZE, RecordHeader, check_crc, decode},
    version::PgVersion,
    wal_file::{WalPosition, is_valid_segment_size},
    wal_page::{LONG_HEADER_SIZE, WAL_PAGE_SIZE, WalPageContext, WalPageHeader},
    xlog::{XlogRecord, parse},
};
use utils::lsn::Lsn;

use super::error::{EndReason, Misuse, WalError};
use super::input::Input;

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

/// No server can read longer records (`MaxAllocSize`).
const MAX_RECORD_LEN: u32 = 0x3FFF_FFFF;

/// Maximum number of bytes reserved for a record before its bytes arrive.
const MAX_RESERVED: usize = 1 << 18;

/// Where decoding starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalStart {
    /// At a record: its start, or the end of the preceding record.
    Record {
        /// The start LSN.
        lsn: Lsn,
        /// Start of the preceding record, if known: then the first record's link to it is checked.
        previous: Option<Lsn>,
    },
    /// At the first record that starts at or after this page boundary.
    FirstFrom(Lsn),
}

/// Parameters of the decoder.
#[derive(Clone, Copy, Debug)]
pub struct WalStreamConfig {
    /// Major version.
    pub version: PgVersion,
    /// Size of a segment in bytes.
    pub segment_size: u32,
    /// System identifier to check in the first page of each segment, if known.
    pub system_identifier: Option<u64>,
    /// LSN of the first byte fed, at or before the start. If it is within a page, that page's header is assumed
    /// valid.
    pub feed_from: Lsn,
    /// Where decoding starts.
    pub start: WalStart,
}

/// A whole record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalRecord {
    /// LSN of its first byte.
    pub start: Lsn,
    /// LSN of its end: the LSN that the pages it changes get.
    pub end: Lsn,
    /// The record without page headers and padding; its CRC has been verified.
    pub bytes: Bytes,
}

#[derive(Clone, Debug)]
pub(super) enum State {
    /// Advancing to a position, checking page headers on the way.
    Skip { to: Lsn },
    /// Advancing to the next segment: the bytes before it have no page headers.
    SkipSegment { to: Lsn },
    /// At a page boundary, looking for the first record.
    FindFirst,
    /// In the rest of a record whose beginning was not seen.
    SkipRest { left: u32 },
    /// At the start of a record, or at the page boundary before it.
    Between,
    /// In a record that extends beyond its page.
    Partial(Partial),
}

/// A partially assembled record.
#[derive(Clone, Debug)]
pub(super) struct Partial {
    start: Lsn,
    total_len: u32,
    bytes: Vec<u8>,
    header_checked: bool,
}

impl Partial {
    fn missing(&self) -> usize {
        (self.total_len as usize).saturating_sub(self.bytes.len())
    }
}

/// The result of one decoding step.
enum Step {
    Record(WalRecord),
    Again,
    NeedBytes,
}

/// Assembles records from pieces of WAL.
#[derive(Clone, Debug)]
pub struct WalStreamDecoder {
    pub(super) version: PgVersion,
    pub(super) segment_size: u32,
    pub(super) system_identifier: Option<u64>,
    pub(super) input: Input,
    pub(super) state: State,
    /// Start of the last record.
    pub(super) previous: Option<Lsn>,
    /// End of the last record, or where decoding started.
    pub(super) decoded: Lsn,
    /// Timeline of the newest page.
    pub(super) timeline: Option<u32>,
    /// Start of a record that a crash cut short; the next record must confirm this.
    pub(super) cut_short: Option<Lsn>,
    pub(super) failed: Option<WalError>,
}

impl WalStreamDecoder {
    /// Creates a decoder that expects the byte at `config.feed_from` first.
    pub fn new(config: &WalStreamConfig) -> Result<Self, WalError> {
        let WalStreamConfig { version, segment_size, system_identifier, feed_from, start } = *config;
        let (lsn, previous, state) = match start {
            WalStart::Record { lsn, previous } => (lsn, previous, State::Skip { to: lsn }),
            WalStart::FirstFrom(lsn) => (lsn, None, State::FindFirst),
        };
        let misuse = |what| Err(WalError::Misuse { lsn, what });
        if !is_valid_segment_size(segment_size) {
            return misuse(Misuse::SegmentSize(segment_size));
        }
        let within_header =
            (1..WalPageHeader::size_at(lsn.page_start(), segment_size) as u64).contains(&lsn.page_offset());
        let between_pages = matches!(start, WalStart::FirstFrom(_)) && (lsn.page_offset() != 0 || feed_from != lsn);
        if !lsn.is_aligned() || within_header || between_pages || lsn.0 > Lsn::MAX.0 / 2 {
            return misuse(Misuse::Start);
        }
        if feed_from > lsn {
            return misuse(Misuse::FeedBehindStart(feed_from));
        }
        Ok(Self {
            version,
            segment_size,
            system_identifier,
            input: Input::new(feed_from),
            state,
            previous,
            decoded: lsn,
            timeline: None,
            cut_short: None,
            failed: None,
        })
    }

    /// Adds the bytes at [`feed_lsn`](Self::feed_lsn).
    pub fn feed(&mut self, bytes: Bytes) {
        self.input.push(bytes);
    }

    /// Adds bytes that start at `lsn`, which must equal [`feed_lsn`](Self::feed_lsn).
    pub fn feed_at(&mut self, lsn: Lsn, bytes: Bytes) -> Result<(), WalError> {
        let expected = self.feed_lsn();
        if lsn != expected {
            return Err(WalError::Misuse { lsn, what: Misuse::Gap { expected } });
        }
        self.feed(bytes);
        Ok(())
    }

    /// LSN of the next byte to feed.
    pub fn feed_lsn(&self) -> Lsn {
        self.input.end()
    }

    /// End of the last record returned, or where decoding started: decoding can be restarted from here.
    pub fn decoded_lsn(&self) -> Lsn {
        self.decoded
    }

    /// Start of the last record returned, or the one known at the start.
    pub fn previous_record(&self) -> Option<Lsn> {
        self.previous
    }

    /// Timeline of the newest page seen.
    pub fn timeline(&self) -> Option<u32> {
        self.timeline
    }

    /// The next record; `None` if more bytes are needed.
    ///
    /// After an error every call returns the same error: nothing after it can be trusted.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<WalRecord>, WalError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        loop {
            match self.step() {
                Ok(Step::Record(record)) => return Ok(Some(record)),
                Ok(Step::Again) => {}
                Ok(Step::NeedBytes) => return Ok(None),
                Err(error) => {
                    self.failed = Some(error.clone());
                    return Err(error);
                }
            }
        }
    }

    fn step(&mut self) -> Result<Step, WalError> {
        let at = self.input.lsn();
        match self.state {
            State::Skip { to } | State::SkipSegment { to } if at >= to => {
                self.state = State::Between;
                Ok(Step::Again)
            }
            State::SkipSegment { to } => Ok(self.skip(to)),
            _ if at.page_offset() == 0 => self.page_header(at),
            State::Skip { to } => Ok(self.skip(to.min(page_end(at)))),
            State::SkipRest { left } => Ok(self.skip_rest(at, left)),
            // `FindFirst` occurs only at page boundaries, which are handled above.
            State::FindFirst | State::Between => self.begin_record(at),
            State::Partial(_) => self.continue_record(at),
        }
    }

    fn skip(&mut self, to: Lsn) -> Step {
        self.input.skip_to(to);
        if self.input.lsn() >= to { Step::Again } else { Step::NeedBytes }
    }

    fn skip_rest(&mut self, at: Lsn, left: u32) -> Step {
        let here = u64::from(left).min(at.remaining_in_page());
        self.input.skip_to(Lsn(at.0 + here));
        let skipped = (self.input.lsn().0 - at.0) as u32;
        self.state = State::SkipRest { left: left - skipped };
        if left == skipped {
            self.state = State::Skip { to: self.input.lsn().align() };
        }
        if skipped == 0 && left != 0 { Step::NeedBytes } else { Step::Again }
    }

    /// Checks the header of the page at `at` and moves past it, if it is complete.
    fn page_header(&mut self, at: Lsn) -> Result<Step, WalError> {
        let size = WalPageHeader::size_at(at, self.segment_size);
        // Always room for a long header: if a short one has the flag of a long one, `check` must detect that.
        let mut bytes = [0; LONG_HEADER_SIZE];
        if !bytes.get_mut(..size).is_some_and(|bytes| self.input.peek(bytes)) {
            return Ok(Step::NeedBytes);
        }
        let context = WalPageContext {
            version: self.version,
            segment_size: self.segment_size,
            system_identifier: self.system_identifier,
            timeline: self.timeline,
        };
        let header = WalPageHeader::decode(&bytes).map_err(Into::into);
        let header = header.and_then(|header| header.check(at, &context).map(|()| header));
        let header = header.map_err(|error| self.page_error(at, error))?;
        let behind = Lsn(at.0 + size as u64);
        self.follow_page(at, behind, &header)?;
        self.timeline = Some(header.timeline);
        self.input.skip_to(behind);
        Ok(Step::Again)
    }

    /// Updates the state at the beginning of a page.
    fn follow_page(&mut self, at: Lsn, behind: Lsn, header: &WalPageHeader) -> Result<(), WalError> {
        let at_record = match self.state {
            State::Skip { to } => to <= behind,
            State::Between => true,
            _ => false,
        };
        if at_record && header.begins_with_rest() {
            return Err(self.end(at, EndReason::UnexpectedRest));
        }
        let left = match &self.state {
            State::Partial(partial) => partial.missing() as u32,
            State::SkipRest { left } => *left,
            State::FindFirst if header.begins_with_rest() => header.remaining_len,
            State::FindFirst => {
                self.state = State::Between;
                return Ok(());
            }
            _ => return Ok(()),
        };
        if header.overwrites_contrecord() {
            if let State::Partial(partial) = &self.state {
                self.cut_short = Some(partial.start);
            }
            self.state = State::Between;
        } else if !header.begins_with_rest() {
            return Err(self.end(at, EndReason::MissingRest));
        } else if header.remaining_len != left || left == 0 {
            return Err(self.end(at, EndReason::RestLength { found: header.remaining_len, expected: left }));
        } else if matches!(self.state, State::FindFirst) {
            self.state = State::SkipRest { left };
        }
        Ok(())
    }

    /// Begins a record at its first byte, after any page header.
    fn begin_record(&mut self, at: Lsn) -> Result<Step, WalError> {
        let mut len = [0; 4];
        if !self.input.peek(&mut len) {
            return Ok(Step::NeedBytes);
        }
        let total_len = u32::from_le_bytes(len);
        self.check_len(at, total_len)?;
        let in_page = at.remaining_in_page() as usize;
        let mut header = [0; HEADER_SIZE];
        let header_checked = in_page >= HEADER_SIZE;
        if header_checked {
            if !self.input.peek(&mut header) {
                return Ok(Step::NeedBytes);
            }
            self.check_header(at, &header)?;
        }
        if total_len as usize <= in_page {
            return match self.input.take(total_len as usize) {
                Some(bytes) => self.finish_record(at, bytes).map(Step::Record),
                None => Ok(Step::NeedBytes),
            };
        }
        let bytes = Vec::with_capacity((total_len as usize).min(MAX_RESERVED));
        self.state = State::Partial(Partial { start: at, total_len, bytes, header_checked });
        Ok(Step::Again)
    }

    /// Continues a record that crosses pages, not at a page boundary.
    fn continue_record(&mut self, at: Lsn) -> Result<Step, WalError> {
        let State::Partial(partial) = &mut self.state else { return Ok(Step::Again) };
        let here = partial.missing().min(at.remaining_in_page() as usize);
        let taken = self.input.take_into(&mut partial.bytes, here);
        let (start, complete) = (partial.start, partial.missing() == 0);
        if !partial.header_checked
            && let Some(header) = partial.bytes.first_chunk::<HEADER_SIZE>().copied()
        {
            partial.header_checked = true;
            self.check_header(start, &header)?;
        }
        if !complete {
            return Ok(if taken == 0 { Step::NeedBytes } else { Step::Again });
        }
        let State::Partial(partial) = std::mem::replace(&mut self.state, State::Between) else {
            return Ok(Step::Again);
        };
        self.finish_record(start, partial.bytes.into()).map(Step::Record)
    }

    fn check_len(&self, start: Lsn, total_len: u32) -> Result<(), WalError> {
        match total_len {
            0 => Err(self.end(start, EndReason::ZeroLength)),
            len if (len as usize) < HEADER_SIZE || len > MAX_RECORD_LEN => Err(self.end(start, EndReason::Length(len))),
            _ => Ok(()),
        }
    }

    fn check_header(&self, start: Lsn, bytes: &[u8; HEADER_SIZE]) -> Result<(), WalError> {
        let header =
            RecordHeader::parse(self.version, bytes).map_err(|error| self.end(start, EndReason::Header(error)))?;
        let found = Lsn(header.prev);
        let linked = match self.previous {
            Some(previous) => found == previous,
            None => found < start,
        };
        let expected = self.previous;
        if linked { Ok(()) } else { Err(self.end(start, EndReason::BadPrevious { found, expected })) }
    }

    /// Finishes the record from `start`; the input is positioned after its last byte.
    fn finish_record(&mut self, start: Lsn, bytes: Bytes) -> Result<WalRecord, WalError> {
        if !check_crc(&bytes) {
            return Err(self.end(start, EndReason::BadCrc));
        }
        self.check_overwrite(start, &bytes)?;
        let end = self.input.lsn().align();
        let is_switch = RecordHeader::parse(self.version, &bytes).is_ok_and(|header| header.is_switch());
        let end = if is_switch { Lsn(end.0.next_multiple_of(self.segment_size.into())) } else { end };
        self.state = if is_switch { State::SkipSegment { to: end } } else { State::Skip { to: end } };
        self.previous = Some(start);
        self.decoded = end;
        Ok(WalRecord { start, end, bytes })
    }

    /// After a record was cut short, the next one must say so.
    fn check_overwrite(&mut self, start: Lsn, bytes: &Bytes) -> Result<(), WalError> {
        let Some(expected) = self.cut_short.take() else { return Ok(()) };
        let overwritten =
            decode(self.version, bytes).ok().filter(|rec| rec.header.rmid == 0).and_then(|rec| {
                match parse(self.version, rec.header.info, rec.main_data) {
                    Ok(XlogRecord::OverwriteContrecord(overwrite)) => Some(overwrite.overwritten_lsn),
                    _ => None,
                }
            });
        if overwritten == Some(expected) {
            return Ok(());
        }
        Err(self.end(start, EndReason::Overwrite { expected, found: overwritten }))
    }

    fn page_error(&self, at: Lsn, error: postgres_formats::wal_page::WalPageError) -> WalError {
        WalError::of_page(self.decoded, self.place(at), error)
    }

    fn end(&self, at: Lsn, reason: EndReason) -> WalError {
        WalError::EndOfWal { lsn: self.decoded, at: self.place(at), reason }
    }

    fn place(&self, lsn: Lsn) -> WalPosition {
        WalPosition { timeline: self.timeline.unwrap_or_default(), lsn, segment_size: self.segment_size }
    }
}

pub(super) fn page_end(lsn: Lsn) -> Lsn {
    Lsn(lsn.page_start().0 + WAL_PAGE_SIZE as u64)
}
