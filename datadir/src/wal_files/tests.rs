use camino_tempfile::{Utf8TempDir, tempdir};
use postgres_formats::wal_page::LongHeader;

use super::*;

const SIZE: u32 = 1 << 20;

/// The header of the page at `address`.
fn header(address: Lsn) -> Vec<u8> {
    let first = address.0.is_multiple_of(SIZE.into());
    let long = first.then_some(LongHeader { system_identifier: 5, segment_size: SIZE, page_size: 8192 });
    WalPageHeader { magic: 0xD110, info: 0, timeline: 1, address, remaining_len: 0, long }.encode()
}

/// A segment file in which the first `pages` pages have headers for the segment `claimed`.
fn segment(dir: &Utf8TempDir, number: u64, claimed: u64, pages: u64) {
    let mut bytes = vec![0; SIZE as usize];
    for page in 0..pages {
        let at = (page * 8192) as usize;
        let header = header(Lsn(claimed * u64::from(SIZE) + page * 8192));
        bytes[at..at + header.len()].copy_from_slice(&header);
    }
    std::fs::write(dir.path().join(segment_file_name(1, number, SIZE)), bytes).unwrap();
}

fn read_all(files: &WalFiles, from: Lsn) -> anyhow::Result<Vec<Lsn>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut pieces = files.read(from);
        let mut lsns = Vec::new();
        while let Some(piece) = pieces.recv().await {
            let piece = piece?;
            assert_eq!(piece.bytes.len(), SIZE as usize);
            lsns.push(piece.lsn);
        }
        Ok(lsns)
    })
}

fn lsn(segment: u64, offset: u64) -> Lsn {
    Lsn(segment * u64::from(SIZE) + offset)
}

#[test]
fn segments_are_read_in_order_from_where_history_stands() {
    let dir = tempdir().unwrap();
    (3..7).for_each(|number| segment(&dir, number, number, 128));
    std::fs::write(dir.path().join("00000002.history"), "").unwrap();
    let files = WalFiles::open(dir.path(), SIZE).unwrap();
    assert_eq!(read_all(&files, lsn(4, 100)).unwrap(), [lsn(4, 0), lsn(5, 0), lsn(6, 0)]);
    assert_eq!(files.bytes_from(lsn(4, 100)), 3 * u64::from(SIZE) - 100);
    assert!(read_all(&files, lsn(7, 0)).unwrap().is_empty(), "all of it is known");
    assert!(read_all(&files, lsn(7, 64)).unwrap_err().to_string().contains("000000010000000000000007"));
    assert!(read_all(&files, lsn(2, 64)).unwrap_err().to_string().contains("000000010000000000000002"));
}

#[test]
fn gaps_and_short_files_are_named() {
    let dir = tempdir().unwrap();
    [3, 5].into_iter().for_each(|number| segment(&dir, number, number, 128));
    let files = WalFiles::open(dir.path(), SIZE).unwrap();
    assert!(read_all(&files, lsn(3, 0)).unwrap_err().to_string().contains("000000010000000000000004 is missing"));
    std::fs::write(dir.path().join("000000010000000000000004"), [0; 77]).unwrap();
    let files = WalFiles::open(dir.path(), SIZE).unwrap();
    let error = read_all(&files, lsn(3, 0)).unwrap_err().to_string();
    assert!(error.contains("000000010000000000000004 ends at offset 77"), "{error}");
    assert!(WalFiles::open(&dir.path().join("none"), SIZE).unwrap_err().to_string().contains("none"));
    assert!(WalFiles::open(tempdir().unwrap().path(), SIZE).unwrap_err().to_string().contains("no WAL segment files"));
}

#[test]
fn the_end_of_the_wal_is_told_from_a_hole_in_it() {
    let dir = tempdir().unwrap();
    segment(&dir, 3, 3, 20);
    // A recycled file: its pages are from an earlier segment.
    segment(&dir, 4, 1, 128);
    let files = WalFiles::open(dir.path(), SIZE).unwrap();
    let after = |lsn| files.continues_after(lsn, PgVersion::V15).unwrap();
    assert_eq!(after(lsn(3, 19 * 8192 + 500)), None);
    assert_eq!(after(lsn(3, 7 * 8192 + 500)), Some(lsn(3, 8 * 8192)));
    segment(&dir, 5, 5, 1);
    let files = WalFiles::open(dir.path(), SIZE).unwrap();
    let after = |lsn| files.continues_after(lsn, PgVersion::V15).unwrap();
    assert_eq!(after(lsn(3, 19 * 8192 + 500)), Some(lsn(5, 0)));
}

#[test]
fn the_newest_timeline_counts() {
    let dir = tempdir().unwrap();
    segment(&dir, 3, 3, 128);
    let newer = dir.path().join(segment_file_name(2, 3, SIZE));
    std::fs::write(&newer, vec![0; SIZE as usize]).unwrap();
    assert_eq!(WalFiles::open(dir.path(), SIZE).unwrap().path(lsn(3, 5)), Some(newer.as_path()));
}
