//! Rare variants: splits within a posting list, 18's cycle id, damaged lists.

use postgres_formats::page::{PageBytes, PageMut};
use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;

use super::special::{CYCLE_ID, FLAGS, NEXT, PREV, SPECIAL_SIZE, flag};
use super::*;
use crate::page::RedoPage;
use crate::testing::{Sample, bytes, items, page_with};

/// A plain leaf tuple of 16 bytes for heap tuple (0, `tid`).
fn plain(tid: u16, key: u8) -> Vec<u8> {
    bytes(&[&[0, 0, 0, 0], &tid.to_le_bytes(), &16u16.to_le_bytes(), &[key; 8]])
}

/// A posting list tuple for heap tuples (0, n) for n in `tids`.
fn posting(tids: &[u16], key: u8) -> Vec<u8> {
    let mut tuple = plain(0, key);
    let list: Vec<u8> = tids.iter().flat_map(|tid| bytes(&[&[0; 4], &tid.to_le_bytes()])).collect();
    let size = (16 + list.len()).next_multiple_of(8);
    tuple.extend(list);
    tuple.resize(size, 0);
    tuple[2..4].copy_from_slice(&16u16.to_le_bytes());
    tuple[4..6].copy_from_slice(&(0x2000 | tids.len() as u16).to_le_bytes());
    tuple[6..8].copy_from_slice(&(0x2000 | size as u16).to_le_bytes());
    tuple
}

fn leaf(tuples: &[Vec<u8>]) -> Box<PageBytes> {
    let tuples: Vec<&[u8]> = tuples.iter().map(Vec::as_slice).collect();
    let mut page = page_with(16, &tuples);
    PageMut::new(&mut *page).put_special(SPECIAL_SIZE, FLAGS, &(flag::LEAF | flag::HAS_GARBAGE).to_le_bytes()).unwrap();
    PageMut::new(&mut *page).put_special(SPECIAL_SIZE, CYCLE_ID, &[5, 0]).unwrap();
    page
}

fn special(page: &mut PageBytes) -> (u32, u32, u16, u16) {
    let page = PageMut::new(page);
    let u16_at = |at| page.special_u16(16, at).unwrap();
    let u32_at = |at| page.special_u32(16, at).unwrap();
    (u32_at(PREV), u32_at(NEXT), u16_at(FLAGS), u16_at(CYCLE_ID))
}

fn split_main(first_right: u16, new_item: u16, posting_index: u16) -> Vec<u8> {
    bytes(&[&[0; 4], &first_right.to_le_bytes(), &new_item.to_le_bytes(), &posting_index.to_le_bytes()])
}

/// The original page: rightmost, three items, the second a posting list.
fn original() -> Box<PageBytes> {
    leaf(&[plain(1, 1), posting(&[10, 20, 30], 2), plain(3, 3)])
}

#[test]
fn right_split_within_a_posting_list() {
    // The new item for (0, 25) goes to the right of the posting list, which stays left and takes its TID.
    let data = bytes(&[&plain(25, 2), &plain(0, 9)]);
    let main = split_main(3, 3, 2);
    let record = Sample::new(RmgrId::BTREE, opcode::SPLIT_R, &main).block(0, 4, &data).block(1, 8, &[]).will_init();
    let mut page = original();
    record.changes(0, &mut page);
    assert_eq!(items(&page), [plain(0, 9), plain(1, 1), posting(&[10, 20, 25], 2)]);
    assert_eq!(special(&mut page), (0, 8, flag::LEAF | flag::INCOMPLETE_SPLIT, 0));
}

#[test]
fn left_split_within_a_posting_list() {
    let data = bytes(&[&plain(15, 2), &plain(0, 9)]);
    let main = split_main(3, 3, 1);
    let record = Sample::new(RmgrId::BTREE, opcode::SPLIT_L, &main).block(0, 4, &data).block(1, 8, &[]).will_init();
    let mut page = original();
    record.changes(0, &mut page);
    let expected = [plain(0, 9), plain(1, 1), posting(&[10, 15, 20], 2), plain(30, 2)];
    assert_eq!(items(&page), expected, "the new item comes last and has the list's last TID");
}

