use pageserver_api::record::WalRecord;
use postgres_formats::record::{RecordHeader, RelFile, decode, record_crc};
use postgres_formats::version::PgVersion;
use proptest::prelude::*;

use super::*;

const REL: RelFile = RelFile { spc: 1663, db: 5, rel: 16384 };
const END: Lsn = Lsn(0x1234_5678);

struct Block<'a> {
    id: u8,
    flags: u8,
    blkno: u32,
    image: Option<&'a [u8; BLCKSZ]>,
    data: &'a [u8],
}

/// A record in the format of 15 with whole-page images.
fn record(rmid: u8, info: u8, blocks: &[Block<'_>], main: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 24];
    for block in blocks {
        let image_flag = if block.image.is_some() { 0x10 } else { 0 };
        let data_flag = if block.data.is_empty() { 0 } else { 0x20 };
        out.extend_from_slice(&[block.id, block.flags | image_flag | data_flag]);
        out.extend_from_slice(&(block.data.len() as u16).to_le_bytes());
        if block.image.is_some() {
            out.extend_from_slice(&(BLCKSZ as u16).to_le_bytes());
            out.extend_from_slice(&[0, 0, 0x02]);
        }
        for word in [REL.spc, REL.db, REL.rel, block.blkno] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
    if !main.is_empty() {
        out.extend_from_slice(&[255, main.len() as u8]);
    }
    for block in blocks {
        out.extend_from_slice(block.image.map_or(&[], |image| &image[..]));
        out.extend_from_slice(block.data);
    }
    out.extend_from_slice(main);
    let mut header = RecordHeader { total_len: out.len() as u32, xid: 700, prev: 8, info, rmid, crc: 0 };
    out[..24].copy_from_slice(&header.encode());
    header.crc = record_crc(&out).unwrap();
    out[..24].copy_from_slice(&header.encode());
    out
}

fn values(bytes: &[u8]) -> Vec<(RelTag, u32, Value)> {
    let rec = decode(PgVersion::V15, bytes).unwrap();
    let interpreted = interpret(&rec, &TablespaceTable::default()).unwrap();
    let mut batch = SerializedValueBatch::default();
    for change in &interpreted.changes {
        change.put(&rec, bytes, END, &mut batch).unwrap();
    }
    let stored = |meta: &crate::serialized_batch::ValueMeta| {
        let bytes = &batch.raw()[meta.offset as usize..][..meta.len as usize];
        let value = Value::decode(&Bytes::copy_from_slice(bytes)).unwrap();
        assert_eq!((meta.lsn, meta.will_init), (END, value.will_init()));
        let (rel, blkno) = pageserver_api::key::Key::from_compact(meta.key).to_rel_block().unwrap();
        (rel, blkno, value)
    };
    batch.metadata().iter().map(stored).collect()
}

#[test]
fn each_block_gets_the_record_reduced_to_it() {
    let blocks = [
        Block { id: 0, flags: 0x40, blkno: 9, image: None, data: b"new" },
        Block { id: 2, flags: 0x00, blkno: 4, image: None, data: b"old!" },
    ];
    let bytes = record(11, 0x30, &blocks, &[1; 10]);
    let found = values(&bytes);
    assert_eq!(found.len(), 2);
    for (block, (rel, blkno, value)) in blocks.iter().zip(found) {
        assert_eq!((rel.to_string().as_str(), blkno), ("1663/5/16384", block.blkno));
        let Value::WalRecord(WalRecord::Postgres { will_init, block_id, record }) = value else {
            panic!("not a record");
        };
        assert_eq!((will_init, block_id), (block.flags & 0x40 != 0, block.id));
        let reduced = decode(PgVersion::V15, &record).unwrap();
        assert_eq!(reduced.block(block.id).unwrap().data, block.data);
        assert!(record.len() < bytes.len());
    }
}

#[test]
fn whole_images_are_stored_as_pages() {
    let mut page = [7; BLCKSZ];
    page[14..16].copy_from_slice(&8192u16.to_le_bytes());
    let new_page = [0; BLCKSZ];
    let blocks = [
        Block { id: 0, flags: 1, blkno: 2, image: Some(&page), data: &[] },
        Block { id: 1, flags: 2, blkno: 3, image: Some(&new_page), data: &[] },
    ];
    let found = values(&record(0, xlog_op::FPI, &blocks, &[]));
    let mut with_lsn = Page::new(page);
    with_lsn.set_lsn(END.0);
    assert_eq!((found[0].0.forknum, &found[0].2), (1, &Value::Image(Bytes::copy_from_slice(with_lsn.bytes()))));
    assert_eq!((found[1].0.forknum, &found[1].2), (2, &Value::Image(Bytes::copy_from_slice(&new_page))));
    // The same image in another record is replayed, because the record may change the page further.
    let found = values(&record(14, 0x00, &blocks[..1], &[0; 4]));
    assert!(matches!(&found[0].2, Value::WalRecord(WalRecord::Postgres { will_init: true, block_id: 0, .. })));
}

#[test]
fn a_record_of_one_block_is_stored_as_it_is() {
    let image = [3; BLCKSZ];
    for (image, data) in [(None, &b"data"[..]), (Some(&image), b""), (Some(&image), b"and data")] {
        let blocks = [Block { id: 0, flags: 0, blkno: 9, image, data }];
        for main in [&[][..], &[1; 10]] {
            let bytes = record(10, 0x00, &blocks, main);
            let mut reduced = Vec::new();
            reduce_to_block(&decode(PgVersion::V15, &bytes).unwrap(), 0, &mut reduced);
            assert_eq!(reduced, bytes);
        }
    }
}

#[test]
fn hint_without_image_is_kept_but_of_free_space_maps() {
    let hint =
        |flags| record(0, xlog_op::FPI_FOR_HINT, &[Block { id: 0, flags, blkno: 2, image: None, data: &[] }], &[]);
    let found = values(&hint(0));
    assert!(matches!(&found[0].2, Value::WalRecord(WalRecord::Postgres { will_init: false, block_id: 0, .. })));
    assert!(values(&hint(1)).is_empty());
}

/// XLOG/NOOP is never written, Gist/ASSIGN_LSN only with `wal_level` minimal.
#[test]
fn records_of_which_only_the_lsn_counts_change_nothing() {
    assert!(values(&record(0, xlog_op::NOOP, &[], &[])).is_empty());
    assert!(values(&record(14, 0x70, &[], &[])).is_empty());
}

#[test]
fn visibility_map_clears_come_without_block_reference() {
    let blocks = [Block { id: 0, flags: 0, blkno: 40_000, image: None, data: &[] }];
    let bytes = record(10, 0x10, &blocks, &[0, 0, 0, 0, 1, 0, 0, 1]);
    let rec = decode(PgVersion::V15, &bytes).unwrap();
    let interpreted = interpret(&rec, &TablespaceTable::default()).unwrap();
    let Some(MetadataRecord::VmClear(clears)) = interpreted.metadata else { panic!("no clears") };
    assert_eq!((clears.len(), clears[0].heap_blkno, clears[0].bits, clears[0].rel), (1, 40_000, 3, REL));
}

#[test]
fn broken_records_are_errors() {
    let short = record(2, 0x10, &[], &[0; 3]);
    let rec = decode(PgVersion::V15, &short).unwrap();
    let error = interpret(&rec, &TablespaceTable::default()).unwrap_err();
    assert!(error.to_string().starts_with("record Storage/CREATE: "), "{error}");
    let blocks = [Block { id: 0, flags: 0, blkno: u32::MAX, image: None, data: &[] }];
    let bytes = record(11, 0x00, &blocks, &[0; 2]);
    let rec = decode(PgVersion::V15, &bytes).unwrap();
    assert!(matches!(interpret(&rec, &TablespaceTable::default()), Err(InterpretError::NoBlock { block_id: 0, .. })));
    let twice = |id| Block { id, flags: 0, blkno: 7, image: None, data: &[] };
    let bytes = record(11, 0x00, &[twice(0), twice(3)], &[0; 2]);
    let rec = decode(PgVersion::V15, &bytes).unwrap();
    assert!(matches!(interpret(&rec, &TablespaceTable::default()), Err(InterpretError::NoBlock { block_id: 3, .. })));
}

proptest! {
    #[test]
    fn any_record_is_interpreted_or_refused(
        rmid in 0u8..22,
        info: u8,
        blkno: u32,
        main in prop::collection::vec(any::<u8>(), 0..200),
        small in any::<bool>(),
    ) {
        // Small numbers produce plausible counts.
        let main: Vec<u8> = main.iter().map(|byte| if small { byte & 0x03 } else { *byte }).collect();
        let blocks = [Block { id: 0, flags: 0, blkno, image: None, data: b"data" }];
        for blocks in [&blocks[..], &[]] {
            let bytes = record(rmid, info, blocks, &main);
            for version in PgVersion::ALL {
                let Ok(rec) = decode(version, &bytes) else { continue };
                let Ok(interpreted) = interpret(&rec, &TablespaceTable::default()) else { continue };
                let mut batch = SerializedValueBatch::default();
                for change in &interpreted.changes {
                    change.put(&rec, &bytes, END, &mut batch).unwrap();
                }
                prop_assert_eq!(batch.len(), interpreted.changes.len());
                prop_assert!(!changes_only_pages(&rec) || interpreted.metadata.is_none());
            }
        }
    }
}
