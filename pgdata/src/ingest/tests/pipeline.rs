//! The pipeline: what is fed in pieces arrives in the store, and each stage reports a premature end.

use postgres_formats::record::{RecordHeader, record_crc};
use postgres_formats::wal_page::{LongHeader, WalPageHeader};
use wal_decoder::stream::{WalStart, WalStreamConfig, WalStreamDecoder};

use super::super::pipeline::{IntakeError, Progress, WalIntake};
use super::*;

const SEGMENT: u32 = 16 << 20;

/// The first page of a segment with these records. Also returns the records' ends.
fn page_of(records: &[Vec<u8>]) -> (Vec<u8>, Vec<Lsn>) {
    let long = Some(LongHeader { system_identifier: 7, segment_size: SEGMENT, page_size: 8192 });
    let magic = PgVersion::V15.wal_magic();
    let mut page = WalPageHeader { magic, info: 0, timeline: 1, address: START, remaining_len: 0, long }.encode();
    let (mut ends, mut prev) = (Vec::new(), 0);
    for record in records {
        let mut record = record.clone();
        let header = RecordHeader { prev, ..RecordHeader::parse(PgVersion::V15, &record).unwrap() };
        record[..24].copy_from_slice(&header.encode());
        let header = RecordHeader { crc: record_crc(&record).unwrap(), ..header };
        record[..24].copy_from_slice(&header.encode());
        prev = START.0 + page.len() as u64;
        page.extend_from_slice(&record);
        page.resize(page.len().next_multiple_of(8), 0);
        ends.push(START + page.len() as u64);
    }
    (page, ends)
}

/// Feeds `bytes` in pieces of `piece` bytes until the intake takes no more, and finishes it.
async fn take_in(bytes: &[u8], piece: usize) -> (MemoryStore, Progress, Result<(), IntakeError>) {
    let Cluster { store, ingest, .. } = Cluster::new().await;
    let decoder = WalStreamDecoder::new(&WalStreamConfig {
        version: PgVersion::V15,
        segment_size: SEGMENT,
        system_identifier: Some(7),
        feed_from: START,
        start: WalStart::Record { lsn: START, previous: None },
    });
    let intake = WalIntake::start(decoder.unwrap(), ingest);
    let mut at = START;
    for piece in bytes.chunks(piece) {
        if !intake.feed(at, Bytes::copy_from_slice(piece)).await {
            break;
        }
        at += piece.len() as u64;
    }
    let (progress, ended) = intake.finish().await;
    (store, progress, ended)
}

fn inserts(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|blkno| block_record(RmgrId::BTREE, REL, 0, blkno / 3, blkno % 3 == 0, blkno as u8)).collect()
}

#[tokio::test]
async fn what_is_fed_arrives() {
    let (bytes, ends) = page_of(&inserts(60));
    for piece in [1, 100, 8192] {
        let (store, progress, ended) = take_in(&bytes, piece).await;
        ended.unwrap();
        let last = *ends.last().unwrap();
        assert_eq!((progress, store.last()), (Progress { records: 60, last_record: last }, last));
        assert_eq!(Listing::new(&store, last).rel_size(tag(REL, 0)).await.unwrap(), Some(20));
    }
}

#[tokio::test]
async fn the_end_of_wal_is_an_error_of_decoding_with_all_records_before_it_in_the_store() {
    let (mut bytes, ends) = page_of(&inserts(10));
    bytes.resize(8192, 0);
    let (store, progress, ended) = take_in(&bytes, 700).await;
    assert!(matches!(ended, Err(IntakeError::Wal(_))), "{ended:?}");
    assert_eq!((progress.records, store.last()), (10, ends[9]));
}

#[tokio::test]
async fn a_record_that_is_not_understood_is_named() {
    let mut records = inserts(10);
    records.push(main_record(RmgrId::SMGR, 0x10, &[1, 2, 3]));
    records.extend(inserts(1));
    let (bytes, ends) = page_of(&records);
    let (store, progress, ended) = take_in(&bytes, 8192).await;
    assert!(matches!(ended, Err(IntakeError::Ingest { lsn, .. }) if lsn == ends[9]), "{ended:?}");
    assert_eq!((progress.records, store.last()), (0, START));
}