#[test]
fn left_split_puts_the_new_item_in_its_place() {
    let data = bytes(&[&plain(7, 7), &plain(0, 9)]);
    let record = |new_item| {
        let main = split_main(3, new_item, 0);
        Sample::new(RmgrId::BTREE, opcode::SPLIT_L, &main).block(0, 4, &data).block(1, 8, &[])
    };
    let keys = |page: &PageBytes| items(page).iter().map(|item| item[8]).collect::<Vec<u8>>();
    for (new_item, expected) in [(1, [9, 7, 1, 2]), (2, [9, 1, 7, 2]), (3, [9, 1, 2, 7])] {
        let mut page = original();
        record(new_item).changes(0, &mut page);
        assert_eq!(keys(&page), expected);
    }
}

#[test]
fn right_page_links_to_the_old_right_sibling() {
    let area = bytes(&[&plain(3, 3), &plain(2, 2), &plain(1, 1)]);
    let record = |has_sibling: bool| {
        let record = Sample::new(RmgrId::BTREE, opcode::SPLIT_R, &split_main(3, 3, 0)).block(0, 4, &[]);
        let record = record.block(1, 8, &area).will_init();
        if has_sibling { record.block(2, 6, &[]) } else { record }
    };
    let mut page = original();
    record(true).changes(1, &mut page);
    assert_eq!(items(&page), [plain(1, 1), plain(2, 2), plain(3, 3)]);
    assert_eq!(page[8176 - 48..8176], area, "the area lands as it is");
    assert_eq!(special(&mut page), (4, 6, flag::LEAF, 0));
    record(false).changes(1, &mut page);
    assert_eq!(special(&mut page).1, 0);
}

#[test]
fn vacuum_shrinks_posting_lists_and_clears_the_cycle_id_since_18() {
    // Delete item 3; from item 2 delete the TIDs with indexes 0 and 2: one TID is left, so the tuple becomes plain.
    let data: Vec<u8> = [3u16, 2, 2, 0, 2].iter().flat_map(|n| n.to_le_bytes()).collect();
    for (version, cycle_id) in [(PgVersion::V17, 5), (PgVersion::V18, 0)] {
        let record = Sample::new(RmgrId::BTREE, opcode::VACUUM, &[1, 0, 1, 0]).block(0, 0, &data).version(version);
        let mut page = original();
        record.changes(0, &mut page);
        assert_eq!(items(&page), [plain(1, 1), plain(20, 2)]);
        assert_eq!(special(&mut page), (0, 0, flag::LEAF, cycle_id));
    }
}

#[test]
fn posting_list_indexes_must_exist() {
    for indexes in [[3u16].as_slice(), &[1, 1], &[2, 1], &[0, 1, 2]] {
        let numbers = [&[2u16, indexes.len() as u16][..], indexes].concat();
        let data: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let record = Sample::new(RmgrId::BTREE, opcode::VACUUM, &[0, 0, 1, 0]).block(0, 0, &data);
        assert!(record.apply(0, &mut original()).is_err(), "{indexes:?}");
    }
    for index in [0, 3] {
        let data = bytes(&[&u16::to_le_bytes(index), &plain(25, 2)]);
        let record = Sample::new(RmgrId::BTREE, opcode::INSERT_POST, &[3, 0]).block(0, 0, &data);
        assert!(record.apply(0, &mut original()).is_err());
    }
}

#[test]
fn deduplication_merges_runs() {
    let page = [plain(1, 1), plain(2, 1), posting(&[3, 4], 1), plain(5, 2), plain(6, 3), plain(7, 3)];
    let intervals: Vec<u8> = [1u16, 3, 5, 2].iter().flat_map(|n| n.to_le_bytes()).collect();
    let mut page = leaf(&page);
    Sample::new(RmgrId::BTREE, opcode::DEDUP, &[2, 0]).block(0, 0, &intervals).changes(0, &mut page);
    assert_eq!(items(&page), [posting(&[1, 2, 3, 4], 1), plain(5, 2), posting(&[6, 7], 3)]);
    assert_eq!(special(&mut page), (0, 0, flag::LEAF, 5));
}
