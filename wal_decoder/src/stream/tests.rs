//! Streams made by a small WAL writer: whole, in pieces, damaged at known and at random positions.

use postgres_formats::{
    record::record_crc,
    wal_page::{FIRST_IS_CONTRECORD, FIRST_IS_OVERWRITE_CONTRECORD, LongHeader, WalPageError},
};
use proptest::prelude::*;

use super::super::batch::{RecordBatch, RecordRef};
use super::*;

const SEGMENT: u32 = 1 << 20;
const VERSION: PgVersion = PgVersion::V16;
const SYSTEM: u64 = 4711;

/// Writes WAL, starting at the beginning of a segment.
struct Writer {
    base: u64,
    bytes: Vec<u8>,
    previous: u64,
    timeline: u32,
    records: Vec<WalRecord>,
}

impl Writer {
    fn new() -> Self {
        let base = 5 * u64::from(SEGMENT);
        Self { base, bytes: vec![], previous: base - 8, timeline: 1, records: vec![] }
    }

    fn at(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    fn page_header(&mut self, info: u16, remaining_len: u32) {
        let first = self.at().is_multiple_of(SEGMENT.into());
        let long = first.then_some(LongHeader { system_identifier: SYSTEM, segment_size: SEGMENT, page_size: 8192 });
        let (timeline, address) = (self.timeline, Lsn(self.at()));
        let header = WalPageHeader { magic: VERSION.wal_magic(), info, timeline, address, remaining_len, long };
        self.bytes.extend(header.encode());
    }

    fn start_record(&mut self) -> u64 {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        if self.at().is_multiple_of(8192) {
            self.page_header(0, 0);
        }
        self.at()
    }

    fn record_bytes(&self, rmid: u8, info: u8, main: &[u8]) -> Vec<u8> {
        let fragment = match main.len() {
            0 => vec![],
            len @ 1..=255 => vec![255, len as u8],
            len => [&[254][..], &(len as u32).to_le_bytes()].concat(),
        };
        let total_len = (24 + fragment.len() + main.len()) as u32;
        let mut header = RecordHeader { total_len, xid: 0, prev: self.previous, info, rmid, crc: 0 };
        let mut bytes = [&header.encode()[..], &fragment, main].concat();
        header.crc = record_crc(&bytes).unwrap();
        bytes[..24].copy_from_slice(&header.encode());
        bytes
    }

    fn put(&mut self, bytes: &[u8]) {
        let mut left = bytes;
        while !left.is_empty() {
            if self.at().is_multiple_of(8192) {
                self.page_header(FIRST_IS_CONTRECORD, left.len() as u32);
            }
            let here = left.len().min(8192 - (self.at() % 8192) as usize);
            self.bytes.extend_from_slice(&left[..here]);
            left = &left[here..];
        }
    }

    fn record_of(&mut self, rmid: u8, info: u8, main: &[u8]) {
        let start = self.start_record();
        let bytes = self.record_bytes(rmid, info, main);
        self.put(&bytes);
        let end = Lsn(self.at()).align();
        self.previous = start;
        self.records.push(WalRecord { start: Lsn(start), end, bytes: bytes.into() });
    }

    fn record(&mut self, main_len: usize) {
        let main: Vec<u8> = (0..main_len).map(|i| (i * 7) as u8).collect();
        self.record_of(10, 0, &main);
    }

    fn switch(&mut self) {
        self.record_of(0, 0x40, &[]);
        self.bytes.resize(self.bytes.len().next_multiple_of(SEGMENT as usize), 0);
        let end = Lsn(self.at());
        self.records.last_mut().unwrap().end = end;
    }

    /// Pads the page so that the next record starts `left` bytes before its end.
    fn fill_page_but(&mut self, left: usize) {
        self.start_record();
        let used = self.bytes.len() % 8192;
        self.record(8192 - used - left - 24 - 5);
        assert_eq!(self.at() % 8192, (8192 - left as u64) % 8192);
    }

    fn zeros(mut self) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(8) + 8, 0);
        self
    }
}

