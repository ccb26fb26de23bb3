//! What the entries of a btree leaf page lead to (`access/nbtree.h`, `access/itup.h`).

use std::borrow::Borrow;

use crate::page::{ItemId, Page, PageBytes, PageError};

/// Size of the special space, `BTPageOpaqueData`, and where its fields are.
const SPECIAL_SIZE: usize = 16;
const NEXT: usize = 4;
const LEVEL: usize = 8;
const FLAGS: usize = 12;
const CYCLE_ID: usize = 14;

/// `BTP_LEAF`, and the flags of pages without entries: `BTP_DELETED`, `BTP_META`, `BTP_HALF_DEAD`.
const LEAF: u16 = 0x01;
const WITHOUT_ENTRIES: u16 = 0x1C;
/// `MAX_BT_CYCLE_ID`: other kinds of indexes have an id of their own above it in the same place.
const CYCLE_ID_MAX: u16 = 0xFF7F;

/// Of an entry: where its key begins, the mask of its length, and `INDEX_ALT_TID_MASK`.
const KEY: usize = 8;
const SIZE_MASK: u16 = 0x1FFF;
const ALT_TID: u16 = 0x2000;
/// Of such an entry's offset number: `BT_IS_POSTING`, and `BT_OFFSET_MASK`.
const POSTING: u16 = 0x2000;
const COUNT_MASK: u16 = 0x0FFF;
/// Size of an `ItemPointerData`.
const TID: usize = 6;

/// A row that a leaf page leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafEntry {
    /// Its block in the table.
    pub block: u32,
    /// Which of the page's different keys it has: the first, the second and so on.
    pub key: u16,
}

/// Whether a page is one of a btree's leaves. Only looks at its ends.
pub fn is_leaf<B: Borrow<PageBytes>>(page: &Page<B>) -> bool {
    let field = |at| page.special_at_least(SPECIAL_SIZE).and_then(|special| page.u16_at(special + at));
    usize::from(page.special()) == crate::BLCKSZ - SPECIAL_SIZE
        && field(FLAGS).is_ok_and(|flags| flags & (LEAF | WITHOUT_ENTRIES) == LEAF)
        && field(LEVEL).is_ok_and(|level| level == 0)
        && field(CYCLE_ID).is_ok_and(|id| id <= CYCLE_ID_MAX)
}

/// The rows that a leaf page leads to, in the order of the index.
///
/// # Errors
/// An entry is not within the page, or there are more than fit on one.
pub fn leaf_entries<B: Borrow<PageBytes>>(page: &Page<B>) -> Result<Vec<LeafEntry>, PageError> {
    let special = page.special_at_least(SPECIAL_SIZE)?;
    // Where there is a page to the right, the first item is the highest key that may be here.
    let first = if page.u32_at(special + NEXT)? == 0 { 1 } else { 2 };
    let (mut found, mut key, mut last): (Vec<LeafEntry>, u16, Option<&[u8]>) = (Vec::new(), 0, None);
    for offset in first..=page.max_offset() {
        if !page.item_id(offset).is_ok_and(ItemId::is_normal) {
            continue;
        }
        let start = usize::from(page.item_id(offset)?.offset());
        let (tid_offset, info) = (page.u16_at(start + 4)?, page.u16_at(start + 6)?);
        let size = usize::from(info & SIZE_MASK);
        let is_posting = info & ALT_TID != 0 && tid_offset & POSTING != 0;
        let (tids, count) = match is_posting {
            // Where the list begins is in the place of the block, and how long it is in that of the offset.
            true => (block_at(page, start)? as usize, usize::from(tid_offset & COUNT_MASK)),
            false => (0, 1),
        };
        let key_end = if is_posting { tids } else { size };
        // More than fit on a page are none that a server wrote.
        if found.len() + count > crate::BLCKSZ / TID {
            return Err(PageError::BadItem { offset, item: page.item_id(offset)? });
        }
        let own = page.slice(start + KEY, key_end.saturating_sub(KEY))?;
        key += u16::from(last.is_some_and(|last| last != own));
        last = Some(own);
        for number in 0..count {
            found.push(LeafEntry { block: block_at(page, start + tids + number * TID)?, key });
        }
    }
    Ok(found)
}

/// The block of the `ItemPointerData` at `offset`: its high half comes first.
fn block_at<B: Borrow<PageBytes>>(page: &Page<B>, offset: usize) -> Result<u32, PageError> {
    Ok(u32::from(page.u16_at(offset)?) << 16 | u32::from(page.u16_at(offset + 2)?))
}
