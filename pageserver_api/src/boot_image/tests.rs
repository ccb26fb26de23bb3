//! Round trips, and refusal of any modified input.

use proptest::prelude::*;
use utils::lsn::Lsn;

use super::*;
use crate::reltag::RelTag;

fn rel(relnode: u32) -> RelTag {
    RelTag { spcnode: 1663, dbnode: 5, relnode, forknum: (relnode % 3) as u8 }
}

fn manifest(relations: usize) -> Manifest {
    let relations = (0..relations as u32).map(|n| RelationSize { rel: rel(n), blocks: n * 7 }).collect();
    Manifest {
        lsn: Lsn(0x1_2345_6788),
        pg_version: 15,
        catalog_version: 202_209_061,
        data_checksums: true,
        system_identifier: 77,
        relations,
    }
}

fn catalog(blocks: u32) -> CatalogIndex {
    CatalogIndex((0..blocks).map(|n| CatalogBlock { rel: rel(n / 3), block: n % 3, crc: n * 99 }).collect())
}

fn sums(files: usize) -> Sums {
    let sum = |n: usize| Sum { path: format!("upper/with a blank/{n}"), size: n as u64, crc: n as u32 * 1_000_003 };
    Sums((0..files).map(sum).collect())
}

#[test]
fn round_trips() {
    for count in [0, 1, 50] {
        assert_eq!(Manifest::decode(&manifest(count).encode()), Ok(manifest(count)));
        assert_eq!(CatalogIndex::decode(&catalog(count as u32).encode()), Ok(catalog(count as u32)));
        assert_eq!(Sums::decode(sums(count).encode().as_bytes()), Ok(sums(count)));
    }
    let index = catalog(50);
    assert_eq!(index.find(rel(4), 2), Some((14, 14 * 99)));
    assert_eq!(index.find(rel(4), 3), None);
}

#[test]
fn paths() {
    let manifest = manifest(0);
    let path = |spcnode, forknum| manifest.path(RelTag { spcnode, dbnode: 5, relnode: 9, forknum });
    assert_eq!(path(1663, 0), "base/5/9");
    assert_eq!(path(1664, 2), "global/9_vm");
    assert_eq!(path(16400, 1), "pg_tblspc/16400/PG_15_202209061/5/9_fsm");
}

#[test]
fn entries_out_of_order_are_refused() {
    let mut one = manifest(3);
    one.relations.swap(0, 1);
    assert!(Manifest::decode(&one.encode()).is_err());
    let mut one = catalog(3);
    one.0.swap(0, 1);
    assert!(CatalogIndex::decode(&one.encode()).is_err());
}

proptest! {
    #[test]
    fn damage_is_noticed(at in 0usize..10_000, flip in 1u8..=255, cut in any::<bool>()) {
        let files = [manifest(20).encode(), catalog(20).encode(), sums(20).encode().into_bytes()];
        for (number, mut bytes) in files.into_iter().enumerate() {
            let at = at % bytes.len();
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] ^= flip;
            }
            let refused = match number {
                0 => Manifest::decode(&bytes).is_err(),
                1 => CatalogIndex::decode(&bytes).is_err(),
                _ => Sums::decode(&bytes).is_err(),
            };
            prop_assert!(refused, "file {number}");
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let with = |magic: &[u8]| [magic, &bytes].concat();
        let _ = Manifest::decode(&with(b"PGSBOOTM\0\0\0\x01"));
        let _ = CatalogIndex::decode(&with(b"PGSBOOTC\0\0\0\x01"));
        let _ = Sums::decode(&bytes);
    }
}

/// Written by a version of November 2026; computes keep such files.
#[test]
fn the_first_formats_are_read_and_written_for_ever() {
    let rel = RelTag { spcnode: 1663, dbnode: 5, relnode: 1259, forknum: 0 };
    let manifest = Manifest {
        lsn: Lsn(0x0102_0304_0506),
        pg_version: 17,
        catalog_version: 202_406_281,
        data_checksums: true,
        system_identifier: 7_000_000_000_000_000_001,
        relations: vec![RelationSize { rel, blocks: 14 }],
    };
    let index = CatalogIndex(vec![CatalogBlock { rel, block: 3, crc: 0xDEAD_BEEF }]);
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(
        hex(manifest.encode()),
        "504753424f4f544d000000010000010203040506000000110c107989016124fee993bc00010000000000000001000006\
         7f00000005000004eb000000000ea04d55d4"
    );
    assert_eq!(
        hex(index.encode()),
        "504753424f4f54430000000100000000000000010000067f00000005000004eb0000000003deadbeef4dc9eefc"
    );
    let sums = Sums(vec![Sum { path: "upper/PG_VERSION".to_owned(), size: 3, crc: 0x0123_4567 }]);
    assert_eq!(sums.encode(), "01234567 3 upper/PG_VERSION\nc510d21a end\n");
}
