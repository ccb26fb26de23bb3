use std::collections::BTreeMap;

use bytes::Bytes;
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
    images.0.insert((DBDIR_KEY, Lsn(8)), Bytes::from(databases.ser().unwrap()));
    for page in [map(80, if emptied { 0 } else { 4 }, 0), map(160, if emptied { 3 } else { 7 }, 0)] {
        images.0.insert((key(5), Lsn(PageRef::new(&page).lsn())), Bytes::copy_from_slice(&page));
    }
    images
}

fn explained(images: &Images, key: Key, ours: PageBytes, theirs: PageBytes) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(explains(images, key, &ours, &theirs)).unwrap()
}

#[test]
fn only_bits_missing_after_an_empty_image_are_explained() {
    let emptied = history(true);
    assert!(explained(&emptied, key(5), map(160, 3, 0), map(160, 3, 0xFF)));
    assert!(!explained(&emptied, key(5), map(160, 3, 1), map(160, 3, 0xF0)), "a bit too many");
    assert!(!explained(&history(false), key(5), map(160, 7, 0), map(160, 7, 0xFF)), "never emptied");
}

#[test]
fn a_copied_map_is_followed_to_where_it_was_copied_from() {
    let mut images = history(true);
    images.0.insert((key(77), Lsn(240)), Bytes::copy_from_slice(&map(160, 3, 0)));
    assert!(explained(&images, key(77), map(160, 3, 0), map(160, 3, 0xFF)));
    let mut never = history(false);
    never.0.insert((key(77), Lsn(240)), Bytes::copy_from_slice(&map(160, 7, 0)));
    assert!(!explained(&never, key(77), map(160, 7, 0), map(160, 7, 0xFF)));
}
