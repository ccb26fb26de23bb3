//! Cases that servers write rarely or never: visibility map block references (since 17.11 and 18.6), moved tuples.

use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;

use super::tuple::infomask;
use super::*;
use crate::Applied;
use crate::testing::{Sample, V15, XID, bytes, items, page_with};

/// A tuple with data "abcdefgh" at byte 24.
fn tuple(mask: u16) -> Vec<u8> {
    let mut tuple = vec![0xEE; 24];
    tuple[18..20].copy_from_slice(&0x6001u16.to_le_bytes());
    tuple[20..22].copy_from_slice(&mask.to_le_bytes());
    tuple[22] = 24;
    tuple.extend_from_slice(b"abcdefgh");
    tuple
}

fn vm_page() -> Box<[u8; 8192]> {
    let mut page = page_with(0, &[]);
    page[24..].fill(0xFF);
    page
}

#[test]
fn referenced_map_pages_lose_the_bits_of_the_heap_block() {
    for (rmgr, info, kept) in [
        (RmgrId::HEAP, opcode::INSERT, 0b1111_0011),
        (RmgrId::HEAP, opcode::INSERT | INIT_PAGE, 0b1111_0011),
        (RmgrId::HEAP, opcode::DELETE, 0b1111_0011),
        (RmgrId::HEAP, opcode::LOCK, 0b1111_0111),
        (RmgrId::HEAP2, 0x50, 0b1111_0011),
        (RmgrId::HEAP2, 0x60, 0b1111_0111),
    ] {
        let record = Sample::new(rmgr, info, &[0; 8]).block(0, 32672 + 5, &[]).vm(1, 1).version(PgVersion::V17);
        let mut page = vm_page();
        record.changes(1, &mut page);
        assert_eq!(page[25], kept, "{info:02X}");
        assert!(page[26..].iter().all(|b| *b == 0xFF));
        let mut clear = page_with(0, &[]);
        assert_eq!(record.apply(1, &mut clear).unwrap(), Applied::Unchanged);
    }
}

#[test]
fn an_update_clears_both_blocks_on_a_shared_map_page() {
    let main = |flags| bytes(&[&[0; 7], &[flags], &[0; 6]]);
    let update = |flags, old| {
        let record = Sample::new(RmgrId::HEAP, opcode::UPDATE, &main(flags)).block(0, 4, &[]).block(1, old, &[]);
        record.vm(2, 0).version(PgVersion::V18)
    };
    for (flags, old, byte24, byte25) in [(3, 1, 0b1111_0011, 0xFC), (2, 1, 0xFF, 0xFC), (3, 32673, 0xFF, 0xFC)] {
        let mut page = vm_page();
        update(flags, old).changes(2, &mut page);
        assert_eq!((page[24], page[25]), (byte24, byte25), "flags {flags}, old block {old}");
    }
    let mut page = vm_page();
    update(1, 32673).vm(3, 1).changes(3, &mut page);
    assert_eq!((page[24], page[25]), (0b1111_0011, 0xFF));
}

#[test]
fn update_takes_both_ends_from_the_old_tuple() {
    let main = bytes(&[&9u32.to_le_bytes(), &[1, 0], &[0x10, 0x60], &8u32.to_le_bytes(), &[2, 0]]);
    let data = bytes(&[&[3, 0], &[2, 0], &[1, 0, 2, 8, 24], &[0x77], b"XYZ"]);
    let record = Sample::new(RmgrId::HEAP, opcode::HOT_UPDATE, &main).block(0, 0x10002, &data);
    let mut page = page_with(0, &[&tuple(0xC9F0)]);
    record.changes(0, &mut page);
    let [old, new] = &items(&page)[..] else { panic!("two tuples") };
    assert_eq!(&new[..4], XID.to_le_bytes());
    assert_eq!(&new[4..8], [8, 0, 0, 0]);
    assert_eq!(&new[8..18], [0, 0, 0, 0, 1, 0, 2, 0, 2, 0]);
    assert_eq!(&new[18..24], [1, 0, 2, 8, 24, 0x77]);
    assert_eq!(&new[24..], b"abcXYZgh");
    // Moved and lock bits are cleared, keys-updated is set, the rest of the masks stays.
    assert_eq!(&old[4..24], [9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 2, 0, 0x01, 0x60, 0x00, 0x01, 24, 0xEE]);
    assert_eq!(&old[24..], b"abcdefgh");
}

