//! Records built by hand decode to their parts, reduced ones to the requested parts; mutated ones never panic.

use proptest::prelude::*;

use super::*;
use crate::rmgr::RmgrId;
use crate::version::PgVersion;

/// An owned description of a record, which is encoded independently of `reduce`.
#[derive(Clone, Debug)]
struct Spec {
    version: PgVersion,
    blocks: Vec<BlockSpec>,
    origin: Option<u16>,
    top_xid: Option<u32>,
    main: Vec<u8>,
    long_main: bool,
}

#[derive(Clone, Debug)]
struct BlockSpec {
    id: u8,
    rel: u32,
    fork: u8,
    blkno: u32,
    will_init: bool,
    image: Option<ImageSpec>,
    data: Vec<u8>,
}

#[derive(Clone, Debug)]
struct ImageSpec {
    hole: Option<(u16, u16)>,
    method: u8,
    apply: bool,
}

impl ImageSpec {
    fn info(&self, version: PgVersion) -> u8 {
        let hole = u8::from(self.hole.is_some());
        match (version, self.method) {
            (PgVersion::V14, 0) => hole | (u8::from(self.apply) << 2),
            (PgVersion::V14, _) => hole | (u8::from(self.apply) << 2) | 2,
            (_, 0) => hole | (u8::from(self.apply) << 1),
            (_, method) => hole | (u8::from(self.apply) << 1) | (2 << method),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let hole = usize::from(self.hole.map_or(0, |h| h.1));
        let len = if self.method == 0 { 8192 - hole } else { 100 };
        (0..len).map(|i| i as u8).collect()
    }
}

impl Spec {
    fn bytes(&self) -> Vec<u8> {
        let (mut heads, mut payload, mut last_rel) = (vec![], vec![], None);
        for block in &self.blocks {
            let same = last_rel == Some(block.rel);
            let flags = block.fork
                | if block.image.is_some() { 0x10 } else { 0 }
                | if block.data.is_empty() { 0 } else { 0x20 }
                | if block.will_init { 0x40 } else { 0 }
                | if same { 0x80 } else { 0 };
            heads.extend_from_slice(&[block.id, flags]);
            heads.extend_from_slice(&(block.data.len() as u16).to_le_bytes());
            if let Some(image) = &block.image {
                let bytes = image.bytes();
                heads.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
                heads.extend_from_slice(&image.hole.map_or(0, |h| h.0).to_le_bytes());
                heads.push(image.info(self.version));
                if let (Some((_, len)), true) = (image.hole, image.method != 0) {
                    heads.extend_from_slice(&len.to_le_bytes());
                }
                payload.extend(bytes);
            }
            if !same {
                [1663, 5, block.rel].iter().for_each(|v: &u32| heads.extend_from_slice(&v.to_le_bytes()));
            }
            heads.extend_from_slice(&block.blkno.to_le_bytes());
            payload.extend_from_slice(&block.data);
            last_rel = Some(block.rel);
        }
        if let Some(origin) = self.origin {
            heads.push(253);
            heads.extend_from_slice(&origin.to_le_bytes());
        }
        if let Some(xid) = self.top_xid {
            heads.push(252);
            heads.extend_from_slice(&xid.to_le_bytes());
        }
        if self.long_main || self.main.len() > 255 {
            heads.push(254);
            heads.extend_from_slice(&(self.main.len() as u32).to_le_bytes());
        } else {
            heads.extend_from_slice(&[255, self.main.len() as u8]);
        }
        let total_len = (24 + heads.len() + payload.len() + self.main.len()) as u32;
        let mut header = RecordHeader { total_len, xid: 7, prev: 0x1122_3344_5566, info: 0x20, rmid: 10, crc: 0 };
        let mut record = [&header.encode()[..], &heads, &payload, &self.main].concat();
        header.crc = record_crc(&record).unwrap();
        record[..24].copy_from_slice(&header.encode());
        record
    }
}

fn image_spec(version: PgVersion) -> impl Strategy<Value = ImageSpec> {
    let methods = if version == PgVersion::V14 { 0..2u8 } else { 0..4u8 };
    let hole = proptest::option::of((1..4096u16, 1..4096u16));
    (hole, methods, any::<bool>()).prop_map(|(hole, method, apply)| ImageSpec { hole, method, apply })
}

fn block_spec(version: PgVersion) -> impl Strategy<Value = BlockSpec> {
    let data = proptest::collection::vec(any::<u8>(), 0..40);
    let image = proptest::option::of(image_spec(version));
    (0..2u32, 0..4u8, any::<u32>(), any::<bool>(), image, data).prop_map(
        |(rel, fork, blkno, will_init, image, data)| BlockSpec { id: 0, rel, fork, blkno, will_init, image, data },
    )
}

fn spec() -> impl Strategy<Value = Spec> {
    proptest::sample::select(&PgVersion::ALL[..]).prop_flat_map(|version| {
        let blocks = proptest::collection::vec((1..3u8, block_spec(version)), 0..6);
        let main = proptest::collection::vec(any::<u8>(), 0..300);
        (blocks, any::<Option<u16>>(), any::<Option<u32>>(), main, any::<bool>()).prop_map(
            move |(gaps, origin, top_xid, main, long_main)| {
                let mut next = 0;
                let number = |(gap, block): (u8, BlockSpec)| {
                    next += gap;
                    BlockSpec { id: next - 1, ..block }
                };
                let blocks = gaps.into_iter().map(number).collect();
                Spec { version, blocks, origin, top_xid, main, long_main }
            },
        )
    })
}

proptest! {
    #[test]
    fn decodes_what_was_encoded(spec in spec()) {
        let bytes = spec.bytes();
        prop_assert!(check_crc(&bytes));
        let record = decode(spec.version, &bytes).unwrap();
        prop_assert_eq!(record.main_data, &spec.main);
        prop_assert_eq!((record.origin, record.top_xid), (spec.origin, spec.top_xid));
        prop_assert_eq!(record.blocks.len(), spec.blocks.len());
        for (block, want) in record.blocks.iter().zip(&spec.blocks) {
            prop_assert_eq!((block.id, block.fork, block.blkno), (want.id, want.fork, want.blkno));
            prop_assert_eq!((block.rel.spc, block.rel.db, block.rel.rel), (1663, 5, want.rel));
            prop_assert_eq!((block.will_init, block.data), (want.will_init, &want.data[..]));
            prop_assert_eq!(block.image.is_some(), want.image.is_some());
            if let (Some(image), Some(want)) = (block.image, &want.image) {
                prop_assert_eq!(image.bytes, &want.bytes()[..]);
                prop_assert_eq!((image.hole_offset, image.hole_length), want.hole.unwrap_or_default());
                prop_assert_eq!(image.apply, want.apply);
                let methods = [None, Some(ImageCompression::Pglz), Some(ImageCompression::Lz4),
                    Some(ImageCompression::Zstd)];
                prop_assert_eq!(image.compression, methods[usize::from(want.method)]);
            }
        }
    }

    #[test]
    fn reduced_record_is_the_original_restricted_to_its_block(spec in spec(), pick in 0..8u8, lead in 0..3usize) {
        let bytes = spec.bytes();
        let mut out = vec![0xEE; lead];
        let record = decode(spec.version, &bytes).unwrap();
        reduce_to_block(&record, pick, &mut out);
        let reduced = &out[lead..];
        prop_assert!(out[..lead].iter().all(|b| *b == 0xEE));
        prop_assert!(check_crc(reduced));
        prop_assert!(reduced.len() <= bytes.len());
        let mut want = record.clone();
        want.header.total_len = reduced.len() as u32;
        want.header.crc = record_crc(reduced).unwrap();
        for block in want.blocks.iter_mut().filter(|b| b.id != pick) {
            (block.image, block.data) = (None, &[]);
        }
        prop_assert_eq!(decode(spec.version, reduced).unwrap(), want);
    }

    #[test]
    fn mutated_records_never_panic(spec in spec(), at in any::<proptest::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = spec.bytes();
        let at = at.index(bytes.len());
        let changed = bytes[at] != byte;
        bytes[at] = byte;
        let crc_field_or_padding = (18..20).contains(&at);
        if changed && !crc_field_or_padding {
            prop_assert!(!check_crc(&bytes));
        }
        for version in PgVersion::ALL {
            let _ = decode(version, &bytes);
        }
    }

    #[test]
    fn random_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), fix in any::<bool>()) {
        if let (true, len, Some(head)) = (fix, bytes.len() as u32, bytes.first_chunk_mut::<4>()) {
            *head = len.to_le_bytes();
        }
        for version in PgVersion::ALL {
            let _ = decode(version, &bytes);
        }
    }
}

