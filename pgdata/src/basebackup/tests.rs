//! The generated WAL at every kind of position, the archive format, and relations split into files.

use std::collections::BTreeMap;
use std::io::Read;

use bytes::{Bytes, BytesMut};
use postgres_formats::checkpoint::CheckPoint;
use postgres_formats::control_file::{ClusterState, ControlFile};
use postgres_formats::record::{check_crc, decode};
use postgres_formats::version::PgVersion;
use postgres_formats::wal_page::{WalPageContext, WalPageHeader};
use postgres_formats::xlog;
use utils::lsn::Lsn;

use super::server_files::{SparseSegment, wal_segments};
use super::{Sink, gzip::Gzip, tar::Layout, tar::Tar};

const SEGMENT: u32 = 1 << 20;
const SYSTEM: u64 = 0x1234_5678_9ABC_DEF0;

/// Collects the bytes.
#[derive(Default)]
struct Collect(BytesMut);

impl Sink for Collect {
    async fn write(&mut self, bytes: Bytes) -> std::io::Result<()> {
        self.0.extend_from_slice(&bytes);
        Ok(())
    }
}

/// A control file as it may have been at import; all but a few fields are zero.
fn imported(version: PgVersion) -> ControlFile {
    let mut bytes = [0; 8192];
    bytes[..8].copy_from_slice(&SYSTEM.to_le_bytes());
    bytes[8..12].copy_from_slice(&version.control_version().to_le_bytes());
    bytes[12..16].copy_from_slice(&version.catalog_version().to_le_bytes());
    bytes[228..232].copy_from_slice(&SEGMENT.to_le_bytes());
    let crc_at = if version == PgVersion::V18 { 292 } else { 288 };
    let crc = utils::crc32c::crc32c(&bytes[..crc_at]);
    bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    ControlFile::decode(&bytes).unwrap()
}

fn control(version: PgVersion, lsn: Lsn) -> ControlFile {
    let mut control = imported(version);
    control.set_shut_down(lsn, CheckPoint { timeline: 3, previous_timeline: 3, next_xid: 777, ..Default::default() });
    control
}

/// The segments as files.
fn files(segments: Vec<SparseSegment>) -> BTreeMap<String, Vec<u8>> {
    let file = |segment: SparseSegment| {
        let mut bytes = vec![0; SEGMENT as usize];
        for (offset, piece) in segment.pieces {
            bytes[offset as usize..][..piece.len()].copy_from_slice(&piece);
        }
        (segment.name, bytes)
    };
    segments.into_iter().map(file).collect()
}

/// Reads the record at `lsn` as Postgres does: page by page, checking each header.
fn read_record(version: PgVersion, all: &BTreeMap<String, Vec<u8>>, lsn: Lsn) -> Vec<u8> {
    let context = WalPageContext { version, segment_size: SEGMENT, system_identifier: Some(SYSTEM), timeline: Some(3) };
    let (mut record, mut at) = (vec![], lsn);
    while record.len() < 114 {
        let name = postgres_formats::wal_file::segment_file_name(3, at.segment_number(SEGMENT.into()), SEGMENT);
        let file = &all[&name];
        let first = WalPageHeader::decode(file).unwrap();
        first.check(at.segment_start(SEGMENT.into()), &context).unwrap();
        let page = &file[at.page_start().segment_offset(SEGMENT.into()) as usize..][..8192];
        let header = WalPageHeader::decode(page).unwrap();
        header.check(at.page_start(), &context).unwrap();
        if !record.is_empty() {
            assert!(header.begins_with_rest() && header.remaining_len as usize == 114 - record.len());
        }
        let begin = if record.is_empty() { at.page_offset() as usize } else { header.encode().len() };
        let len = (8192 - begin).min(114 - record.len());
        record.extend_from_slice(&page[begin..][..len]);
        at = at.page_start() + 8192;
    }
    record
}

#[test]
fn the_checkpoint_is_found_wherever_it_is() {
    let segment = u64::from(SEGMENT);
    let places = [
        (5 * segment + 40, 1),
        (5 * segment + 8192 + 24, 1),
        (5 * segment + 5000, 1),
        (5 * segment + 100_000, 1),
        (5 * segment + 8192 - 8, 1),
        (5 * segment + 3 * 8192 - 112, 1),
        (6 * segment - 8, 2),
        (6 * segment - 112, 2),
        (6 * segment - 120, 1),
        ((0x7FFF_FFFF << 32) + 40, 1),
    ];
    for version in PgVersion::ALL {
        for (lsn, count) in places {
            let (lsn, control) = (Lsn(lsn), control(version, Lsn(lsn)));
            let prev = Lsn(lsn.0 - 400);
            let segments = files(wal_segments(&control, prev));
            assert_eq!(segments.len(), count, "{lsn}");
            let record = read_record(version, &segments, lsn);
            assert!(check_crc(&record));
            let record = decode(version, &record).unwrap();
            assert_eq!((record.header.rmid, record.header.info, record.header.prev), (0, 0, prev.0));
            let parsed = xlog::parse(version, record.header.info, record.main_data).unwrap();
            assert!(format!("{parsed:?}").contains("777"), "{parsed:?}");
            assert_eq!(CheckPoint::decode(record.main_data).unwrap().redo, lsn);
            assert_eq!(ControlFile::decode(&control.encode()).unwrap().state(), ClusterState::Shutdowned);
        }
    }
}

async fn archive<W: Sink>(sink: &mut W) {
    let mut tar = Tar::new(sink, Layout::DataDirectory);
    tar.dir("base").await.unwrap();
    tar.file("base/empty", b"").await.unwrap();
    tar.file("base/small", b"abc").await.unwrap();
    tar.begin_file("large", 300_001).await.unwrap();
    tar.zeros(200_000).await.unwrap();
    tar.content(vec![5; 100_001].into()).await.unwrap();
    tar.end_file().await.unwrap();
    tar.file("block", &[6; 512]).await.unwrap();
    tar.finish().await.unwrap();
}

fn check(bytes: &[u8]) {
    assert_eq!(bytes.len() % 512, 0);
    assert!(bytes.ends_with(&[0; 1024]));
    let mut archive = tar::Archive::new(bytes);
    let mut found = vec![];
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = vec![];
        entry.read_to_end(&mut content).unwrap();
        let mode = entry.header().mode().unwrap();
        found.push((entry.path().unwrap().display().to_string(), mode, content));
    }
    let large = [vec![0; 200_000], vec![5; 100_001]].concat();
    let file = |name: &str, content: Vec<u8>| (name.to_owned(), 0o600, content);
    let expected = vec![
        ("base".to_owned(), 0o700, vec![]),
        file("base/empty", vec![]),
        file("base/small", b"abc".to_vec()),
        file("large", large),
        file("block", vec![6; 512]),
    ];
    assert!(found == expected);
}

#[tokio::test]
async fn archives_plain_and_compressed() {
    let mut plain = Collect::default();
    archive(&mut plain).await;
    check(&plain.0);
    let mut compressed = Collect::default();
    let mut gzip = Gzip::new(&mut compressed);
    archive(&mut gzip).await;
    gzip.finish().await.unwrap();
    assert!(compressed.0.len() < 5000);
    let mut bytes = vec![];
    flate2::read::GzDecoder::new(&compressed.0[..]).read_to_end(&mut bytes).unwrap();
    check(&bytes);
}
