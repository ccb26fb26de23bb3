//! For any bytes of page and record: a result or an error, never a panic; a failed apply leaves the page unchanged;
//! allocations stay small.

use allocation_counter::measure;
use postgres_formats::page::{ItemId, PageMut};
use postgres_formats::record::{BlockImage, BlockRef, DecodedRecord, ImageCompression, RecordHeader, RelFile};
use postgres_formats::version::PgVersion;
use proptest::collection::vec;
use proptest::prelude::*;
use redo::mask::{PageKind, mask_for_files, mask_page};
use redo::{Applied, RedoContext, apply_record};

type Page = [u8; 8192];

/// A page with some items, and some damaged bytes.
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

/// More than any record needs at once.
const MAX_ALLOCATED: u64 = 1 << 20;

/// Applies the record twice, to two copies of the page.
fn keeps_the_contract(ctx: &RedoContext, page: &mut Page, record: &DecodedRecord<'_>, id: u8) {
    let before = *page;
    let mut applied = None;
    let allocated = measure(|| applied = Some(apply_record(ctx, page, record, id, u64::MAX)));
    assert!(allocated.bytes_max <= MAX_ALLOCATED, "{} bytes allocated", allocated.bytes_max);
    let (applied, mut again) = (applied.expect("it was called"), before);
    let applied_again = apply_record(ctx, &mut again, record, id, u64::MAX);
    assert_eq!(format!("{applied:?}"), format!("{applied_again:?}"));
    assert!(*page == again, "the second time gave another page");
    assert!(matches!(applied, Ok(Applied::Changed)) || *page == before, "the page changed: {applied:?}");
}

/// A thousand line pointers that share one posting list tuple as long as the page, to be merged into one.
#[test]
fn overlapping_posting_lists_are_not_piled_up() {
    let mut bytes = [0; 8192];
    let mut page = PageMut::new(&mut bytes);
    page.init(16);
    let (items, at, count) = (1000, 4200, 600u16);
    page.set_lower(24 + 4 * items);
    page.set_upper(4200);
    for offset in 1..=items {
        page.set_item_id(offset, ItemId::normal(at, 3900)).expect("the line pointer is there");
    }
    let [list, flags] = [16u16.to_le_bytes(), (0x2000 | count).to_le_bytes()];
    let info = (0x2000u16 | 3900).to_le_bytes();
    page.put(at.into(), &[&[0, 0], &list[..], &flags, &info].concat()).expect("the header fits");
    let mut interval = vec![1, 0];
    interval.extend_from_slice(&items.to_le_bytes());
    let block =
        BlockRef { id: 0, rel: RelFile::default(), fork: 0, blkno: 1, will_init: false, image: None, data: &interval };
    let header = RecordHeader { total_len: 0, xid: 9, prev: 0, info: 0x60, rmid: 11, crc: 0 };
    let version = PgVersion::V15;
    let blocks = [block].into_iter().collect();
    let record = DecodedRecord { version, header, blocks, origin: None, top_xid: None, main_data: &[1, 0] };
    let ctx = RedoContext { version, data_checksums: false, wal_log_hints: false };
    let error = apply_record(&ctx, &mut bytes.clone(), &record, 0, u64::MAX).unwrap_err().to_string();
    assert!(error.contains("posting list tuple would be too long"), "{error}");
    keeps_the_contract(&ctx, &mut bytes, &record, 0);
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
            keeps_the_contract(&ctx, &mut page, &record, block.id);
        }
    }

    #[test]
    fn no_page_panics_under_any_mask(page in page(), rmid in 0u8..22, fork in 0u8..4) {
        mask_page(rmid, 7, &mut page.clone());
        let kind = PageKind::guess(fork, &page);
        mask_for_files(kind, &mut page.clone());
    }
}
