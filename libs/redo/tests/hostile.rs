//! Whatever the bytes of page and record: a result or an error, never a panic.

use postgres_formats::page::PageMut;
use postgres_formats::record::{BlockImage, BlockRef, DecodedRecord, ImageCompression, RecordHeader, RelFile};
use postgres_formats::version::PgVersion;
use proptest::collection::vec;
use proptest::prelude::*;
use redo::mask::{PageKind, mask_for_files, mask_page};
use redo::{RedoContext, apply_record};

type Page = [u8; 8192];

/// A page with some items, and damage at some places.
fn page() -> impl Strategy<Value = Box<Page>> {
    let special = prop_oneof![Just(0u16), Just(8), Just(16)];
    let items = vec(vec(small_byte(), 0..80), 0..20);
    let damage = vec((prop_oneof![0usize..64, 0usize..8192, 8160usize..8192], any::<u8>()), 0..6);
    (special, items, damage, any::<u32>()).prop_map(|(special, items, damage, ids)| {
        let mut bytes = Box::new([0; 8192]);
        let mut page = PageMut::new(&mut *bytes);
        page.init(special);
        for (item, offset) in items.iter().zip(1..) {
            page.insert_item(item, offset).expect("the page has room for so few");
        }
        for (at, byte) in damage {
            bytes[at] = byte;
        }
        if ids % 4 == 0 {
            bytes[8184..].copy_from_slice(&[0, 0, 0, 0, (ids >> 8) as u8, 0, (ids >> 16) as u8, 0xF0]);
        }
        bytes
    })
}

/// Mostly small, so that counts, sizes and offsets are often plausible.
fn small_byte() -> impl Strategy<Value = u8> {
    prop_oneof![4 => Just(0u8), 4 => 0u8..20, 1 => any::<u8>()]
}

#[derive(Debug)]
struct Block {
    id: u8,
    fork: u8,
    blkno: u32,
    will_init: bool,
    data: Vec<u8>,
    image: Option<(Vec<u8>, u16, u16, u8, bool)>,
}

fn block() -> impl Strategy<Value = Block> {
    let image = (vec(any::<u8>(), 0..200), any::<u16>(), any::<u16>(), any::<u8>(), any::<bool>());
    let image = prop_oneof![9 => Just(None), 1 => image.prop_map(Some)];
    let data = vec(small_byte(), 0..120);
    (0u8..6, 0u8..4, 0u32..6, any::<bool>(), data, image).prop_map(|(id, fork, blkno, will_init, data, image)| Block {
        id,
        fork,
        blkno,
        will_init,
        data,
        image,
    })
}

fn version() -> impl Strategy<Value = PgVersion> {
    (0..PgVersion::ALL.len()).prop_map(|i| PgVersion::ALL[i])
}

fn blocks_of(blocks: &[Block]) -> Vec<BlockRef<'_>> {
    let compression = [None, Some(ImageCompression::Pglz), Some(ImageCompression::Lz4), Some(ImageCompression::Zstd)];
    blocks
        .iter()
        .map(|b| BlockRef {
            id: b.id,
            rel: RelFile::default(),
            fork: b.fork,
            blkno: b.blkno,
            will_init: b.will_init,
            data: &b.data,
            image: b.image.as_ref().map(|(bytes, hole_offset, hole_length, kind, apply)| BlockImage {
                bytes,
                hole_offset: *hole_offset,
                hole_length: *hole_length,
                compression: compression[usize::from(kind % 4)],
                apply: *apply,
            }),
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_record_panics_on_any_page(
        mut page in page(),
        version in version(),
        rmid in prop_oneof![9 => 9u8..21, 1 => any::<u8>()],
        opcode in 0u8..16,
        main in vec(small_byte(), 0..100),
        blocks in vec(block(), 1..4),
        log_hints in any::<bool>(),
    ) {
        let header = RecordHeader { total_len: 0, xid: 9, prev: 0, info: opcode << 4, rmid, crc: 0 };
        let refs = blocks_of(&blocks).into_iter().collect();
        let record = DecodedRecord { version, header, blocks: refs, origin: None, top_xid: None, main_data: &main };
        let ctx = RedoContext { version, data_checksums: false, wal_log_hints: log_hints };
        for block in &blocks {
            let _ = apply_record(&ctx, &mut page, &record, block.id, u64::MAX);
        }
    }

    #[test]
    fn no_page_panics_under_any_mask(page in page(), rmid in 0u8..22, fork in 0u8..4) {
        mask_page(rmid, 7, &mut page.clone());
        let kind = PageKind::guess(fork, &page);
        mask_for_files(kind, &mut page.clone());
    }
}