fn config(feed_from: u64, start: WalStart) -> WalStreamConfig {
    let (version, segment_size, system_identifier) = (VERSION, SEGMENT, Some(SYSTEM));
    WalStreamConfig { version, segment_size, system_identifier, feed_from: Lsn(feed_from), start }
}

fn decoder(writer: &Writer) -> WalStreamDecoder {
    let first = writer.records[0].start;
    let previous = Some(Lsn(writer.base - 8));
    WalStreamDecoder::new(&config(writer.base, WalStart::Record { lsn: first, previous })).unwrap()
}

/// All complete records, one by one; a batch must yield the same.
fn drain(decoder: &mut WalStreamDecoder) -> (Vec<WalRecord>, Option<WalError>) {
    let (mut other, mut batch) = (decoder.clone(), RecordBatch::default());
    let batch_error = other.take_records(&mut batch).err();
    let mut records = vec![];
    let error = loop {
        match decoder.next() {
            Ok(Some(record)) => records.push(record),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let one_by_one: Vec<_> =
        records.iter().map(|r| RecordRef { start: r.start, end: r.end, bytes: &r.bytes }).collect();
    assert_eq!((batch.iter().collect::<Vec<_>>(), batch_error), (one_by_one, error.clone()));
    let standing = |d: &WalStreamDecoder| (d.decoded_lsn(), d.previous_record(), d.feed_lsn(), d.timeline());
    assert_eq!((batch.len(), standing(&other)), (records.len(), standing(decoder)));
    (records, error)
}

fn decode_all(writer: &Writer) -> (Vec<WalRecord>, Option<WalError>) {
    let mut decoder = decoder(writer);
    decoder.feed(Bytes::copy_from_slice(&writer.bytes));
    drain(&mut decoder)
}

fn reason_of(writer: &Writer) -> (usize, EndReason) {
    let (records, error) = decode_all(writer);
    match error {
        Some(WalError::EndOfWal { lsn, reason, .. }) => {
            let end = records.last().map_or(writer.records[0].start, |record| record.end);
            assert_eq!(lsn, end);
            (records.len(), reason)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn records_across_pages_and_segments() {
    let mut writer = Writer::new();
    for len in [0, 1, 255, 256, 10_000, 8140, 70_000, 3, 2_500_000, 17] {
        writer.record(len);
    }
    let (records, error) = decode_all(&writer);
    assert_eq!((error, records), (None, writer.records));
}

#[test]
fn a_record_at_a_page_boundary_ends_there_and_the_next_starts_behind_the_header() {
    let mut writer = Writer::new();
    writer.fill_page_but(0);
    writer.record(5);
    let (records, error) = decode_all(&writer);
    assert_eq!(error, None);
    assert_eq!((records[0].end.0, records[1].start.0), (writer.base + 8192, writer.base + 8192 + 24));
    // Decoding can start from either.
    for lsn in [records[0].end, records[1].start] {
        let start = WalStart::Record { lsn, previous: Some(records[0].start) };
        let mut decoder = WalStreamDecoder::new(&config(writer.base + 8192, start)).unwrap();
        decoder.feed(Bytes::copy_from_slice(&writer.bytes[8192..]));
        assert_eq!(drain(&mut decoder), (vec![records[1].clone()], None));
    }
}

#[test]
fn headers_may_be_split_by_a_page_boundary() {
    for left in [8, 16] {
        let mut writer = Writer::new();
        writer.fill_page_but(left);
        writer.record(50);
        assert_eq!(decode_all(&writer), (writer.records.clone(), None));
        let at = writer.bytes.len() - 52;
        writer.bytes[at - 16 + left - 8] ^= 1;
        let (_, error) = decode_all(&writer);
        assert!(matches!(error, Some(WalError::EndOfWal { .. })), "{error:?}");
    }
}

#[test]
fn a_switch_ends_with_its_segment() {
    let mut writer = Writer::new();
    writer.record(100);
    writer.switch();
    writer.record(9);
    writer.fill_page_but(8);
    writer.switch();
    writer.record(10);
    let (records, error) = decode_all(&writer);
    assert_eq!((error, &records), (None, &writer.records));
    assert_eq!(records[1].end.0, writer.base + u64::from(SEGMENT));
    assert_eq!(records[2].start.0, writer.base + u64::from(SEGMENT) + 40);
}

#[test]
fn slices_within_pages_copies_across_them() {
    let mut writer = Writer::new();
    writer.record(100);
    writer.record(9000);
    let bytes = Bytes::copy_from_slice(&writer.bytes);
    let mut decoder = decoder(&writer);
    decoder.feed(bytes.clone());
    let (records, _) = drain(&mut decoder);
    let within = |record: &WalRecord| bytes.as_ptr_range().contains(&record.bytes.as_ptr());
    assert!(within(&records[0]));
    assert!(!within(&records[1]));
}

#[test]
fn a_record_cut_short_by_a_crash_is_dropped() {
    let lost_and_overwritten = |told: u64| {
        let mut writer = Writer::new();
        writer.record(100);
        let lost = writer.start_record();
        let bytes = writer.record_bytes(10, 0, &[1; 20_000]);
        writer.put(&bytes);
        let next_page = (lost / 8192 + 2) * 8192;
        writer.bytes.truncate((next_page - writer.base) as usize);
        writer.page_header(FIRST_IS_OVERWRITE_CONTRECORD, 0);
        writer.record_of(0, 0xD0, &[&(lost + told).to_le_bytes()[..], &[0; 8]].concat());
        writer.record(4);
        (writer, Lsn(lost))
    };
    let (writer, _) = lost_and_overwritten(0);
    assert_eq!(decode_all(&writer), (writer.records.clone(), None));
    let (writer, expected) = lost_and_overwritten(8);
    let found = Some(Lsn(expected.0 + 8));
    assert_eq!(reason_of(&writer), (1, EndReason::Overwrite { expected, found }));
}

#[test]
fn the_ends_of_wal_are_told_apart() {
    let mut writer = Writer::new();
    writer.record(100);
    writer.record(200);
    assert_eq!(
        reason_of(&Writer { bytes: writer.bytes.clone(), records: writer.records.clone(), ..writer }.zeros()),
        (2, EndReason::ZeroLength)
    );

    let two = || {
        let mut writer = Writer::new();
        writer.record(100);
        writer.fill_page_but(0);
        writer.record(300);
        writer
    };
    let with = |change: fn(&mut [u8])| {
        let mut writer = two();
        change(&mut writer.bytes);
        reason_of(&writer)
    };
    assert_eq!(with(|b| b[8192..8232].fill(0)), (2, EndReason::ZeroPage));
    assert!(matches!(with(|b| b[8192 + 8] ^= 0x10), (2, EndReason::StalePage(WalPageError::Address { .. }))));
    assert!(matches!(with(|b| b[8192 + 4] = 0), (2, EndReason::StalePage(WalPageError::Timeline { .. }))));
    assert_eq!(with(|b| b[8192 + 3] = 1), (2, EndReason::Page(WalPageError::Info(0x100))));
    assert_eq!(with(|b| b[8192 + 2] = 2), (2, EndReason::Page(WalPageError::Info(2))));
    assert_eq!(with(|b| b[8192 + 2] = 1), (2, EndReason::UnexpectedRest));
    assert_eq!(with(|b| b[8192 + 24] = 5), (2, EndReason::BadCrc));
    assert_eq!(with(|b| b[8192 + 24..8192 + 26].copy_from_slice(&[23, 0])), (2, EndReason::Length(23)));
    assert!(matches!(with(|b| b[8192 + 24 + 8] ^= 8), (2, EndReason::BadPrevious { .. })));
    assert_eq!(with(|b| b[8192 + 24 + 20] ^= 8), (2, EndReason::BadCrc));
    assert_eq!(with(|b| b[8192 + 24 + 100] ^= 8), (2, EndReason::BadCrc));
    assert!(matches!(with(|b| b[8192 + 24 + 17] = 50), (2, EndReason::Header(_))));
    assert_eq!(with(|b| b[8192 + 27] = 0x40), (2, EndReason::Length(0x4000_0000 + 329)));
}

#[test]
fn continuations_must_fit() {
    let with = |change: fn(&mut [u8])| {
        let mut writer = Writer::new();
        writer.record(100);
        writer.record(10_000);
        change(&mut writer.bytes);
        reason_of(&writer)
    };
    assert_eq!(with(|b| b[8192 + 2] = 0), (1, EndReason::MissingRest));
    assert!(matches!(with(|b| b[8192 + 16] ^= 1), (1, EndReason::RestLength { .. })));
    assert_eq!(with(|b| b[9000] ^= 1), (1, EndReason::BadCrc));
    assert!(matches!(with(|b| b[8192 + 2] = 8), (1, EndReason::Length(_) | EndReason::Header(_))));
}

#[test]
fn other_clusters_wal_is_no_end() {
    for (at, value) in [(0, 1), (24, 1), (32, 1), (36, 1)] {
        let mut writer = Writer::new();
        writer.record(100);
        writer.bytes[at] ^= value;
        let (records, error) = decode_all(&writer);
        assert!(records.is_empty() && matches!(error, Some(WalError::Foreign { .. })), "{at}: {error:?}");
        assert_eq!(error.unwrap().place().unwrap().to_string(), "000000000000000000000005, offset 0");
    }
}

#[test]
fn misuse_is_refused() {
    let base = 5 * u64::from(SEGMENT);
    let at = |lsn: u64| WalStart::Record { lsn: Lsn(lsn), previous: None };
    for (feed_from, start) in [
        (base, at(base + 8)),
        (base, at(base + 8192 + 16)),
        (base, at(base + 100)),
        (base + 8192, at(base + 4096)),
        (base, WalStart::FirstFrom(Lsn(base + 4096))),
        (base, WalStart::FirstFrom(Lsn(base + 8192))),
        (base, at(u64::MAX - 7)),
    ] {
        let error = WalStreamDecoder::new(&config(feed_from, start)).unwrap_err();
        assert!(matches!(error, WalError::Misuse { .. }), "{start:?}: {error}");
    }
    let bad_segment = WalStreamConfig { segment_size: 3 << 20, ..config(base, at(base)) };
    assert!(WalStreamDecoder::new(&bad_segment).is_err());
    let mut decoder = WalStreamDecoder::new(&config(base, at(base))).unwrap();
    decoder.feed_at(Lsn(base), Bytes::from_static(&[0; 10])).unwrap();
    let gap = decoder.feed_at(Lsn(base + 11), Bytes::from_static(&[0; 10])).unwrap_err();
    assert_eq!(gap, WalError::Misuse { lsn: Lsn(base + 11), what: Misuse::Gap { expected: Lsn(base + 10) } });
}

#[test]
fn an_error_stays() {
    let mut writer = Writer::new();
    writer.record(10);
    let writer = writer.zeros();
    let mut decoder = decoder(&writer);
    decoder.feed(Bytes::copy_from_slice(&writer.bytes));
    let (_, error) = drain(&mut decoder);
    decoder.feed(Bytes::from_static(&[1; 100]));
    assert_eq!(decoder.next().unwrap_err(), error.unwrap());
}

fn lengths() -> impl Strategy<Value = Vec<usize>> {
    let len = prop_oneof![6 => 0..300usize, 3 => 300..9000usize, 1 => 9000..60_000usize];
    proptest::collection::vec(len, 1..40)
}

fn written(lengths: &[usize], switch_at: Option<usize>) -> Writer {
    let mut writer = Writer::new();
    for (at, len) in lengths.iter().enumerate() {
        writer.record(*len);
        if switch_at == Some(at) {
            writer.switch();
        }
    }
    writer
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn pieces_of_any_size_from_any_record(lengths in lengths(), switch_at in proptest::option::of(0..40usize),
                                          sizes in proptest::collection::vec(1..20_000usize, 1..20),
                                          from in any::<proptest::sample::Index>(), page_start in any::<bool>()) {
        let writer = written(&lengths, switch_at);
        let first = from.index(writer.records.len());
        let lsn = writer.records[first].start;
        let feed_from = if page_start { lsn.page_start() } else { lsn };
        let mut decoder =
            WalStreamDecoder::new(&config(feed_from.0, WalStart::Record { lsn, previous: None })).unwrap();
        let mut left = &writer.bytes[(feed_from.0 - writer.base) as usize..];
        let (mut records, mut sizes) = (vec![], sizes.into_iter().cycle());
        while !left.is_empty() {
            let (piece, rest) = left.split_at(sizes.next().unwrap().min(left.len()));
            decoder.feed_at(decoder.feed_lsn(), Bytes::copy_from_slice(piece)).unwrap();
            left = rest;
            let (more, error) = drain(&mut decoder);
            prop_assert_eq!(error, None);
            records.extend(more);
        }
        prop_assert_eq!(&records[..], &writer.records[first..]);
        prop_assert_eq!(decoder.decoded_lsn(), writer.records.last().unwrap().end);
        prop_assert_eq!(decoder.previous_record(), Some(writer.records.last().unwrap().start));
    }

    #[test]
    fn a_search_finds_the_first_record_behind_a_page_boundary(
        lengths in lengths(),
        page in any::<proptest::sample::Index>(),
    ) {
        let writer = written(&lengths, None);
        let page = page.index(writer.bytes.len().div_ceil(8192)) * 8192;
        let lsn = Lsn(writer.base + page as u64);
        let mut decoder = WalStreamDecoder::new(&config(lsn.0, WalStart::FirstFrom(lsn))).unwrap();
        decoder.feed(Bytes::copy_from_slice(&writer.bytes[page..]));
        let want: Vec<_> = writer.records.iter().filter(|record| record.start >= lsn).cloned().collect();
        prop_assert_eq!(drain(&mut decoder), (want, None));
    }

    #[test]
    fn damage_never_panics_nor_changes_a_record(
        lengths in lengths(),
        hits in proptest::collection::vec((any::<u32>(), any::<u8>()), 1..6),
        find in any::<bool>(),
    ) {
        let mut writer = written(&lengths, Some(3));
        for (at, byte) in hits {
            let at = at as usize % writer.bytes.len();
            writer.bytes[at] = byte;
        }
        let mut decoder = decoder(&writer);
        if find {
            let start = WalStart::FirstFrom(Lsn(writer.base));
            decoder = WalStreamDecoder::new(&config(writer.base, start)).unwrap();
        }
        decoder.feed(Bytes::copy_from_slice(&writer.bytes));
        let (records, _) = drain(&mut decoder);
        for (record, want) in records.iter().zip(&writer.records) {
            // The CRC covers everything but the header's padding.
            prop_assert_eq!((record.start, record.end), (want.start, want.end));
            prop_assert_eq!(&record.bytes[20..], &want.bytes[20..]);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), inside in any::<bool>()) {
        let base = 5 * u64::from(SEGMENT);
        let from = if inside { base + 64 } else { base };
        let start = WalStart::Record { lsn: Lsn(from), previous: None };
        let mut decoder = WalStreamDecoder::new(&config(from, start)).unwrap();
        decoder.feed(bytes.into());
        let (records, _) = drain(&mut decoder);
        prop_assert!(records.is_empty());
    }
}
