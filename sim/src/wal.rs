//! WAL as Postgres writes it: records with their headers and checksums, on pages with headers, from some LSN on.

use bytes::Bytes;
use postgres_formats::BLCKSZ;
use postgres_formats::record::{RecordHeader, RelFile};
use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;
use postgres_formats::wal_page::{FIRST_IS_CONTRECORD, FIRST_IS_OVERWRITE_CONTRECORD, LongHeader, WalPageHeader};
use postgres_formats::xlog::op;
use utils::lsn::Lsn;

/// Who writes it: the version that the server's side of `pq_proto` says it is.
pub const VERSION: PgVersion = PgVersion::V14;
/// Size of a segment in bytes, the least that Postgres permits.
pub const SEGMENT: u32 = 1 << 20;
/// Identifies the cluster.
pub const SYSTEM: u64 = 4711;

const PAGE: u64 = BLCKSZ as u64;
/// Bits of a block's reference (`xlogrecord.h`), and of its image as of version 14.
const HAS_IMAGE: u8 = 0x10;
const HAS_DATA: u8 = 0x20;
const WILL_INIT: u8 = 0x40;
const IMAGE_HAS_HOLE: u8 = 0x01;
const IMAGE_APPLIES: u8 = 0x04;
/// Introduces main data of any length.
const LONG_MAIN_DATA: u8 = 254;

/// A page that a record has to do with.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Of which relation.
    pub rel: RelFile,
    /// Its number.
    pub number: u32,
    /// It begins anew.
    pub init: bool,
    /// All of it, as it was before its LSN was set.
    pub image: Option<Box<[u8; BLCKSZ]>>,
    /// What happens to it.
    pub data: Vec<u8>,
}

/// What a record says.
#[derive(Clone, Debug)]
pub struct Content {
    /// Whose it is,
    pub rmgr: RmgrId,
    /// and what of theirs.
    pub info: u8,
    /// The transaction, if it has to do with one.
    pub xid: u32,
    /// At most one page.
    pub block: Option<Block>,
    /// The rest.
    pub main: Vec<u8>,
}

impl Content {
    /// A record with nothing but this.
    pub fn new(rmgr: RmgrId, info: u8, main: Vec<u8>) -> Self {
        Self { rmgr, info, xid: 0, block: None, main }
    }

    fn encode(&self, prev: u64) -> Vec<u8> {
        let (mut head, mut data) = (Vec::new(), Vec::new());
        if let Some(block) = &self.block {
            block.encode(&mut head, &mut data);
        }
        if !self.main.is_empty() {
            head.push(LONG_MAIN_DATA);
            head.extend((self.main.len() as u32).to_le_bytes());
        }
        let body = [head, data, self.main.clone()].concat();
        let total_len = (24 + body.len()) as u32;
        let header = RecordHeader { total_len, xid: self.xid, prev, info: self.info, rmid: self.rmgr.0, crc: 0 };
        header.with_body(&body)
    }
}

