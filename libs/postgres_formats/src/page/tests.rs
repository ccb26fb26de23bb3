//! Page operations against a model of a page's content, hand-made layouts, and hostile pages.

use proptest::prelude::*;

use super::*;

fn empty(special: u16) -> Page<Box<PageBytes>> {
    let mut page = Page::new(Box::new([0xAA; BLCKSZ]));
    page.init(special);
    page
}

fn item(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_add(i as u8)).collect()
}

fn filled(lens: &[usize]) -> Page<Box<PageBytes>> {
    let mut page = empty(16);
    for (len, offset) in lens.iter().zip(1..) {
        page.add_item(&item(*len, offset as u8), offset).unwrap();
    }
    page
}

fn places(page: &Page<Box<PageBytes>>) -> Vec<(u16, u16)> {
    (1..=page.max_offset()).map(|o| page.item_id(o).unwrap()).map(|i| (i.offset(), i.len())).collect()
}

#[test]
fn init_writes_an_empty_header() {
    let page = empty(12);
    assert_eq!((page.lower(), page.upper(), page.special()), (24, 8176, 8176));
    assert_eq!((page.size_version(), page.flags(), page.lsn(), page.max_offset()), (0x2004, 0, 0, 0));
    assert!(!page.is_new());
    assert!(Page::new([0; BLCKSZ]).is_new());
    assert!(page.bytes()[24..].iter().all(|b| *b == 0));
}

#[test]
fn lsn_is_stored_high_half_first() {
    let mut page = empty(0);
    page.set_lsn(0x0102_0304_0506_0708);
    assert_eq!(page.bytes()[..8], [4, 3, 2, 1, 8, 7, 6, 5]);
    assert_eq!(page.lsn(), 0x0102_0304_0506_0708);
}

#[test]
fn items_are_placed_downwards_at_multiples_of_8() {
    let page = filled(&[10, 8, 1]);
    assert_eq!(places(&page), [(8160, 10), (8152, 8), (8144, 1)]);
    assert_eq!((page.lower(), page.upper()), (36, 8144));
    assert_eq!(page.item(2).unwrap(), item(8, 2));
}

#[test]
fn add_and_insert_differ_on_existing_line_pointers() {
    let mut page = filled(&[8, 8]);
    assert_eq!(page.add_item(&[1], 1), Err(PageError::InUse(1)));
    assert_eq!(page.add_item(&[1], 4), Err(PageError::NoItem { offset: 4, count: 2 }));
    assert_eq!(page.add_item(&[1], 0), Err(PageError::NoItem { offset: 0, count: 2 }));
    page.insert_item(&[1], 1).unwrap();
    assert_eq!(places(&page), [(8152, 1), (8168, 8), (8160, 8)]);
    page.set_item_id(2, ItemId::UNUSED).unwrap();
    page.add_item(&[7; 3], 2).unwrap();
    assert_eq!(places(&page), [(8152, 1), (8144, 3), (8160, 8)]);
    assert_eq!(page.lower(), 36);
}

#[test]
fn a_full_page_takes_no_more() {
    let mut page = filled(&[8000]);
    assert_eq!(page.add_item(&[0; 200], 2), Err(PageError::NoSpace { needed: 200, free: 144 }));
    page.add_item(&[0; 144], 2).unwrap();
    assert_eq!(page.lower(), page.upper());
    assert!(matches!(page.add_item(&[], 3), Err(PageError::NoSpace { .. })));
}

