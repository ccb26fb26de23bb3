//! Rebuilds histories of each kind of record.

use pageserver_api::key::{DBDIR_KEY, rel_block_key, slru_block_key};
use pageserver_api::reltag::{RelTag, SlruKind};
use postgres_formats::version::PgVersion;
use redo::RedoContext;

use super::*;
use errors::ErrorKind;

const REDO: RedoContext = RedoContext { version: PgVersion::V15, data_checksums: false, wal_log_hints: false };

fn history(image: Option<Vec<u8>>, records: Vec<WalRecord>) -> KeyHistory {
    let records = records.into_iter().enumerate().map(|(at, record)| (Lsn(20 + at as u64), record)).rev().collect();
    KeyHistory { image: image.map(|image| (Lsn(10), Bytes::from(image))), records, ..KeyHistory::default() }
}

fn vm_key(block: u32) -> Key {
    rel_block_key(RelTag { spcnode: 1663, dbnode: 5, relnode: 16384, forknum: 2 }, block)
}

fn rebuilt(key: Key, image: Option<Vec<u8>>, records: Vec<WalRecord>) -> Result<Bytes, StorageError> {
    rebuild(key, Lsn(99), history(image, records), &REDO.into())
}

#[test]
fn values_without_records_are_their_image() {
    assert_eq!(rebuilt(DBDIR_KEY, Some(b"abc".to_vec()), vec![]).unwrap(), "abc");
    assert_eq!(rebuilt(DBDIR_KEY, Some(vec![]), vec![]).unwrap(), "");
    let missing = rebuilt(DBDIR_KEY, None, vec![]).unwrap_err();
    assert!(matches!(missing, StorageError::MissingKey { key: DBDIR_KEY, lsn: Lsn(99) }));
}

#[test]
fn transaction_status_accumulates() {
    let key = slru_block_key(SlruKind::Clog, 0, 1);
    let committed = |xid| WalRecord::ClogSetCommitted { xids: vec![xid], timestamp: 1 };
    let records = vec![committed(32768), committed(32770), WalRecord::ClogSetAborted { xids: vec![32770] }];
    let page = rebuilt(key, Some(vec![0; 8192]), records.clone()).unwrap();
    assert_eq!(page[0], 0b00_10_00_01);
    assert!(page[1..].iter().all(|byte| *byte == 0));
    let error = rebuilt(key, None, records).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

#[test]
fn multixacts_and_commit_timestamps() {
    let key = slru_block_key(SlruKind::MultiXactOffsets, 1, 0);
    let multi = 32 * 2048 + 3;
    let record = WalRecord::MultiXactOffset { multi, offset: 0x0102, members: 3 };
    let page = rebuilt(key, Some(vec![0; 8192]), vec![record]).unwrap();
    assert_eq!(page[12..20], [2, 1, 0, 0, 5, 1, 0, 0]);

    let key = slru_block_key(SlruKind::MultiXactMembers, 0, 0);
    let members = vec![(7, 1), (9, 5)];
    let page = rebuilt(key, Some(vec![0; 8192]), vec![WalRecord::MultiXactMembers { offset: 1, members }]).unwrap();
    assert_eq!((page[1], page[2], page[8], page[12]), (1, 5, 7, 9));

    let key = slru_block_key(SlruKind::CommitTs, 0, 0);
    let record = WalRecord::CommitTs { xids: vec![2], timestamp: 0x0304, origin: 6 };
    let page = rebuilt(key, Some(vec![0; 8192]), vec![record]).unwrap();
    assert_eq!((page[20], page[21], page[28]), (4, 3, 6));
}

#[test]
fn visibility_map_bits_are_cleared_on_their_own_page_only() {
    let set = || Some(vec![0xFF; 8192]);
    let clear = |blocks: Vec<u32>| vec![WalRecord::ClearVisibilityMap { heap_blocks: blocks, flags: 3 }];
    let page = rebuilt(vm_key(1), set(), clear(vec![1, 32672 + 5])).unwrap();
    assert_eq!((page[24], page[25]), (0xFF, 0b1111_0011));
    let truncate = |block| vec![WalRecord::TruncateVisibilityMap { first_heap_block: block }];
    let page = rebuilt(vm_key(1), set(), truncate(32672 + 6)).unwrap();
    assert_eq!((page[23], page[24], page[25], page[26], page[8191]), (0xFF, 0xFF, 0x0F, 0, 0));
    assert!(rebuilt(vm_key(1), set(), truncate(2 * 32672)).unwrap().iter().all(|byte| *byte == 0xFF));
    assert!(rebuilt(vm_key(1), set(), truncate(0)).unwrap()[24..].iter().all(|byte| *byte == 0));
    assert!(rebuilt(vm_key(1), None, clear(vec![32672])).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn records_on_keys_of_another_kind_are_refused() {
    let page = || Some(vec![0; 8192]);
    let clog = WalRecord::ClogSetAborted { xids: vec![1] };
    let bits = WalRecord::ClearVisibilityMap { heap_blocks: vec![1], flags: 3 };
    for (key, record) in
        [(vm_key(0), clog.clone()), (slru_block_key(SlruKind::CommitTs, 0, 0), clog), (DBDIR_KEY, bits)]
    {
        let error = rebuilt(key, page(), vec![record]).unwrap_err();
        assert!(error.to_string().contains("at LSN 0/14"), "{error}");
    }
    let odd = rebuilt(
        slru_block_key(SlruKind::Clog, 0, 0),
        Some(vec![0; 100]),
        vec![WalRecord::ClogSetAborted { xids: vec![] }],
    );
    assert!(odd.unwrap_err().to_string().contains("100 bytes"));
}

#[test]
fn damaged_records_are_errors() {
    let record = WalRecord::Postgres { will_init: true, block_id: 0, record: Bytes::from_static(b"junk") };
    let error = rebuilt(vm_key(0), None, vec![record]).unwrap_err();
    assert!(matches!(error, StorageError::Redo { .. }), "{error}");
}

#[tokio::test]
async fn many_pages_are_rebuilt_in_parallel_with_the_same_results() {
    let key = |n: u32| slru_block_key(SlruKind::Clog, n / 32, n % 32);
    let histories = || {
        let one = |n| (key(n), history(Some(vec![0; 8192]), vec![WalRecord::ClogSetAborted { xids: vec![n * 32768] }]));
        (0..200).map(one).collect::<BTreeMap<_, _>>()
    };
    let all = rebuild_all(histories(), Lsn(99), REDO.into()).await.unwrap();
    assert_eq!(all.len(), 200);
    for (key, history) in histories() {
        assert_eq!(all[&key].as_ref().unwrap(), &rebuild(key, Lsn(99), history, &REDO.into()).unwrap());
        assert_eq!(all[&key].as_ref().unwrap()[0], 2);
    }
}
