//! Cases that would otherwise need millions of TIDs, or an index from before 9.4.

use postgres_formats::page::{PageBytes, PageMut};
use postgres_formats::rmgr::RmgrId;

use super::page::set_max_offset;
use super::*;
use crate::testing::{Sample, bytes};

fn page(flags: u16, max_offset: u16, content: &[u8]) -> Box<PageBytes> {
    let mut bytes = Box::new([0; 8192]);
    let mut page = PageMut::new(&mut *bytes);
    init(&mut page, flags).unwrap();
    set_max_offset(&mut page, max_offset).unwrap();
    page.put(DATA_START, content).unwrap();
    page.set_content_end(DATA_START + content.len()).unwrap();
    bytes
}

fn content(page: &PageBytes) -> &[u8] {
    let end = u16::from_le_bytes([page[12], page[13]]);
    &page[DATA_START..usize::from(end)]
}

fn posting_item(child: u8, key: u8) -> [u8; POSTING_ITEM] {
    [0, 0, child, 0, 0, 0, key, 0, 1, 0]
}

#[test]
fn insert_into_an_inner_posting_tree_page() {
    let old = bytes(&[&posting_item(1, 10), &posting_item(2, 20), &posting_item(3, 30)]);
    // Child 2 was split into 2 and 9: item 2 now leads to 9, the new item before it to 2.
    let main = bytes(&[&[1, 0], &[0, 0, 2, 0], &[0, 0, 9, 0]]);
    let data = bytes(&[&[2, 0], &posting_item(2, 15)]);
    let record = Sample::new(RmgrId::GIN, opcode::INSERT, &main).block(0, 5, &data).block(1, 2, &[]);
    let mut inner = page(flag::DATA, 3, &old);
    record.changes(0, &mut inner);
    let expected = [posting_item(1, 10), posting_item(2, 15), posting_item(9, 20), posting_item(3, 30)];
    assert_eq!(content(&inner), expected.as_flattened());
    assert_eq!(max_offset(&PageMut::new(&mut *inner)).unwrap(), 4);

    let mut child = page(flag::DATA | flag::INCOMPLETE_SPLIT, 0, &[]);
    record.changes(1, &mut child);
    assert_eq!(PageMut::new(&mut *child).special_u16(8, FLAGS).unwrap(), flag::DATA);
}

#[test]
fn removal_of_a_posting_tree_page() {
    let old = bytes(&[&posting_item(1, 10), &posting_item(2, 20), &posting_item(3, 30)]);
    let main = bytes(&[&[2, 0, 0, 0], &7u32.to_le_bytes(), &99u32.to_le_bytes()]);
    let record =
        Sample::new(RmgrId::GIN, opcode::DELETE_PAGE, &main).block(0, 2, &[]).block(1, 5, &[]).block(2, 1, &[]);
    let mut parent = page(flag::DATA, 3, &old);
    record.changes(1, &mut parent);
    assert_eq!(content(&parent), [posting_item(1, 10), posting_item(3, 30)].as_flattened());
    let mut gone = page(flag::DATA | flag::LEAF, 0, &old);
    record.changes(0, &mut gone);
    assert_eq!((PageMut::new(&mut *gone).prune_xid(), content(&gone)), (99, &old[..]));
}

/// A list of (0, n) for n in `offsets`.
fn list(offsets: &[u64]) -> Vec<u8> {
    posting_list::encode(offsets).unwrap()
}

#[test]
fn a_leaf_from_before_compression_becomes_one_segment() {
    let tids: Vec<u8> = [5u8, 7, 9].iter().flat_map(|n| [0, 0, 0, 0, *n, 0]).collect();
    let data = bytes(&[&[1, 0], &[0, 4], &[1, 0], &[0, 0, 0, 0, 8, 0]]);
    let record = Sample::new(RmgrId::GIN, opcode::INSERT, &[3, 0]).block(0, 5, &data);
    let mut leaf = page(flag::DATA | flag::LEAF, 3, &tids);
    record.changes(0, &mut leaf);
    assert_eq!(content(&leaf), list(&[5, 7, 8, 9]));
    let leaf = PageMut::new(&mut *leaf);
    assert_eq!(max_offset(&leaf).unwrap(), 0);
    assert_eq!(leaf.special_u16(8, FLAGS).unwrap(), flag::DATA | flag::LEAF | flag::COMPRESSED);
}

#[test]
fn every_change_of_segments() {
    let old = bytes(&[&list(&[1, 2]), &list(&[10, 11]), &list(&[20, 21]), &list(&[30]), &list(&[40])]);
    let actions: [&[u8]; 4] = [
        // Inserts before segment 1, replaces it, adds TIDs to segment 2; deletes segment 3.
        &bytes(&[&[1, 2], &list(&[5])]),
        &bytes(&[&[1, 3], &list(&[12])]),
        &bytes(&[&[2, 4], &[2, 0], &[0, 0, 0, 0, 19, 0, 0, 0, 0, 0, 20, 0]]),
        &[3, 1],
    ];
    let data = bytes(&[&[4, 0], &actions.concat()]);
    let record = Sample::new(RmgrId::GIN, opcode::VACUUM_DATA_LEAF_PAGE, &[]).block(0, 5, &data);
    let mut leaf = page(flag::DATA | flag::LEAF | flag::COMPRESSED, 0, &old);
    record.changes(0, &mut leaf);
    let expected = [list(&[1, 2]), list(&[5]), list(&[12]), list(&[19, 20, 21]), list(&[40])].concat();
    assert_eq!(content(&leaf), expected);
}

#[test]
fn segments_that_do_not_exist() {
    for action in [&[1, 1][..], &[9, 2, 0, 0, 0, 0, 1, 0, 0, 0], &[0, 9], &[0, 4, 9, 0]] {
        let data = bytes(&[&[1, 0], action]);
        let record = Sample::new(RmgrId::GIN, opcode::VACUUM_DATA_LEAF_PAGE, &[]).block(0, 5, &data);
        let mut leaf = page(flag::DATA | flag::LEAF | flag::COMPRESSED, 0, &list(&[1]));
        assert!(record.apply(0, &mut leaf).is_err(), "{action:?}");
    }
}
