//! Journals in all formats that a server ever wrote and that this one promises to read; `docs/formats.md` has the
//! policy. Each directory below `tests/golden` is one as a version left it, never written again: a new format gets its
//! own.

use std::fs;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use camino_tempfile::{Utf8TempDir, tempdir};
use journal::{Id, Journal, Options};
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use utils::shard::TenantShardId;

/// Small enough to be committed.
const OPTIONS: Options = Options { segment_bytes: 16 << 10, bytes: 1 << 20, pending_bytes: 1 << 20 };
const BEGINS: Lsn = Lsn(0x100_0000);

fn golden() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn id(number: u8) -> Id {
    Id { tenant: TenantShardId::unsharded(TenantId::from([number; 16])), timeline: TimelineId::from([number + 1; 16]) }
}

/// The byte of a timeline's WAL at an offset, by its last writer.
fn byte(number: u8, offset: u64) -> u8 {
    (offset % 251) as u8 ^ number
}

fn wal(number: u8, offset: u64, len: u64) -> Bytes {
    (offset..offset + len).map(|at| byte(number, at)).collect()
}

/// What each timeline's WAL is in every golden journal: its number, and how many bytes of it.
const EXPECTED: [(u8, u64); 2] = [(1, 21_000), (2, 500)];

async fn write(dir: &Utf8Path) {
    let journal = Journal::open(dir, OPTIONS).await.unwrap();
    let (one, two) = (journal.lane(id(1)), journal.lane(id(2)));
    for offset in (0..20_000).step_by(5000) {
        one.append(BEGINS + offset, wal(1, offset, 5000));
        one.watch().wait_for(|synced| *synced == BEGINS + offset + 5000).await.unwrap();
    }
    // What was there is replaced, and what follows is void.
    two.append(BEGINS, Bytes::from_static(&[0xFF; 900]));
    two.append(BEGINS + 100u64, wal(2, 100, 800));
    two.append(BEGINS, wal(2, 0, 700));
    two.void(BEGINS + 500u64).await.unwrap();
    one.append(BEGINS + 20_000u64, wal(1, 20_000, 1000));
    journal.shutdown().await;
}

fn copy(from: &Utf8Path) -> Utf8TempDir {
    let dir = tempdir().unwrap();
    for entry in from.read_dir_utf8().unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    dir
}

async fn read(journal: &Journal, number: u8) -> Vec<u8> {
    let (mut replay, mut found) = (journal.lane(id(number)).replay(BEGINS), Vec::new());
    while let Some((start, bytes)) = replay.next().await.unwrap() {
        assert_eq!(start, BEGINS + found.len() as u64);
        found.extend_from_slice(&bytes);
    }
    found
}

fn directories() -> Vec<Utf8PathBuf> {
    let entries = golden().read_dir_utf8().unwrap();
    let mut found: Vec<Utf8PathBuf> = entries.map(|entry| entry.unwrap().into_path()).collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

#[tokio::test]
async fn journals_of_every_format_are_read_and_go_on() {
    for golden in directories() {
        let dir = copy(&golden);
        for more in [0, 700] {
            let journal = Journal::open(dir.path(), OPTIONS).await.unwrap();
            for (number, len) in EXPECTED {
                assert_eq!(read(&journal, number).await, wal(number, 0, len + more), "{golden}: timeline {number}");
                let lane = journal.lane(id(number));
                lane.append(BEGINS + len + more, wal(number, len + more, 700));
            }
            journal.shutdown().await;
        }
    }
}

#[tokio::test]
async fn a_newer_journal_is_refused_and_stays() {
    let dir = copy(&directories().pop().unwrap());
    let mut names: Vec<_> = dir.path().read_dir_utf8().unwrap().map(|entry| entry.unwrap().into_path()).collect();
    names.sort();
    let mut bytes = fs::read(&names[1]).unwrap();
    bytes[8] += 1;
    let sum = utils::crc32c::crc32c(&bytes[8..4096]);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
    fs::write(&names[1], &bytes).unwrap();
    let refused = Journal::open(dir.path(), OPTIONS).await.unwrap_err().to_string();
    assert!(refused.contains("version 2 of the journal; this program knows 1"), "{refused}");
    assert_eq!(fs::read(&names[1]).unwrap(), bytes);
}

/// Writes `tests/golden/$GOLDEN_JOURNAL`.
#[tokio::test]
#[ignore = "writes a golden journal"]
async fn a_golden_journal_is_written() {
    let dir = golden().join(std::env::var("GOLDEN_JOURNAL").unwrap());
    fs::create_dir_all(&dir).unwrap();
    write(&dir).await;
}
