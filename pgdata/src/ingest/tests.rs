//! Ingest into a store in memory: sizes and directories follow a simple model, and pages are as expected.

mod model;
mod pipeline;
mod records;

use bytes::Bytes;
use pageserver_api::key::{
    CHECKPOINT_KEY, DBDIR_KEY, Key, PARAMETERS_KEY, TABLESPACES_KEY, TWOPHASEDIR_KEY, rel_block_key, slru_block_key,
    slru_dir_key,
};
use pageserver_api::parameters::ClusterParameters;
use pageserver_api::record::WalRecord;
use pageserver_api::reltag::{RelTag, SlruKind};
use postgres_formats::checkpoint::CheckPoint;
use postgres_formats::record::RelFile;
use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;
use utils::lsn::Lsn;
use wal_decoder::tablespaces::TablespaceTable;

use super::WalIngest;
use crate::directory::{DbDir, SlruDir, TwoPhaseDir, encode, encode_twophase};
use crate::listing::Listing;
use crate::memory::{MemoryStore, parameters};
use records::*;

const START: Lsn = Lsn(0x100_0000);
const REL: RelFile = RelFile { spc: 1663, db: 5, rel: 16384 };

fn tag(rel: RelFile, forknum: u8) -> RelTag {
    RelTag { spcnode: rel.spc, dbnode: rel.db, relnode: rel.rel, forknum }
}

/// Redo for tests: SLRU pages and map clears are real; a Postgres record leaves the last byte of its data.
fn redo(key: Key, page: &mut [u8; 8192], _lsn: Lsn, record: &WalRecord) {
    match record {
        WalRecord::Postgres { record, will_init, .. } => {
            if *will_init {
                page.fill(0);
            }
            page[100] = *record.last().unwrap();
        }
        WalRecord::ClearVisibilityMap { heap_blocks, flags } => {
            for block in heap_blocks {
                redo::vm::clear_bits(page, *block, *flags);
            }
        }
        WalRecord::TruncateVisibilityMap { first_heap_block } => {
            let at = redo::vm::position(*first_heap_block);
            redo::vm::truncate_tail(page, at.byte, at.shift);
        }
        change => {
            let (_, segment, block) = key.to_slru_block().unwrap();
            super::slru::apply_to_page(page, segment * 32 + block, change);
        }
    }
}

/// A cluster with one database, no relations, and an empty commit log page.
struct Cluster {
    store: MemoryStore,
    ingest: WalIngest<MemoryStore>,
    at: Lsn,
}

impl Cluster {
    async fn new() -> Self {
        Self::with(parameters(PgVersion::V15)).await
    }

    async fn with(parameters: ClusterParameters) -> Self {
        let store = MemoryStore::new(redo);
        let version = PgVersion::from_major(parameters.pg_version).unwrap();
        let checkpoint = CheckPoint { next_xid: 700, next_multi: 1, ..CheckPoint::default() };
        store.put(DBDIR_KEY, START, encode(&DbDir::from([((1663, 5), false), ((1664, 0), false)])));
        store.put(TWOPHASEDIR_KEY, START, encode_twophase(version, &TwoPhaseDir::new()));
        store.put(CHECKPOINT_KEY, START, Bytes::copy_from_slice(&checkpoint.encode()));
        store.put(TABLESPACES_KEY, START, Bytes::from(TablespaceTable::default().encode()));
        store.put(PARAMETERS_KEY, START, encode(&parameters));
        for kind in SlruKind::ALL {
            store.put(slru_dir_key(kind), START, encode(&SlruDir::new()));
        }
        store.set_last(START);
        let ingest = WalIngest::load(store.clone(), START, Lsn::INVALID).await.unwrap();
        Self { store, ingest, at: START }
    }

    /// Ingests a record and returns its end.
    async fn apply(&mut self, bytes: Vec<u8>) -> Lsn {
        self.try_apply(bytes).await.unwrap()
    }

    async fn try_apply(&mut self, bytes: Vec<u8>) -> Result<Lsn, super::IngestError> {
        let end = (self.at + bytes.len() as u64).align();
        self.ingest.ingest(self.at, end, &bytes).await?;
        self.at = end;
        Ok(end)
    }

