//! Any bytes as a page and any sequence of operations on it: all operations are total. On an initially sane page,
//! items never leave the item area.

use postgres_formats::{
    BLCKSZ,
    btree::{is_leaf, leaf_entries},
    page::{ItemId, Page, data_checksum},
};

pub(crate) fn run(input: &[u8]) {
    let Some((&kind, input)) = input.split_first() else { return };
    let mut page = Page::new(Box::new([0; BLCKSZ]));
    let sane = kind & 1 == 0;
    let mut steps = input;
    if sane {
        page.init(u16::from(kind) / 2);
    } else {
        let (start, rest) = input.split_at(input.len().min(300));
        page.bytes_mut()[..start.len()].copy_from_slice(start);
        steps = rest;
    }
    for step in steps.chunks_exact(4) {
        let &[op, offset, len, value] = step else { return };
        let (offset, item) = (u16::from(offset), vec![value; usize::from(len) * (1 + usize::from(op >> 5))]);
        // Errors leave the page in an unspecified state, but items of an initially sane page stay in bounds.
        let _ = match op % 10 {
            0 | 1 => page.add_item(&item, offset),
            2 | 3 => page.insert_item(&item, offset),
            4 => page.delete_item(offset),
            5 => page.delete_items(&[offset, offset + 1, offset + u16::from(len), offset + u16::from(value)]),
            6 => page.delete_item_keep_pointer(offset),
            7 => page.overwrite_item(offset, &item),
            8 => page.repair_fragmentation(value & 1 != 0),
            _ if value & 1 != 0 => page.truncate_line_pointers(),
            _ => page.set_item_id(offset, [ItemId::UNUSED, ItemId::DEAD, ItemId::redirect(1)][usize::from(len) % 3]),
        };
    }
    let _ = data_checksum(page.bytes(), 1);
    let _ = (is_leaf(&page), leaf_entries(&page));
    if sane {
        let Ok(layout) = page.layout() else { panic!("a sane page does not stay sane") };
        for offset in 1..=page.max_offset() {
            let Ok(id) = page.item_id(offset) else { panic!("{offset} is not within the line pointers") };
            if id.has_storage() {
                let start = usize::from(id.offset());
                assert!(layout.upper <= start && start + usize::from(id.len()) <= layout.special, "{id:?}");
            }
        }
    }
}
