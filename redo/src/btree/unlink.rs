//! Page deletion in two steps: a leaf loses its downlink (half-dead), then it and the branch above it are unlinked.

use postgres_formats::cursor::{u16_at, u32_at, u64_at};
use postgres_formats::page::PageMut;

use super::posting::ALT_TID;
use super::special::{Opaque, flag, init, set_next, set_prev};
use crate::error::Fault;
use crate::heap::tuple::tid_bytes;
use crate::index_tuple::{self, HEADER};
use crate::op::Op;
use crate::page::RedoPage;

/// Start and size of a deleted page's only content: the transaction id from which on the page may be reused.
const SAFE_XID: usize = 24;
const SAFE_XID_SIZE: usize = 8;

/// `xl_btree_unlink_page`: leftsib 0, rightsib 4, level 8, safexid 16, and for an inner target the leaf below it:
/// leafleftsib 24, leafrightsib 28, leaftopparent 32. Blocks: 0 target, 1 left, 2 right sibling, 3 leaf.
pub(super) fn unlink(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let main = op.main;
    let (left, right) = (u32_at(main, 0)?, u32_at(main, 4)?);
    match op.block.id {
        0 => init_deleted(page, left, right, u32_at(main, 8)?, u64_at(main, 16)?),
        1 => set_next(page, right),
        2 => set_prev(page, left),
        _ => init_half_dead(page, u32_at(main, 24)?, u32_at(main, 28)?, u32_at(main, 32)?),
    }
}

/// `xl_btree_mark_page_halfdead`: poffset 0, leafblk 4, leftblk 8, rightblk 12, topparent 16. Blocks: 0 leaf, 1 parent.
pub(super) fn mark_half_dead(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let main = op.main;
    if op.block.id == 0 {
        return init_half_dead(page, u32_at(main, 8)?, u32_at(main, 12)?, u32_at(main, 16)?);
    }
    // The leaf's key range goes to its right sibling: its pivot gets the sibling's downlink, the sibling's pivot is
    // deleted.
    let offset = u16_at(main, 0)?;
    let next = offset.saturating_add(1);
    let right_sibling = index_tuple::tid_block(page.item(next)?)?;
    let pivot = page.item_mut(offset)?;
    let kept = index_tuple::tid_offset(pivot)?;
    index_tuple::set_tid(pivot, right_sibling, kept)?;
    Ok(page.delete_item(next)?)
}

fn init_deleted(page: &mut PageMut<'_>, prev: u32, next: u32, level: u32, safe_xid: u64) -> Result<(), Fault> {
    let leaf = if level == 0 { flag::LEAF } else { 0 };
    init(page, Opaque { prev, next, level, flags: flag::DELETED | flag::HAS_FULLXID | leaf })?;
    page.put(SAFE_XID, &safe_xid.to_le_bytes())?;
    page.set_content_end(SAFE_XID + SAFE_XID_SIZE)
}

/// A half-dead leaf holds only a keyless pivot whose TID names the top of the branch to be deleted.
fn init_half_dead(page: &mut PageMut<'_>, prev: u32, next: u32, top_parent: u32) -> Result<(), Fault> {
    init(page, Opaque { prev, next, level: 0, flags: flag::HALF_DEAD | flag::LEAF })?;
    let mut pivot = [0; HEADER];
    let (tid, info) = pivot.split_at_mut(index_tuple::INFO);
    tid.copy_from_slice(&tid_bytes(top_parent, 0));
    info.copy_from_slice(&(HEADER as u16 | ALT_TID).to_le_bytes());
    Ok(page.append_item(&pivot)?)
}