    async fn listing(&mut self) -> Listing<'_, MemoryStore> {
        self.ingest.commit().await.unwrap();
        Listing::new(&self.store, self.store.last())
    }

    async fn size(&mut self, rel: RelTag) -> Option<u32> {
        self.listing().await.rel_size(rel).await.unwrap()
    }

    async fn page(&mut self, rel: RelTag, blkno: u32) -> Bytes {
        self.listing().await.required(rel_block_key(rel, blkno)).await.unwrap()
    }

    async fn slru_page(&mut self, kind: SlruKind, page: u32) -> Bytes {
        self.listing().await.required(slru_block_key(kind, page / 32, page % 32)).await.unwrap()
    }
}

#[tokio::test]
async fn blocks_that_were_skipped_are_zero_and_truncated_ones_start_anew() {
    let mut cluster = Cluster::new().await;
    let main = tag(REL, 0);
    cluster.apply(block_record(RmgrId::BTREE, REL, 0, 3, true, 9)).await;
    assert_eq!(cluster.size(main).await, Some(4));
    assert!(cluster.page(main, 1).await.iter().all(|byte| *byte == 0));
    assert_eq!(cluster.page(main, 3).await[100], 9);
    cluster.apply(block_record(RmgrId::BTREE, REL, 0, 2, true, 8)).await;
    cluster.apply(truncate(REL, 1, 7)).await;
    assert_eq!(cluster.size(main).await, Some(1));
    cluster.apply(block_record(RmgrId::BTREE, REL, 0, 3, true, 7)).await;
    assert!(cluster.page(main, 2).await.iter().all(|byte| *byte == 0), "the old version must not come back");
    assert_eq!((cluster.size(main).await, cluster.page(main, 3).await[100]), (Some(4), 7));
}

#[tokio::test]
async fn a_record_that_needs_a_missing_page_is_passed_over() {
    let mut cluster = Cluster::new().await;
    cluster.apply(block_record(RmgrId::BTREE, REL, 0, 5, false, 9)).await;
    assert_eq!(cluster.size(tag(REL, 0)).await, Some(0));
    // But setting visibility bits creates the map.
    cluster.apply(block_record_with(RmgrId::HEAP2, 0x40, REL, 2, 0, false, &[0, 0, 0, 0, 3])).await;
    assert_eq!(cluster.size(tag(REL, 2)).await, Some(1));
}

/// A server that logs hints without images also does so for free space maps, which the WAL does not contain.
#[tokio::test]
async fn a_hint_without_image_makes_nothing() {
    let mut cluster = Cluster::new().await;
    let hint = |fork, blkno| block_record_with(RmgrId::XLOG, 0xA0, REL, fork, blkno, false, &[]);
    for fork in [0, 1] {
        cluster.apply(hint(fork, 0)).await;
        assert_eq!(cluster.size(tag(REL, fork)).await, None);
    }
    cluster.apply(block_record(RmgrId::BTREE, REL, 0, 0, true, 9)).await;
    cluster.apply(hint(0, 1)).await;
    let kept = cluster.apply(hint(0, 0)).await;
    assert_eq!(cluster.size(tag(REL, 0)).await, Some(1));
    let key = rel_block_key(tag(REL, 0), 0);
    let is_kept = cluster.store.all().iter().any(|(at, lsn, _)| (*at, *lsn) == (key, kept));
    assert!(is_kept, "the server's page may have its LSN");
}

#[tokio::test]
async fn dropped_relations_are_gone_and_made_again_empty() {
    let mut cluster = Cluster::new().await;
    for fork in [0, 2] {
        cluster.apply(block_record(RmgrId::BTREE, REL, fork, 0, true, 1)).await;
    }
    let before = cluster.apply(create(RelFile { rel: 16390, ..REL }, 0)).await;
    cluster.apply(commit(701, &[], &[REL], None)).await;
    assert_eq!((cluster.size(tag(REL, 0)).await, cluster.size(tag(REL, 2)).await), (None, None));
    let rels = cluster.listing().await.relations(1663, 5).await.unwrap();
    assert_eq!(rels.into_keys().map(|rel| rel.relnode).collect::<Vec<_>>(), [16390]);
    cluster.apply(create(REL, 0)).await;
    assert_eq!(cluster.size(tag(REL, 0)).await, Some(0));
    // History is unchanged.
    let past = Listing::new(&cluster.store, before);
    assert_eq!(past.rel_size(tag(REL, 2)).await.unwrap(), Some(1));
}