impl Block {
    fn encode(&self, head: &mut Vec<u8>, data: &mut Vec<u8>) {
        let bit = |is: bool, bit: u8| if is { bit } else { 0 };
        let (has_image, has_data) = (self.image.is_some(), !self.data.is_empty());
        head.extend([0, bit(has_image, HAS_IMAGE) | bit(has_data, HAS_DATA) | bit(self.init, WILL_INIT)]);
        head.extend((self.data.len() as u16).to_le_bytes());
        if let Some(page) = &self.image {
            let at = |offset: usize| u16::from_le_bytes([page[offset], page[offset + 1]]);
            // Between line pointers and tuples.
            let (lower, upper) = (at(12), at(14));
            let has_hole = (24..upper).contains(&lower);
            let (lower, upper) = if has_hole { (lower, upper) } else { (0, 0) };
            head.extend((BLCKSZ as u16 - (upper - lower)).to_le_bytes());
            head.extend(lower.to_le_bytes());
            head.push(IMAGE_APPLIES | bit(has_hole, IMAGE_HAS_HOLE));
            data.extend(&page[..usize::from(lower)]);
            data.extend(&page[usize::from(upper)..]);
        }
        for word in [self.rel.spc, self.rel.db, self.rel.rel, self.number] {
            head.extend(word.to_le_bytes());
        }
        data.extend(&self.data);
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Log {
    base: u64,
    bytes: Vec<u8>,
    /// Start of the last record.
    previous: u64,
    timeline: u32,
}

impl Log {
    /// A log whose first record is to be at `from`; the one before is at `previous`.
    pub fn new(from: Lsn, previous: Lsn, timeline: u32) -> Self {
        let mut log = Self { base: from.page_start().0, bytes: Vec::new(), previous: previous.0, timeline };
        if from.0 > log.base {
            log.page_header(0, 0);
            log.bytes.resize((from.0 - log.base) as usize, 0);
        }
        log
    }

    /// The same up to `lsn`, where the record ends that begins at `previous`.
    pub fn up_to(&self, lsn: Lsn, previous: Lsn, timeline: u32) -> Self {
        let bytes = self.bytes[..(lsn.0 - self.base) as usize].to_vec();
        Self { bytes, previous: previous.0, timeline, ..*self }
    }

    /// From here on it is written on a new timeline of Postgres. Pages that have begun stay those of the old one.
    pub fn set_timeline(&mut self, timeline: u32) {
        self.timeline = timeline;
    }

    /// The timeline of Postgres that is being written.
    pub fn timeline(&self) -> u32 {
        self.timeline
    }

    /// Its end: the next record begins here, or behind the header of the page that begins here.
    pub fn end(&self) -> Lsn {
        Lsn(self.at())
    }

    /// Adds a record. Returns its start and its end.
    pub fn append(&mut self, content: &Content) -> (Lsn, Lsn) {
        let start = self.start_record();
        let bytes = content.encode(self.previous);
        self.put(&bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        self.previous = start;
        (Lsn(start), self.end())
    }

    /// As [`Log::append`], of a record after which the rest of the segment is unused.
    pub fn switch_segment(&mut self) -> (Lsn, Lsn) {
        let (start, _) = self.append(&Content::new(RmgrId::XLOG, op::SWITCH, Vec::new()));
        let rest = u64::from(SEGMENT) - self.at() % u64::from(SEGMENT);
        if rest < u64::from(SEGMENT) {
            self.bytes.resize(self.bytes.len() + rest as usize, 0);
        }
        (start, self.end())
    }

    /// Writes the first page's part of a record that is longer: a crash has come in between. Returns its start. The
    /// next record has to say that it was lost.
    pub fn tear(&mut self, content: &Content) -> Lsn {
        let start = self.start_record();
        let bytes = content.encode(self.previous);
        let here = (PAGE - self.at() % PAGE) as usize;
        assert!(bytes.len() > here, "a record within a page is whole or not there");
        self.bytes.extend(&bytes[..here]);
        self.page_header(FIRST_IS_OVERWRITE_CONTRECORD, 0);
        Lsn(start)
    }

    /// Up to `most` bytes from `lsn` on, but none from `to` on.
    pub fn read(&self, lsn: Lsn, to: Lsn, most: usize) -> Bytes {
        let end = to.0.min(self.at());
        let (from, to) = (lsn.0.max(self.base).min(end) - self.base, end - self.base);
        let (from, to) = (from as usize, to as usize);
        Bytes::copy_from_slice(&self.bytes[from..to.min(from + most)])
    }

    fn at(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    fn page_header(&mut self, info: u16, remaining_len: u32) {
        let is_first = self.at().is_multiple_of(SEGMENT.into());
        let long = is_first.then_some(LongHeader {
            system_identifier: SYSTEM,
            segment_size: SEGMENT,
            page_size: BLCKSZ as u32,
        });
        let (timeline, address) = (self.timeline, Lsn(self.at()));
        let header = WalPageHeader { magic: VERSION.wal_magic(), info, timeline, address, remaining_len, long };
        self.bytes.extend(header.encode());
    }

    fn start_record(&mut self) -> u64 {
        if self.at().is_multiple_of(PAGE) {
            self.page_header(0, 0);
        }
        self.at()
    }

    fn put(&mut self, bytes: &[u8]) {
        let mut left = bytes;
        while !left.is_empty() {
            if self.at().is_multiple_of(PAGE) {
                self.page_header(FIRST_IS_CONTRECORD, left.len() as u32);
            }
            let here = left.len().min((PAGE - self.at() % PAGE) as usize);
            self.bytes.extend(&left[..here]);
            left = &left[here..];
        }
    }
}
