//! Pruning and freezing in the formats of 14, 16 and 17.

use postgres_formats::page::{ItemId, PageMut};
use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;

use crate::testing::{Sample, bytes, page_with};

fn tuples() -> Box<[u8; 8192]> {
    let tuple: Vec<u8> = (0..32).collect();
    page_with(0, &[&tuple[..]; 5])
}

fn line_pointers(page: &mut [u8; 8192]) -> Vec<ItemId> {
    let page = PageMut::new(page);
    (1..=page.max_offset()).map(|offset| page.item_id(offset).unwrap()).collect()
}

fn u16s(numbers: &[u16]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// Redirects 1 to 3, marks 2 dead, frees 4 and 5.
fn expected(trailing_unused: usize) -> Vec<ItemId> {
    let mut items = vec![ItemId::redirect(3), ItemId::DEAD, ItemId::normal(8160, 32)];
    items.extend(vec![ItemId::UNUSED; trailing_unused]);
    items
}

#[test]
fn prune_up_to_16() {
    let data = u16s(&[1, 3, 2, 4, 5]);
    let main = bytes(&[&[0; 4], &u16s(&[1, 1])]);
    for (version, trailing_unused) in [(PgVersion::V14, 2), (PgVersion::V15, 0), (PgVersion::V16, 0)] {
        let mut page = tuples();
        Sample::new(RmgrId::HEAP2, 0x10, &main).block(0, 0, &data).version(version).changes(0, &mut page);
        assert_eq!(line_pointers(&mut page), expected(trailing_unused), "{version:?}");
        assert_eq!(PageMut::new(&mut *page).upper(), 8160);
    }
}

#[test]
fn prune_since_17_compacts_under_a_cleanup_lock_only() {
    let data = u16s(&[1, 1, 3, 1, 2, 2, 4, 5]);
    for info in [0x10, 0x20, 0x30] {
        let mut page = tuples();
        let record = Sample::new(RmgrId::HEAP2, info, &[0, 0xE4]).block(0, 0, &data).version(PgVersion::V17);
        record.changes(0, &mut page);
        assert_eq!(line_pointers(&mut page), expected(0));

        let mut page = tuples();
        let record = Sample::new(RmgrId::HEAP2, info, &[0, 0xE0]).block(0, 0, &data).version(PgVersion::V18);
        record.changes(0, &mut page);
        let items = line_pointers(&mut page);
        assert_eq!((items.len(), items[2]), (3, ItemId::normal(8192 - 3 * 32, 32)), "no tuple moved");
    }
}

/// One plan for two tuples: xmax 0, masks, `t_xvac` becomes invalid.
const PLAN: [u8; 12] = [0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44, 0x04, 0, 2, 0];

fn assert_frozen(page: &mut [u8; 8192], frozen: &[u16]) {
    let page = PageMut::new(page);
    for offset in 1..=page.max_offset() {
        let Ok(tuple) = page.item(offset) else { continue };
        let is_frozen = frozen.contains(&offset);
        assert_eq!(tuple[4..12] == [0; 8], is_frozen, "{offset}");
        assert_eq!(tuple[18..22] == [0x11, 0x22, 0x33, 0x44], is_frozen, "{offset}");
    }
}

#[test]
fn freeze_in_all_formats() {
    let single = |offset: u8| [0, 0, 0, 0, offset, 0, 0x11, 0x22, 0x33, 0x44, 0x04, 0];
    let main = bytes(&[&[0; 4], &u16s(&[2])]);
    let mut page = tuples();
    let data = bytes(&[&single(2), &single(4)]);
    Sample::new(RmgrId::HEAP2, 0x30, &main).block(0, 0, &data).changes(0, &mut page);
    assert_frozen(&mut page, &[2, 4]);

    let mut page = tuples();
    let main = bytes(&[&[0; 4], &u16s(&[1]), &[0]]);
    let data = bytes(&[&PLAN, &u16s(&[2, 4])]);
    Sample::new(RmgrId::HEAP2, 0x30, &main).block(0, 0, &data).version(PgVersion::V16).changes(0, &mut page);
    assert_frozen(&mut page, &[2, 4]);

    // Conflict xid in the main data, plans first and their offsets last, one freed line pointer in between.
    let mut page = tuples();
    let data = bytes(&[&u16s(&[1, 0]), &PLAN, &u16s(&[1, 5]), &u16s(&[2, 4])]);
    let record = Sample::new(RmgrId::HEAP2, 0x20, &[0, 0x9C, 1, 2, 3, 4]).block(0, 0, &data);
    record.version(PgVersion::V17).changes(0, &mut page);
    assert_frozen(&mut page, &[2, 4]);
    assert_eq!(line_pointers(&mut page).len(), 4);
}

#[test]
fn fewer_offsets_than_plans_say() {
    let data = bytes(&[&u16s(&[1, 0]), &PLAN, &u16s(&[2])]);
    let record = Sample::new(RmgrId::HEAP2, 0x20, &[0, 0x10]).block(0, 0, &data).version(PgVersion::V17);
    assert!(record.apply(0, &mut tuples()).is_err());
}
