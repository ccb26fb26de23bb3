//! Round trip, golden bytes, and damage to every byte.

use proptest::prelude::*;
use utils::id::TenantId;

use super::*;
use errors::ErrorKind;

fn sample() -> Manifest {
    let delta = LayerEntry {
        is_delta: true,
        keys: (Key::MIN, Key::MAX),
        lsns: (Lsn(0x101), Lsn(0x201)),
        generation: 1,
        id_in_name: true,
        file_size: 0x3000,
        identity: LayerIdentity { file_id: 0x77, tail_offset: 0x2000, filter_blocks: 5 },
        visible: Some(Visible { keys: (Key::MIN, Key::MAX), lsns: (Lsn(0x181), Lsn(0x201)) }),
    };
    let image = LayerEntry {
        is_delta: false,
        keys: (Key::MIN, Key { field6: 7, ..Key::MIN }),
        lsns: (Lsn(0x100), Lsn(0x101)),
        generation: 1,
        id_in_name: false,
        file_size: 0x2000,
        identity: LayerIdentity { file_id: 0x88, tail_offset: 0x1000, filter_blocks: 0 },
        visible: None,
    };
    Manifest {
        tenant_shard_id: TenantShardId::unsharded(TenantId::from([0x11; 16])),
        timeline_id: TimelineId::from([0x22; 16]),
        generation: 3,
        in_bucket: true,
        deleted: false,
        wal_source: Some(Told("x=y".to_owned())),
        wal_log_hints_changes: vec![(Lsn(0x1F0), true)],
        origin: Origin {
            pg_version: PgVersion::V15,
            system_identifier: 0x0102_0304_0506_0708,
            wal_segment_size: 16 << 20,
            data_checksums: true,
            wal_log_hints: false,
            import_lsn: Lsn(0x100),
            consistent_lsn: Lsn(0x180),
            ancestor: Some(Ancestor { timeline_id: TimelineId::from([0x33; 16]), lsn: Lsn(0x100) }),
        },
        disk_consistent_lsn: Lsn(0x200),
        prev_record_lsn: Lsn(0x1F8),
        edition: 0x44,
        gc_cutoff: Lsn(0x190),
        retained: vec![Lsn(0x185)],
        layers: vec![image, delta],
        kept: Kept {
            holds: vec![
                Hold { lsn: Lsn(0x185), until: None, name: "h".to_owned() },
                Hold { lsn: Lsn(0x1A0), until: Some(0x66), name: String::new() },
            ],
            arrived: vec![(0x65, Lsn(0x1F8))],
            limits: Limits { pitr_interval: Some(0x67), gc_horizon: None, history_max_bytes: Some(0x68) },
            archived_at: Some(0x69),
        },
        detached: false,
    }
}

fn path() -> &'static Utf8Path {
    Utf8Path::new("/t/manifest")
}

#[test]
fn golden_bytes() {
    let expected = concat!(
        "5047534d414e494600000006",
        "111111111111111111111111111111110000",
        "22222222222222222222222222222222",
        "000000030100010000000000000003783d79",
        "0000000f01020304050607080100000001000000000000000100",
        "0000000000000180",
        "01333333333333333333333333333333330000000000000100",
        "000000000000000100000000000001f001",
        "000000000000020000000000000001f8",
        "00000000000000440000000000000190",
        "00000000000000010000000000000185",
        "0000000000000002",
        "00000000000000000000000000000000000000000000000000000000000000000000000007",
        "0000000000000100000000000000010100000001000000000000002000",
        "000000000000008800000000000010000000000000",
        "01000000000000000000000000000000000000ffffffffffffffffffffffffffffffffffff",
        "0000000000000101000000000000020100000001010000000000003000",
        "000000000000007700000000000020000000000501",
        "000000000000000000000000000000000000ffffffffffffffffffffffffffffffffffff",
        "00000000000001810000000000000201",
        "0000000000000002",
        "0000000000000185000000000000000001",
        "68",
        "00000000000001a0010000000000000066",
        "0000000000000000",
        "0000000000000001",
        "000000000000006500000000000001f8",
        "010000000000000067",
        "00",
        "010000000000000068",
        "010000000000000069",
        "00",
        "8f3fbb99",
    );
    let hex: String = sample().encode().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected);
}

/// As version 5 wrote it.
#[test]
fn bytes_that_end_before_what_is_kept_are_read() {
    let former = concat!(
        "5047534d414e494600000005",
        "111111111111111111111111111111110000",
        "22222222222222222222222222222222",
        "000000030100010000000000000003783d79",
        "0000000f01020304050607080100000001000000000000000100",
        "0000000000000180",
        "01333333333333333333333333333333330000000000000100",
        "000000000000000100000000000001f001",
        "000000000000020000000000000001f8",
        "00000000000000440000000000000190",
        "00000000000000010000000000000185",
        "0000000000000002",
        "00000000000000000000000000000000000000000000000000000000000000000000000007",
        "0000000000000100000000000000010100000001000000000000002000",
        "000000000000008800000000000010000000000000",
        "01000000000000000000000000000000000000ffffffffffffffffffffffffffffffffffff",
        "0000000000000101000000000000020100000001010000000000003000",
        "000000000000007700000000000020000000000501",
        "000000000000000000000000000000000000ffffffffffffffffffffffffffffffffffff",
        "00000000000001810000000000000201",
        "66c868b2",
    );
    let bytes: Vec<u8> =
        (0..former.len()).step_by(2).map(|at| u8::from_str_radix(&former[at..at + 2], 16).unwrap()).collect();
    assert_eq!(Manifest::decode(path(), &bytes).unwrap(), Manifest { kept: Kept::default(), ..sample() });
}