fn plain(version: PgVersion, blocks: Vec<BlockSpec>) -> Spec {
    Spec { version, blocks, origin: None, top_xid: None, main: vec![1, 2, 3], long_main: false }
}

fn block(id: u8) -> BlockSpec {
    BlockSpec { id, rel: 9, fork: 0, blkno: 1, will_init: false, image: None, data: vec![5] }
}

fn error_after(spec: &Spec, offset: usize, byte: u8) -> RecordError {
    let mut bytes = spec.bytes();
    bytes[offset] = byte;
    decode(spec.version, &bytes).unwrap_err()
}

#[test]
fn each_broken_rule_has_its_error() {
    let two = plain(PgVersion::V15, vec![block(0), block(1)]);
    // The first block header takes 20 bytes at offset 24, the second (same relation) 8 bytes at offset 44.
    assert_eq!(error_after(&two, 44, 0), RecordError::BlockOrder(0));
    assert_eq!(error_after(&two, 24, 1), RecordError::BlockOrder(1));
    assert_eq!(error_after(&two, 44, 33), RecordError::FragmentId(33));
    assert_eq!(error_after(&two, 25, 0x24), RecordError::Fork { id: 0, fork: 4 });
    assert_eq!(error_after(&two, 25, 0x00), RecordError::DataFlag { id: 0, data_len: 1 });
    assert_eq!(error_after(&two, 26, 0), RecordError::DataFlag { id: 0, data_len: 0 });
    assert_eq!(error_after(&two, 25, 0xA0), RecordError::NoPreviousRel(0));
    assert_eq!(error_after(&two, 53, 4), RecordError::PayloadLength { announced: 6, left: 5 });
    assert_eq!(error_after(&two, 17, 22), RecordError::Header(HeaderError::InvalidRmgr(22)));
    assert!(matches!(error_after(&two, 0, 60), RecordError::Length { total_len: 60, .. }));
    assert_eq!(error_after(&two, 0, 3), RecordError::Header(HeaderError::TooShort(3)));
}

