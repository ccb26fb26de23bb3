//! Deduplication: runs of leaf tuples with equal keys become posting list tuples.

use postgres_formats::BLCKSZ;
use postgres_formats::cursor::{Cursor, u16_at};
use postgres_formats::page::PageMut;

use super::posting::{self, LeafTuple};
use super::special::{HIGH_KEY, SPECIAL_SIZE, clear_flag, first_data_key, flag};
use crate::error::Fault;
use crate::op::Op;
use crate::page::{BLANK, RedoPage};

/// Main data: number of intervals. Block data: intervals, each the offset of its first item and its number of items.
/// The page is rebuilt in item order.
pub(super) fn redo(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let mut intervals = Cursor::new(op.data());
    let mut left = u16_at(op.main, 0)?;
    let mut next_interval = || -> Result<Option<(u16, u16)>, Fault> {
        if left == 0 {
            return Ok(None);
        }
        left -= 1;
        Ok(Some((intervals.u16()?, intervals.u16()?)))
    };

    let mut bytes = BLANK;
    let mut rebuilt = PageMut::new(&mut bytes);
    rebuilt.init(SPECIAL_SIZE as u16);
    let special = page.slice(page.special_at_least(SPECIAL_SIZE)?, SPECIAL_SIZE)?;
    rebuilt.put_special(SPECIAL_SIZE, 0, special)?;
    let first = first_data_key(page)?;
    if first > HIGH_KEY {
        rebuilt.append_item(page.item(HIGH_KEY)?)?;
    }

    let mut interval = next_interval()?;
    let mut offset = first;
    while offset <= page.max_offset() {
        let merged = match interval {
            Some((base, count)) if base == offset => count.max(1),
            _ => 1,
        };
        if merged > 1 {
            rebuilt.append_item(&merge(page, offset, merged)?)?;
            interval = next_interval()?;
        } else {
            rebuilt.append_item(page.item(offset)?)?;
        }
        offset = offset.saturating_add(merged);
    }
    page.bytes_mut().copy_from_slice(&bytes);
    clear_flag(page, flag::HAS_GARBAGE)
}

/// Merges items into one posting list tuple with the first item's key and the TIDs of all.
fn merge(page: &PageMut<'_>, first: u16, count: u16) -> Result<Vec<u8>, Fault> {
    let base = LeafTuple::parse(page.item(first)?)?;
    let mut tids = Vec::new();
    for offset in first..first.saturating_add(count) {
        tids.extend_from_slice(LeafTuple::parse(page.item(offset)?)?.tids);
        // Items of a damaged page may overlap, so that their TIDs together far exceed a page.
        if tids.len() > BLCKSZ {
            return Err(Fault::Inconsistent("posting list tuple would be too long"));
        }
    }
    posting::form(base.key, &tids)
}