#[tokio::test]
async fn commit_status_reaches_all_pages_of_the_transaction() {
    let mut cluster =
        Cluster::with(ClusterParameters { track_commit_timestamp: true, ..parameters(PgVersion::V15) }).await;
    cluster.apply(zero_page(RmgrId::CLOG, 0)).await;
    cluster.apply(commit(32767, &[32768, 32770], &[], None)).await;
    cluster.apply(abort(32769, &[])).await;
    assert_eq!(cluster.slru_page(SlruKind::Clog, 0).await[8191], 0b01_00_00_00);
    assert_eq!(cluster.slru_page(SlruKind::Clog, 1).await[0], 0b00_01_10_01);
    let times = cluster.slru_page(SlruKind::CommitTs, 32768 / 819).await;
    assert_eq!(times[(32768 % 819) * 10], 77);
    let checkpoint = cluster.listing().await.checkpoint().await.unwrap();
    assert!(checkpoint.next_xid > 32770 && checkpoint.next_xid <= 32771 + 1024);
}

#[tokio::test]
async fn prepared_transactions_come_and_go() {
    let mut cluster = Cluster::new().await;
    cluster.apply(zero_page(RmgrId::CLOG, 0)).await;
    cluster.apply(prepare(705, 0)).await;
    assert_eq!(cluster.listing().await.twophase(PgVersion::V15).await.unwrap(), TwoPhaseDir::from([705]));
    cluster.apply(commit(0, &[706], &[], Some(705))).await;
    assert!(cluster.listing().await.twophase(PgVersion::V15).await.unwrap().is_empty());
    assert_eq!(cluster.slru_page(SlruKind::Clog, 0).await[705 / 4], 0b00_01_01_00);
}

#[tokio::test]
async fn origins_progress_with_what_is_replicated_and_prepared() {
    let mut cluster = Cluster::new().await;
    cluster.apply(zero_page(RmgrId::CLOG, 0)).await;
    let mut steps = vec![];
    for (record, expected) in [
        (replicated(0x00, 701, 1, 0x1000), vec![(1, 0x1000)]),
        (replicated(0x00, 702, 1, 0x900), vec![(1, 0x1000)]),
        (replicated(0x20, 703, 1, 0x1100), vec![(1, 0x1100)]),
        (from_origin(1, &prepare(705, 0x1200)), vec![(1, 0x1200)]),
        (prepare(706, 0x1300), vec![(1, 0x1200)]),
        (set_origin(2, 0x8000, false), vec![(1, 0x1200), (2, 0x8000)]),
        (set_origin(2, 0x7000, false), vec![(1, 0x1200), (2, 0x8000)]),
        (set_origin(2, 0x7000, true), vec![(1, 0x1200), (2, 0x7000)]),
        // Changes that are not to be replicated further have no progress.
        (replicated(0x00, 707, u16::MAX, 0x9000), vec![(1, 0x1200), (2, 0x7000)]),
        (set_origin(u16::MAX, 0x9000, true), vec![(1, 0x1200), (2, 0x7000)]),
        (drop_origin(1), vec![(2, 0x7000)]),
        (replicated(0x00, 708, 1, 0x20), vec![(1, 0x20), (2, 0x7000)]),
    ] {
        steps.push((cluster.apply(record).await, expected));
    }
    cluster.ingest.commit().await.unwrap();
    for (lsn, expected) in steps {
        let origins = Listing::new(&cluster.store, lsn).replication_origins().await.unwrap();
        let origins: Vec<_> = origins.into_iter().map(|(origin, lsn)| (origin, lsn.0)).collect();
        assert_eq!(origins, expected, "at {lsn}");
    }
}

#[tokio::test]
async fn copied_databases_have_the_pages_of_before() {
    let mut cluster = Cluster::new().await;
    for blkno in 0..3 {
        cluster.apply(block_record(RmgrId::BTREE, REL, 0, blkno, true, blkno as u8 + 1)).await;
    }
    cluster.apply(copy_database((77, 1663), (5, 1663))).await;
    cluster.apply(block_record(RmgrId::BTREE, REL, 0, 1, true, 99)).await;
    let copy = RelTag { dbnode: 77, ..tag(REL, 0) };
    assert_eq!((cluster.size(copy).await, cluster.page(copy, 1).await[100]), (Some(3), 2));
    cluster.apply(drop_database(77, &[1663])).await;
    assert_eq!(cluster.size(copy).await, None);
    assert!(!cluster.listing().await.databases().await.unwrap().contains_key(&(1663, 77)));
    assert_eq!(cluster.size(tag(REL, 0)).await, Some(3));
    let missing = cluster.try_apply(copy_database((78, 1663), (4711, 1663))).await;
    assert!(missing.unwrap_err().to_string().contains("4711"));
}