#[test]
fn impossible_images_are_refused() {
    let image = ImageSpec { hole: Some((100, 50)), method: 0, apply: true };
    let spec = plain(PgVersion::V15, vec![BlockSpec { image: Some(image), ..block(0) }]);
    // Image header at 28: length 28..30, hole offset 30..32, flags 32.
    let shape = |error| matches!(error, RecordError::ImageShape { id: 0, .. });
    assert!(shape(error_after(&spec, 30, 0)));
    assert!(shape(error_after(&spec, 31, 0x20)));
    assert!(shape(error_after(&spec, 32, 0x02)));
    assert_eq!(error_after(&spec, 32, 0x23), RecordError::ImageFlags { id: 0, info: 0x23 });
    assert_eq!(error_after(&spec, 32, 0x0C), RecordError::ImageFlags { id: 0, info: 0x0C });
    let mut bytes = spec.bytes();
    bytes[28..30].copy_from_slice(&8192u16.to_le_bytes());
    assert!(shape(decode(PgVersion::V15, &bytes).unwrap_err()));
    // 14 has other bits: 0x03 is a compressed image with a hole there, and 15's 0x08 is unknown.
    let old = Spec { version: PgVersion::V14, ..spec };
    assert_eq!(error_after(&old, 32, 0x08), RecordError::ImageFlags { id: 0, info: 0x08 });
}

#[test]
fn custom_resource_managers_came_with_15() {
    let mut bytes = plain(PgVersion::V14, vec![]).bytes();
    bytes[17] = 128;
    assert!(decode(PgVersion::V14, &bytes).is_err());
    assert!(decode(PgVersion::V15, &bytes).is_ok());
}

#[test]
fn names_follow_the_version() {
    let name = |version, rmid, info| crate::rmgr::record_name(version, RmgrId(rmid), info);
    assert_eq!(name(PgVersion::V15, 10, 0x80), "Heap/INSERT+INIT");
    assert_eq!(name(PgVersion::V15, 1, 0x80), "Transaction/COMMIT");
    assert_eq!(name(PgVersion::V16, 9, 0x10), "Heap2/PRUNE");
    assert_eq!(name(PgVersion::V17, 9, 0x10), "Heap2/PRUNE_ON_ACCESS");
    assert_eq!(name(PgVersion::V14, 4, 0x10), "Database/DROP");
    assert_eq!(name(PgVersion::V15, 4, 0x10), "Database/CREATE_WAL_LOG");
    assert_eq!(name(PgVersion::V16, 0, 0xE0), "XLOG/UNKNOWN");
    assert_eq!(name(PgVersion::V17, 0, 0xE0), "XLOG/CHECKPOINT_REDO");
    assert_eq!(name(PgVersion::V15, 200, 0), "custom/UNKNOWN");
}
