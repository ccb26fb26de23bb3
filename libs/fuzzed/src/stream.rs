//! Any bytes as WAL, unmodified or with corrected page headers and CRCs: decoding is total, returns the same records
//! however the bytes are split, and only records with valid CRCs at ascending positions.

use bytes::Bytes;
use postgres_formats::{
    record::{check_crc, record_crc},
    version::PgVersion,
    wal_page::{LongHeader, WalPageHeader},
};
use utils::lsn::Lsn;
use wal_decoder::stream::{WalError, WalRecord, WalStart, WalStreamConfig, WalStreamDecoder};

const SEGMENT: u32 = 1 << 20;
const BASE: u64 = 3 * SEGMENT as u64;

pub(crate) fn run(input: &[u8]) {
    let Some((&[kind, piece, version], bytes)) = input.split_first_chunk::<3>() else { return };
    let version = PgVersion::ALL[usize::from(version) % 5];
    let mut bytes = bytes.to_vec();
    let base = base_of(&bytes);
    if kind & 1 != 0 {
        repair_pages(version, base, &mut bytes);
    }
    if kind & 2 != 0 {
        repair_records(base, &mut bytes);
    }
    let start = match kind & 4 {
        0 => WalStart::FirstFrom(Lsn(base)),
        _ => WalStart::Record { lsn: Lsn(base), previous: None },
    };
    let config =
        WalStreamConfig { version, segment_size: SEGMENT, system_identifier: None, feed_from: Lsn(base), start };
    let whole = decode(&config, &bytes, bytes.len().max(1));
    assert_eq!(decode(&config, &bytes, 1 + usize::from(piece)), whole);
    let mut last = Lsn(base);
    for record in &whole.0 {
        assert!(check_crc(&record.bytes) && record.start >= last && record.end > record.start);
        last = record.end;
    }
}

/// Real WAL keeps its position, because its records contain the positions of preceding ones.
fn base_of(bytes: &[u8]) -> u64 {
    let address = bytes.get(8..16).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes));
    if address > 0 && address.is_multiple_of(SEGMENT.into()) && address < 1 << 40 { address } else { BASE }
}

fn decode(config: &WalStreamConfig, bytes: &[u8], piece: usize) -> (Vec<WalRecord>, Option<WalError>) {
    let Ok(mut decoder) = WalStreamDecoder::new(config) else { panic!("the start is at no page boundary") };
    let mut records = vec![];
    for part in bytes.chunks(piece) {
        decoder.feed(Bytes::copy_from_slice(part));
        loop {
            match decoder.next() {
                Ok(Some(record)) => records.push(record),
                Ok(None) => break,
                Err(error) => return (records, Some(error)),
            }
        }
    }
    (records, None)
}

/// Gives every page a valid header; the flags and the length of a continued record are kept.
fn repair_pages(version: PgVersion, base: u64, bytes: &mut [u8]) {
    for (number, page) in bytes.chunks_mut(8192).enumerate() {
        let address = Lsn(base + number as u64 * 8192);
        let Ok(old) = WalPageHeader::decode(&[&page[..], &[0; 40]].concat()) else { continue };
        let long = address.0.is_multiple_of(SEGMENT.into()).then_some(LongHeader {
            system_identifier: 1,
            segment_size: SEGMENT,
            page_size: 8192,
        });
        let header = WalPageHeader {
            magic: version.wal_magic(),
            info: old.info & 0x0D,
            timeline: 1,
            address,
            remaining_len: old.remaining_len & 0xFFFF,
            long,
        };
        page.iter_mut().zip(header.encode()).for_each(|(to, from)| *to = from);
    }
}

/// Gives the records of the first page valid links and CRCs, as far as they lie within it.
fn repair_records(base: u64, bytes: &mut [u8]) {
    let (mut at, mut previous) = (40, 0u64);
    while let Some(len) = bytes.get(at..at + 4).map(|len| u32::from_le_bytes([len[0], len[1], 0, 0]) as usize) {
        let len = 24 + len % 512;
        let Some(record) = bytes.get_mut(at..at + len).filter(|_| at + len <= 8192) else { return };
        record[..4].copy_from_slice(&(len as u32).to_le_bytes());
        record[8..16].copy_from_slice(&previous.to_le_bytes());
        record[17] %= 22;
        let crc = record_crc(record).unwrap_or_default();
        record[20..24].copy_from_slice(&crc.to_le_bytes());
        previous = base + at as u64;
        at = (at + len).next_multiple_of(8);
    }
}