#[tokio::test]
async fn visibility_bits_are_cleared_without_block_reference() {
    let mut cluster = Cluster::new().await;
    cluster.apply(block_record(RmgrId::HEAP, REL, 0, 0, true, 0)).await;
    // Without a map there is nothing to clear, and none is created.
    cluster.apply(delete_clearing_visibility(REL, 0)).await;
    assert_eq!(cluster.size(tag(REL, 2)).await, None);
    let map = [0xFF; 8192];
    cluster.apply(image_record(REL, 2, 0, &map)).await;
    cluster.apply(delete_clearing_visibility(REL, 0)).await;
    assert_eq!(cluster.page(tag(REL, 2), 0).await[24..26], [0xFC, 0xFF]);
    cluster.apply(truncate(REL, 0, 7)).await;
    assert_eq!(cluster.size(tag(REL, 2)).await, Some(0));
}

#[tokio::test]
async fn multixacts_cross_pages_and_old_ones_go() {
    let mut cluster = Cluster::new().await;
    cluster.apply(zero_page_with(RmgrId::MULTIXACT, 0x00, 0)).await;
    cluster.apply(zero_page_with(RmgrId::MULTIXACT, 0x10, 0)).await;
    cluster.apply(multixact(2047, 1635, &[(800, 1), (801, 4)])).await;
    let offsets = cluster.slru_page(SlruKind::MultiXactOffsets, 0).await;
    assert_eq!(offsets[8188..], 1635u32.to_le_bytes());
    assert_eq!(cluster.slru_page(SlruKind::MultiXactOffsets, 1).await[..4], 1637u32.to_le_bytes());
    assert_eq!(cluster.slru_page(SlruKind::MultiXactMembers, 1).await[..8], [4, 0, 0, 0, 0x21, 3, 0, 0]);
    let checkpoint = cluster.listing().await.checkpoint().await.unwrap();
    assert_eq!((checkpoint.next_multi, checkpoint.next_multi_offset), (2048, 1637));
    cluster.apply(truncate_multixacts(70_000, 60_000)).await;
    let listing = cluster.listing().await;
    assert!(listing.slru_segments(SlruKind::MultiXactOffsets).await.unwrap().is_empty());
    assert!(listing.slru_segments(SlruKind::MultiXactMembers).await.unwrap().is_empty());
}

#[tokio::test]
async fn large_tablespaces_get_slots() {
    let mut cluster = Cluster::new().await;
    let away = RelFile { spc: 70_000, ..REL };
    let unknown = cluster.try_apply(create(away, 0)).await.unwrap_err().to_string();
    assert!(unknown.contains("70000"), "{unknown}");
    let mut cluster = Cluster::new().await;
    cluster.apply(create_tablespace(70_000, "/away")).await;
    cluster.apply(block_record(RmgrId::BTREE, away, 0, 0, true, 1)).await;
    assert_eq!(cluster.size(RelTag { spcnode: 0xF000, ..tag(REL, 0) }).await, Some(1));
    assert_eq!(cluster.listing().await.tablespaces().await.unwrap().oid(0xF000), Some(70_000));
}

#[tokio::test]
async fn absurd_gaps_are_refused() {
    let mut cluster = Cluster::new().await;
    let error = cluster.try_apply(block_record(RmgrId::BTREE, REL, 0, u32::MAX - 1, true, 1)).await.unwrap_err();
    assert!(error.to_string().contains("gap from block 0"), "{error}");
}

#[tokio::test]
async fn records_come_in_order() {
    let mut cluster = Cluster::new().await;
    let end = cluster.apply(create(REL, 0)).await;
    let again = cluster.ingest.ingest(START, end, &create(REL, 0)).await;
    assert!(again.unwrap_err().to_string().contains(&START.to_string()));
    assert!(cluster.ingest.ingest(end, end + 8, b"no record").await.is_err());
}