#[test]
fn few_deletions_keep_physical_order_and_many_do_not() {
    let swapped = || {
        let mut page = empty(16);
        for len in [8, 16, 24, 32, 40] {
            page.insert_item(&item(len, len as u8), 1).unwrap();
        }
        page
    };
    let mut page = swapped();
    page.delete_items(&[2, 4]).unwrap();
    assert_eq!(places(&page), [(8104, 40), (8144, 24), (8168, 8)]);
    let mut page = swapped();
    page.delete_items(&[2, 3, 4]).unwrap();
    assert_eq!(places(&page), [(8136, 40), (8128, 8)]);
    assert_eq!(page.item(1).unwrap(), item(40, 40));
    page.delete_items(&[1, 2]).unwrap();
    assert_eq!((page.lower(), page.upper()), (24, 8176));
    for bad in [&[2, 1][..], &[1, 1], &[1, 2, 9], &[3, 2, 1], &[0, 1, 2], &[1, 1, 2]] {
        assert!(swapped().delete_items(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn deletion_without_compaction_keeps_line_pointers() {
    let mut page = filled(&[8, 16, 24]);
    page.delete_item_keep_pointer(1).unwrap();
    assert_eq!(places(&page), [(0, 0), (8160, 16), (8136, 24)]);
    page.delete_item_keep_pointer(2).unwrap();
    page.delete_item_keep_pointer(3).unwrap();
    assert_eq!(places(&page), [(0, 0), (0, 0)]);
    assert_eq!(page.upper(), 8176);
}

#[test]
fn overwrite_moves_lower_items() {
    let mut page = filled(&[8, 16, 24]);
    page.set_item_id(2, page.item_id(2).unwrap().with_flags(LpFlags::Dead)).unwrap();
    page.overwrite_item(2, &item(30, 99)).unwrap();
    assert_eq!(places(&page), [(8168, 8), (8136, 30), (8112, 24)]);
    assert_eq!(page.item_id(2).unwrap().flags(), LpFlags::Dead);
    assert_eq!((page.item(2).unwrap(), page.item(3).unwrap()), (&item(30, 99)[..], &item(24, 3)[..]));
    page.overwrite_item(2, &[5]).unwrap();
    assert_eq!(places(&page), [(8168, 8), (8160, 1), (8136, 24)]);
    assert!(matches!(page.overwrite_item(1, &[0; 8190]), Err(PageError::NoSpace { .. })));
    page.add_item(&[], 4).unwrap();
    assert!(matches!(page.overwrite_item(4, &[1]), Err(PageError::BadItem { .. })), "nothing there to overwrite");
}

#[test]
fn repair_cuts_trailing_line_pointers_only_since_15() {
    for (cut_tail, lower, hint) in [(false, 44, true), (true, 40, true)] {
        let mut page = filled(&[8, 16, 24, 32, 40]);
        page.set_item_id(2, ItemId::UNUSED).unwrap();
        page.set_item_id(3, ItemId::redirect(1)).unwrap();
        page.set_item_id(4, ItemId::DEAD).unwrap();
        page.set_item_id(5, ItemId::UNUSED).unwrap();
        page.repair_fragmentation(cut_tail).unwrap();
        assert_eq!((page.lower(), page.upper()), (lower, 8168));
        assert_eq!(page.flags() & PD_HAS_FREE_LINES != 0, hint);
    }
    let mut page = filled(&[8, 16]);
    page.set_item_id(1, ItemId::UNUSED).unwrap();
    page.set_item_id(2, ItemId::UNUSED).unwrap();
    page.repair_fragmentation(true).unwrap();
    assert_eq!((page.lower(), page.upper(), page.flags()), (24, 8176, 0));
}

#[test]
fn truncation_leaves_the_first_line_pointer() {
    let mut page = filled(&[8, 16, 24]);
    page.set_item_id(2, ItemId::UNUSED).unwrap();
    page.set_item_id(3, ItemId::UNUSED).unwrap();
    page.truncate_line_pointers().unwrap();
    assert_eq!((page.lower(), page.flags()), (28, 0));
    page.set_item_id(1, ItemId::UNUSED).unwrap();
    page.truncate_line_pointers().unwrap();
    assert_eq!((page.lower(), page.flags()), (28, PD_HAS_FREE_LINES));
}

#[test]
fn checksum_ignores_its_own_field_and_depends_on_the_rest() {
    let mut page = *filled(&[100, 200]).into_inner();
    let sum = data_checksum(&page, 7);
    set_data_checksum(&mut page, 7);
    assert_eq!(data_checksum(&page, 7), sum);
    assert_eq!(Page::new(&page).checksum(), sum);
    assert_ne!(data_checksum(&page, 8), sum);
    page[8191] ^= 1;
    assert_ne!(data_checksum(&page, 7), sum);
    let mut new = [0; BLCKSZ];
    set_data_checksum(&mut new, 7);
    assert_eq!(new, [0; BLCKSZ]);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, usize),
    Delete(u16),
    DeleteMany(Vec<u16>),
    Overwrite(u16, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..40u16, 0..300usize).prop_map(|(at, len)| Step::Insert(at, len)),
        1 => (0..40u16).prop_map(Step::Delete),
        1 => proptest::collection::btree_set(1..40u16, 0..8).prop_map(|s| Step::DeleteMany(s.into_iter().collect())),
        2 => (0..40u16, 0..300usize).prop_map(|(at, len)| Step::Overwrite(at, len)),
    ]
}

/// Every item has its own slot within [upper, special), without overlaps or gaps.
fn assert_dense(page: &Page<Box<PageBytes>>) {
    let layout = page.layout().unwrap();
    let mut spans: Vec<_> = places(page)
        .into_iter()
        .map(|(o, l)| (usize::from(o), crate::maxalign(l.into())))
        .filter(|s| s.1 > 0)
        .collect();
    spans.sort_unstable();
    let end = spans.iter().fold(layout.upper, |at, (start, size)| {
        assert_eq!(at, *start);
        start + size
    });
    assert_eq!(end, layout.special);
}

proptest! {
    #[test]
    fn operations_agree_with_a_list_of_items(steps in proptest::collection::vec(step(), 0..60)) {
        let (mut page, mut model) = (empty(16), Vec::<Vec<u8>>::new());
        for (step, seed) in steps.into_iter().zip(0u8..) {
            let pick = |at: u16| 1 + usize::from(at) % model.len().max(1);
            match step {
                Step::Insert(at, len) => {
                    let at = usize::from(at) % (model.len() + 1);
                    let new = item(len + 1, seed);
                    if page.insert_item(&new, at as u16 + 1).is_ok() {
                        model.insert(at, new);
                    } else {
                        let used: usize = model.iter().map(|i| crate::maxalign(i.len()) + 4).sum();
                        prop_assert!(used + crate::maxalign(new.len()) + 4 > 8192 - 24 - 16);
                    }
                }
                Step::Delete(at) if !model.is_empty() => {
                    page.delete_item(pick(at) as u16).unwrap();
                    model.remove(pick(at) - 1);
                }
                Step::DeleteMany(list) if list.iter().all(|o| usize::from(*o) <= model.len()) => {
                    page.delete_items(&list).unwrap();
                    list.iter().rev().for_each(|o| drop(model.remove(usize::from(*o) - 1)));
                }
                Step::Overwrite(at, len) if !model.is_empty() => {
                    let new = item(len + 1, seed);
                    if page.overwrite_item(pick(at) as u16, &new).is_ok() {
                        let at = pick(at) - 1;
                        model[at] = new;
                    }
                }
                _ => {}
            }
            prop_assert_eq!(usize::from(page.max_offset()), model.len());
            for (want, offset) in model.iter().zip(1..) {
                prop_assert_eq!(page.item(offset).unwrap(), &want[..]);
            }
            assert_dense(&page);
        }
    }

    #[test]
    fn repair_keeps_every_item(lens in proptest::collection::vec(1..200usize, 0..30),
                               kinds in proptest::collection::vec(0..5u8, 30), cut in any::<bool>()) {
        let mut page = filled(&lens);
        for (offset, kind) in (1..=page.max_offset()).zip(kinds) {
            let other = [ItemId::UNUSED, ItemId::DEAD, ItemId::redirect(1)];
            if let Some(item) = other.get(usize::from(kind)) {
                page.set_item_id(offset, *item).unwrap();
            }
        }
        let before: Vec<_> = (1..=page.max_offset()).map(|o| page.item(o).ok().map(<[u8]>::to_vec)).collect();
        page.repair_fragmentation(cut).unwrap();
        assert_dense(&page);
        let mut lowest = usize::from(page.special());
        for offset in 1..=page.max_offset() {
            let now = page.item(offset).ok();
            prop_assert_eq!(now, before[usize::from(offset) - 1].as_deref());
            if now.is_some() {
                let start = usize::from(page.item_id(offset).unwrap().offset());
                prop_assert!(start < lowest);
                lowest = start;
            }
        }
    }

    #[test]
    fn hostile_pages_never_panic(header in any::<[u16; 12]>(), sane in any::<bool>(), fill in any::<u8>(),
                                 ids in proptest::collection::vec(any::<u32>(), 0..40),
                                 offsets in proptest::collection::vec(any::<u16>(), 0..5),
                                 small in proptest::collection::btree_set(0..30u16, 0..5), len in 0..9000usize) {
        let mut page = Page::new(Box::new([fill; BLCKSZ]));
        for (at, value) in header.iter().enumerate() {
            page.put(at * 2, &value.to_le_bytes()).unwrap();
        }
        if sane {
            let (upper, special) = (1000 + header[7] % 1000, 2000 + header[8] % 6192);
            page.set_lower(24 + 4 * ids.len() as u16);
            page.set_upper(upper);
            page.put(16, &special.to_le_bytes()).unwrap();
        }
        for (at, id) in ids.iter().enumerate() {
            page.put(24 + at * 4, &id.to_le_bytes()).unwrap();
        }
        let small: Vec<u16> = small.into_iter().collect();
        for offset in offsets.iter().chain(&small).copied() {
            let _ = page.clone().add_item(&vec![1; len], offset);
            let _ = page.clone().insert_item(&vec![1; len % 300], offset);
            let _ = page.clone().delete_item(offset);
            let _ = page.clone().delete_item_keep_pointer(offset);
            let _ = page.clone().overwrite_item(offset, &vec![1; len % 300]);
            let _ = (page.item(offset).map(<[u8]>::len), page.clone().item_mut(offset).map(|i| i.len()));
        }
        let _ = page.clone().delete_items(&offsets);
        let _ = page.clone().delete_items(&small);
        let _ = page.clone().repair_fragmentation(sane);
        let _ = page.clone().truncate_line_pointers();
        let _ = (page.layout(), page.special_at_least(len), data_checksum(page.bytes(), len as u32));
    }
}