/// As version 4 wrote it.
#[test]
fn former_bytes_are_read() {
    let former = concat!(
        "5047534d414e494600000004",
        "111111111111111111111111111111110000",
        "22222222222222222222222222222222",
        "000000030100010000000000000003783d79",
        "0000000f01020304050607080100000001000000000000000100",
        "0000000000000180",
        "01333333333333333333333333333333330000000000000100",
        "000000000000000100000000000001f001",
        "000000000000020000000000000001f8",
        "0000000000000002",
        "00000000000000000000000000000000000000000000000000000000000000000000000007",
        "00000000000001000000000000000101000000010000000000002000",
        "00000000000000880000000000001000",
        "01000000000000000000000000000000000000ffffffffffffffffffffffffffffffffffff",
        "00000000000001010000000000000201000000010000000000003000",
        "00000000000000770000000000002000",
        "e1e59177",
    );
    let bytes: Vec<u8> =
        (0..former.len()).step_by(2).map(|at| u8::from_str_radix(&former[at..at + 2], 16).unwrap()).collect();
    let kept = Kept::default();
    let mut expected = Manifest { edition: 0, gc_cutoff: Lsn::INVALID, retained: Vec::new(), kept, ..sample() };
    for entry in &mut expected.layers {
        (entry.id_in_name, entry.identity.filter_blocks, entry.visible) = (false, 0, None);
    }
    assert_eq!(Manifest::decode(path(), &bytes).unwrap(), expected);
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = sample().encode().unwrap();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let error = Manifest::decode(path(), &damaged).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
            assert!(error.to_string().contains("/t/manifest"), "{error}");
        }
    }
}

#[test]
fn every_truncation_is_noticed() {
    let bytes = sample().encode().unwrap();
    for len in 0..bytes.len() {
        assert_eq!(Manifest::decode(path(), &bytes[..len]).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(Manifest::decode(path(), &longer).is_err());
}

#[test]
fn other_versions_are_refused_as_such() {
    let mut bytes = sample().encode().unwrap();
    bytes.truncate(bytes.len() - CRC_LEN);
    bytes[11] = 9;
    let crc = utils::crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_be_bytes());
    assert_eq!(Manifest::decode(path(), &bytes).unwrap_err().kind(), ErrorKind::Invalid);
}

fn layer_entry() -> impl Strategy<Value = LayerEntry> {
    let key = any::<[u8; 18]>().prop_map(|bytes| Key::from_bytes(&bytes));
    let numbers = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u64>());
    (any::<bool>(), key.clone(), key, numbers).prop_map(|(is_delta, start, end, (low, high, generation, file_size))| {
        let identity = LayerIdentity { file_id: high, tail_offset: low, filter_blocks: generation };
        let (low, high) = if is_delta { (low, high) } else { (low / 2, low / 2 + 1) };
        let (keys, lsns, id_in_name) = ((start, end), (Lsn(low), Lsn(high)), low % 2 == 0);
        let visible = (low % 3 == 0).then_some(Visible { keys, lsns });
        LayerEntry { is_delta, keys, lsns, generation, id_in_name, file_size, identity, visible }
    })
}

proptest! {
    #[test]
    fn round_trip(layers in prop::collection::vec(layer_entry(), 0..20), lsn: u64, branch: Option<(u64, [u8; 16])>) {
        let mut manifest = sample();
        manifest.layers = layers;
        manifest.disk_consistent_lsn = Lsn(lsn);
        let ancestor = |(lsn, id)| Ancestor { timeline_id: TimelineId::from(id), lsn: Lsn(lsn) };
        manifest.origin.ancestor = branch.map(ancestor);
        let bytes = manifest.encode().unwrap();
        prop_assert_eq!(Manifest::decode(path(), &bytes).unwrap(), manifest);
    }

    #[test]
    fn arbitrary_bytes_are_refused_without_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Manifest::decode(path(), &body).is_err());
        // The same with valid magic, version and checksum, to reach the decoder behind them.
        let mut framed = [MAGIC.as_slice(), &FORMAT_VERSION.to_be_bytes(), &body].concat();
        let crc = utils::crc32c::crc32c(&framed);
        framed.extend_from_slice(&crc.to_be_bytes());
        if let Ok(manifest) = Manifest::decode(path(), &framed) {
            prop_assert_eq!(manifest.encode().unwrap(), framed);
        }
    }
}
