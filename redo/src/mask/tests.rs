use postgres_formats::page::{LpFlags, PageRef};

use super::*;
use crate::testing::page_with;

/// A heap tuple of 29 bytes with all bits set, so it has three bytes of padding.
const TUPLE: [u8; 29] = [0xFF; 29];

fn heap_page(infomask: u16) -> Box<[u8; 8192]> {
    let mut page = page_with(0, &[&TUPLE]);
    page[30] = 0xAA;
    page[8160 + 29..].fill(0xBB);
    let mut view = PageMut::new(&mut *page);
    view.set_lsn(5);
    view.set_flags(7);
    view.set_prune_xid(5);
    view.item_mut(1).unwrap()[20..22].copy_from_slice(&infomask.to_le_bytes());
    page
}

fn u16_at(page: &[u8; 8192], at: usize) -> u16 {
    PageRef::new(page).u16_at(at).unwrap()
}

#[test]
fn heap_hints_hole_and_padding_go_but_data_stays() {
    // Infomask before, after `mask_page`, after `mask_for_files`. The second and third tuples are frozen.
    for (before, checked, in_files) in [(0x1D2F, 0x000F, 0x100F), (0x1F0F, 0x130F, 0x130F), (0x1F20, 0x1320, 0x1300)] {
        let mut page = heap_page(before);
        mask_page(RmgrId::HEAP.0, 3, &mut page);
        assert_eq!(u16_at(&page, 8160 + 20), checked);
        assert_eq!(page[..8], [0; 8]);
        assert_eq!((page[30], &page[8160 + 29..]), (0, &[0; 3][..]));
        assert_eq!((u16_at(&page, 10), PageRef::new(&*page).prune_xid()), (0, 0));
        assert_eq!((page[8160 + 8], page[8160 + 7], page[8160 + 12], page[8160 + 28]), (0, 0xFF, 0xFF, 0xFF));

        let mut page = heap_page(before);
        mask_for_files(PageKind::Heap, &mut page);
        assert_eq!(u16_at(&page, 8160 + 20), in_files);
        assert_eq!((PageRef::new(&*page).lsn(), u16_at(&page, 10)), (5, 4), "the LSN and visibility are logged");
    }
}

#[test]
fn a_speculative_token_becomes_the_tuples_own_address() {
    let mut page = heap_page(0);
    PageMut::new(&mut *page).item_mut(1).unwrap()[16..18].copy_from_slice(&SPECULATIVE.to_le_bytes());
    mask_page(RmgrId::HEAP.0, 0x20003, &mut page);
    assert_eq!(page[8160 + 12..8160 + 18], [2, 0, 3, 0, 1, 0]);
}

#[test]
fn a_visibility_map_page_is_blank_for_the_check_but_not_in_files() {
    let mut page = page_with(0, &[]);
    page[24..].fill(0x55);
    let original = page.clone();
    mask_for_files(PageKind::VisibilityMap, &mut page);
    assert_eq!(page, original);
    mask_page(RmgrId::HEAP2.0, 0, &mut page);
    assert!(page[24..].iter().all(|b| *b == 0));
}

#[test]
fn kinds_are_told_by_the_special_space() {
    let page = |special: u16, at: usize, value: u16| {
        let mut page = page_with(special, &[]);
        page[at..at + 2].copy_from_slice(&value.to_le_bytes());
        page
    };
    for (page, kind) in [
        (page(0, 8190, 0xFF80), PageKind::Heap),
        (page(16, 8190, 0xFF7F), PageKind::Btree),
        (page(16, 8190, 0xFF80), PageKind::Hash),
        (page(16, 8190, 0xFF81), PageKind::Gist),
        (page(8, 8190, 0xFF82), PageKind::Spgist),
        (page(8, 8190, 0xF092), PageKind::Brin),
        (page(8, 8184, 0x1717), PageKind::Sequence),
        (page(8, 8190, 0x0083), PageKind::Gin),
        (page(8, 8190, 0xFF83), PageKind::Other),
        (Box::new([0; 8192]), PageKind::Other),
    ] {
        assert_eq!(PageKind::guess(0, &page), kind);
        assert_eq!(PageKind::guess(1, &page), PageKind::FreeSpaceMap);
        assert_eq!(PageKind::guess(2, &page), PageKind::VisibilityMap);
    }
}

#[test]
fn killed_index_items_count_as_alive() {
    for (rmgr, kind, special_end) in [
        (RmgrId::BTREE, PageKind::Btree, [1, 0, 0, 0]),
        (RmgrId::HASH, PageKind::Hash, [2, 0, 0x80, 0xFF]),
        (RmgrId::GIST, PageKind::Gist, [1, 0, 0x81, 0xFF]),
    ] {
        let masked = |killed: bool, mask: &dyn Fn(&mut [u8; 8192])| {
            let mut page = page_with(16, &[&[1; 16], &[2; 16]]);
            page[8188..].copy_from_slice(&special_end);
            let mut view = PageMut::new(&mut *page);
            if killed {
                let item = view.item_id(1).unwrap();
                view.set_item_id(1, item.with_flags(LpFlags::Dead)).unwrap();
            }
            mask(&mut page);
            page
        };
        let check = |page: &mut [u8; 8192]| mask_page(rmgr.0, 0, page);
        assert_eq!(masked(true, &check), masked(false, &check));
        let files = |page: &mut [u8; 8192]| mask_for_files(kind, page);
        assert_eq!(masked(true, &files), masked(false, &files));
        assert_ne!(masked(true, &|_| ()), masked(false, &|_| ()));
    }
}

#[test]
fn an_spgist_page_without_items_has_a_hole_and_a_metapage_of_old_none() {
    const META: u8 = 0x01;
    let masked = |flags: u8, content: u8| {
        let mut page = page_with(8, &[]);
        page[8184..].copy_from_slice(&[flags, 0, 0, 0, 0, 0, 0x82, 0xFF]);
        page[24] = content;
        assert_eq!(PageRef::new(&page).lower(), 24);
        mask_for_files(PageKind::Spgist, &mut page);
        page
    };
    assert_eq!(masked(0, 1), masked(0, 2));
    assert_ne!(masked(META, 1), masked(META, 2), "its magic number");
}
