use std::collections::BTreeMap;

use pageserver_api::key::{DBDIR_KEY, rel_block_key};
use pageserver_api::reltag::RelTag;
use postgres_formats::page::Page;
use utils::bin_ser::BeSer;

use super::super::images::Images;
use super::*;

fn map(lsn: u64, first_byte: u8, second_byte: u8) -> PageBytes {
    let mut page = Page::new([0; 8192]);
    page.init(0);
    page.set_lsn(lsn);
    let mut bytes = page.into_inner();
    bytes[24..26].copy_from_slice(&[first_byte, second_byte]);
    bytes
}

fn key(dbnode: u32) -> Key {
    rel_block_key(RelTag { spcnode: 1663, dbnode, relnode: 16384, forknum: 2 }, 0)
}

/// History of the map in database 5: emptied by an image or not, then a record sets bits.
fn history(emptied: bool) -> Images {
    let mut images = Images::default();
    let databases = BTreeMap::from([((1663u32, 5u32), true)]);
    images.add(DBDIR_KEY, 8, databases.ser().unwrap(), None);
    let (first, second) = if emptied { (map(80, 0, 0), map(160, 3, 0)) } else { (map(80, 4, 0), map(160, 7, 0)) };
    images.add(key(5), 80, first, Some((0, 0xB0)));
    images.add(key(5), 160, second, None);
    images
}

fn explanation(images: &Images, key: Key, ours: PageBytes, theirs: PageBytes) -> Option<Verdict> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(explain(images, key, VM_FORK, &ours, &theirs)).unwrap()
}

fn explained(images: &Images, key: Key, ours: PageBytes, theirs: PageBytes) -> bool {
    explanation(images, key, ours, theirs) == Some(Verdict::LostInWal)
}

/// A range map page of a BRIN index, with its first two entries.
fn ranges(lsn: u64, first: u8, second: u8) -> PageBytes {
    let mut page = Page::new([0; 8192]);
    page.init(8);
    page.set_lsn(lsn);
    let mut bytes = page.into_inner();
    bytes[8190..].copy_from_slice(&[0x92, 0xF0]);
    (bytes[26], bytes[32]) = (first, second);
    bytes
}

#[test]
fn only_bits_missing_after_an_empty_image_are_explained() {
    let emptied = history(true);
    assert!(explained(&emptied, key(5), map(160, 3, 0), map(160, 3, 0xFF)));
    assert!(!explained(&emptied, key(5), map(160, 3, 1), map(160, 3, 0xF0)), "a bit too many");
    assert!(!explained(&history(false), key(5), map(160, 7, 0), map(160, 7, 0xFF)), "never emptied");
}

#[test]
fn bits_missing_since_before_the_history_are_told_apart() {
    let mut images = history(true);
    images.cutoff = Lsn(200);
    assert_eq!(explanation(&images, key(5), map(160, 3, 0), map(160, 3, 0xFF)), Some(Verdict::Forgotten));
    assert_eq!(explanation(&images, key(5), map(160, 3, 1), map(160, 3, 0xF0)), None, "a bit too many");
    images.add(key(5), 240, map(240, 7, 0), None);
    assert_eq!(explanation(&images, key(5), map(240, 7, 0), map(240, 7, 0xFF)), Some(Verdict::Forgotten));
}

#[test]
fn a_copied_map_is_followed_to_where_it_was_copied_from() {
    let mut images = history(true);
    images.add(key(77), 240, map(160, 3, 0), None);
    assert!(explained(&images, key(77), map(160, 3, 0), map(160, 3, 0xFF)));
    let mut never = history(false);
    never.add(key(77), 240, map(160, 7, 0), None);
    assert!(!explained(&never, key(77), map(160, 7, 0), map(160, 7, 0xFF)));
}

#[test]
fn only_ranges_missing_after_an_image_are_explained() {
    let key = rel_block_key(RelTag { spcnode: 1663, dbnode: 5, relnode: 16384, forknum: 0 }, 1);
    let history = |kind| {
        let mut images = Images::default();
        images.add(key, 80, ranges(80, 0, 0), Some(kind));
        images.add(key, 160, ranges(160, 0, 9), Some((17, 0x10)));
        images
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let explained = |kind, ours: PageBytes, theirs: PageBytes| {
        runtime.block_on(explain(&history(kind), key, MAIN_FORK, &ours, &theirs)).unwrap().is_some()
    };
    let (image, extended) = ((0, 0xB0), (17, 0x40));
    assert!(explained(image, ranges(160, 0, 9), ranges(160, 7, 9)));
    assert!(!explained(image, ranges(160, 0, 9), ranges(160, 7, 8)), "another entry");
    assert!(!explained(image, ranges(160, 3, 9), ranges(160, 7, 9)), "an entry that is not missing");
    assert!(!explained(extended, ranges(160, 0, 9), ranges(160, 7, 9)), "each such page begins empty");
    let mut other = ranges(160, 7, 9);
    other[8190] = 0x93;
    assert!(!explained(image, ranges(160, 0, 9), other), "another kind of page");
}
