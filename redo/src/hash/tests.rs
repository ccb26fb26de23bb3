//! Cases that would otherwise need more than 32768 overflow pages, or 17.

use postgres_formats::page::PageMut;
use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;

use super::page::{FLAGS, NEXT, NONE};
use super::*;
use crate::Applied;
use crate::page::RedoPage;
use crate::testing::{Sample, bytes, page_with};

const META_MAPS: usize = 24 + 44;
const META_SPARES: usize = 24 + 52;
const META_MAP_PAGES: usize = 24 + 444;

#[test]
fn a_new_bitmap_page_is_noted_in_the_metapage() {
    let free = 77u32.to_le_bytes();
    let bucket = 3u32.to_le_bytes();
    let record = Sample::new(RmgrId::HASH, opcode::ADD_OVFL_PAGE, &[0x00, 0x10, 0]).block(0, 50, &bucket).will_init();
    let record = record.block(1, 40, &[]).block(3, 51, &[]).will_init().block(4, 0, &free);
    let mut meta = page_with(16, &[]);
    meta[24 + 36] = 6;
    meta[META_MAPS] = 1;
    record.changes(4, &mut meta);
    assert_eq!(meta[24 + 40], 77);
    assert_eq!(meta[META_SPARES + 6 * 4], 2, "the overflow page and the bitmap page");
    assert_eq!((meta[META_MAPS], meta[META_MAP_PAGES + 4]), (2, 51));

    let mut bitmap = [9; 8192];
    record.changes(3, &mut bitmap);
    assert!(bitmap[24..24 + 4096].iter().all(|b| *b == 0xFF) && bitmap[24 + 4096..8176].iter().all(|b| *b == 0));
    let mut overflow = [9; 8192];
    record.changes(0, &mut overflow);
    let overflow = PageMut::new(&mut overflow);
    let special = [0, 4, 8].map(|at| overflow.special_u32(16, at).unwrap());
    assert_eq!((special, overflow.special_u16(16, FLAGS).unwrap()), ([40, NONE, 3], flag::OVERFLOW));
}

#[test]
fn squeeze_leaves_an_untouched_target_its_lsn_since_17() {
    let main = |is_prev| bytes(&[&[1, 0, 0, 0], &[9, 0, 0, 0], &[0, 0], &[1, is_prev]]);
    for (version, is_prev, applied) in [
        (PgVersion::V16, 0, Applied::Changed),
        (PgVersion::V17, 0, Applied::Unchanged),
        (PgVersion::V17, 1, Applied::Changed),
    ] {
        let record = Sample::new(RmgrId::HASH, opcode::SQUEEZE_PAGE, &main(is_prev)).block(1, 5, &[]).version(version);
        let mut page = page_with(16, &[]);
        assert_eq!(record.apply(1, &mut page).unwrap(), applied);
        let page = PageMut::new(&mut *page);
        assert_eq!(page.lsn() != 0, applied == Applied::Changed);
        assert_eq!(page.special_u32(16, NEXT).unwrap(), if is_prev != 0 { 9 } else { 0 });
    }
}

#[test]
fn a_full_list_of_bitmap_pages_is_refused() {
    let record =
        Sample::new(RmgrId::HASH, opcode::INIT_BITMAP_PAGE, &[0, 16]).block(0, 2, &[]).will_init().block(1, 0, &[]);
    let mut meta = page_with(16, &[]);
    meta[META_MAPS..META_MAPS + 4].copy_from_slice(&1024u32.to_le_bytes());
    assert!(record.apply(1, &mut meta).is_err());
}