/// `Heap/HOT_UPDATE+INIT` has a name but no server writes it: the old tuple would be on the page that starts empty.
#[test]
fn a_hot_update_cannot_start_its_page() {
    let main = bytes(&[&9u32.to_le_bytes(), &[1, 0], &[0, 0], &8u32.to_le_bytes(), &[2, 0]]);
    let data = bytes(&[&[1, 0, 2, 8, 24], &[0x77], b"XYZ"]);
    let record = Sample::new(RmgrId::HEAP, opcode::HOT_UPDATE | 0x80, &main).block(0, 1, &data).will_init();
    assert!(record.apply(0, &mut page_with(0, &[&tuple(0)])).is_err());
}

#[test]
fn shared_ends_must_be_on_the_same_page_and_in_the_tuple() {
    let main = bytes(&[&[0; 4], &[1, 0], &[0, 0x20], &[0; 4], &[2, 0]]);
    let data = bytes(&[&[9, 0], &[1, 0, 2, 8, 24], &[0x77]]);
    let record = Sample::new(RmgrId::HEAP, opcode::UPDATE, &main).block(0, 0, &data);
    assert!(record.apply(0, &mut page_with(0, &[&tuple(0)])).is_err(), "9 of 8 bytes");
    let main = bytes(&[&[0; 4], &[1, 0], &[0, 0x20], &[0; 4], &[1, 0]]);
    let data = bytes(&[&[2, 0], &[1, 0, 2, 8, 24], &[0x77]]);
    let record = Sample::new(RmgrId::HEAP, opcode::UPDATE, &main).block(0, 0, &data).block(1, 1, &[]);
    assert!(record.apply(0, &mut page_with(0, &[])).is_err());
}

#[test]
fn delete_variants() {
    for (flags, xmin, xmax, ctid) in [
        (0, 0xEEEE_EEEE, 9, [0, 0, 7, 0, 1, 0]),
        (0x08, 0, 0xEEEE_EEEE, [0, 0, 7, 0, 1, 0]),
        (0x10, 0xEEEE_EEEE, 9, [0xFF, 0xFF, 0xFF, 0xFF, 0xFD, 0xFF]),
    ] {
        let main = bytes(&[&9u32.to_le_bytes(), &[1, 0], &[0, flags]]);
        let mut page = page_with(0, &[&tuple(infomask::COMBO_CID)]);
        Sample::new(RmgrId::HEAP, opcode::DELETE, &main).block(0, 7, &[]).changes(0, &mut page);
        let tuple = &items(&page)[0];
        assert_eq!((&tuple[..4], &tuple[4..8]), (&u32::to_le_bytes(xmin)[..], &u32::to_le_bytes(xmax)[..]));
        assert_eq!((&tuple[12..18], &tuple[20..22]), (&ctid[..], &[0, 0][..]));
    }
}

#[test]
fn visible_sets_the_heap_lsn_only_where_hints_are_logged() {
    let record = Sample::new(RmgrId::HEAP2, 0x40, &[0, 0, 0, 0, 3]).vm(0, 0).block(1, 5, &[]);
    for (data_checksums, wal_log_hints) in [(false, false), (true, false), (false, true)] {
        let mut record = Sample { blocks: record.blocks.clone(), ..Sample::new(RmgrId::HEAP2, 0x40, &record.main) };
        record.ctx = crate::RedoContext { data_checksums, wal_log_hints, ..V15 };
        let mut page = page_with(0, &[]);
        assert_eq!(record.apply(1, &mut page).unwrap(), Applied::Changed);
        let page = PageMut::new(&mut *page);
        assert_eq!((page.flags(), page.lsn() != 0), (4, data_checksums || wal_log_hints));
    }
}
