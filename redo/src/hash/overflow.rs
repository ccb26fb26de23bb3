//! Overflow pages and the bitmap of free ones.

use postgres_formats::cursor::{u8_at, u16_at, u32_at};
use postgres_formats::page::PageMut;
use postgres_formats::version::PgVersion;

use super::page::{NEXT, NONE, PREV, data_u32, flag, init, set_link};
use super::{bucket, meta};
use crate::error::Fault;
use crate::op::{Op, Outcome};
use crate::page::RedoPage;

/// Start of the bitmap on its page.
const BITMAP_START: usize = 24;

pub(super) fn init_bitmap(page: &mut PageMut<'_>, size: u16) -> Result<(), Fault> {
    init(page, NONE, NONE, flag::BITMAP)?;
    page.slice_mut(BITMAP_START, size.into())?.fill(0xFF);
    page.set_content_end(BITMAP_START + usize::from(size))
}

/// A set bit marks a page in use.
fn set_bit(page: &mut PageMut<'_>, bit: u32, on: bool) -> Result<(), Fault> {
    let byte = page.slice_mut(BITMAP_START + bit as usize / 8, 1)?;
    let mask = 1u8 << (bit % 8);
    for byte in byte {
        *byte = if on { *byte | mask } else { *byte & !mask };
    }
    Ok(())
}

/// `xl_hash_add_ovfl_page`: bmsize 0, bmpage_found 2. Blocks: 0 overflow page, 1 the preceding page in the chain, 2
/// bitmap page, 3 new bitmap page, 4 metapage; 2 and 3 may be missing.
pub(super) fn add(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    match op.block.id {
        0 => {
            init(page, NONE, data_u32(op)?, flag::OVERFLOW)?;
            set_link(page, PREV, op.need_blkno(1)?)
        }
        1 => set_link(page, NEXT, op.need_blkno(0)?),
        2 => set_bit(page, data_u32(op)?, true),
        3 => init_bitmap(page, u16_at(op.main, 0)?),
        _ => {
            meta::set_first_free(page, data_u32(op)?)?;
            if u8_at(op.main, 2)? == 0 {
                meta::count_overflow_page(page)?;
                if let Some(bitmap) = op.blkno_of(3) {
                    meta::add_bitmap(page, bitmap)?;
                    meta::count_overflow_page(page)?;
                }
            }
            Ok(())
        }
    }
}

/// Frees an overflow page after its tuples moved to an earlier page in the chain.
///
/// `xl_hash_squeeze_page`: prevblkno 0, nextblkno 4, ntups 8, is_prim_bucket_same_wrt 10, is_prev_bucket_same_wrt 11.
/// Blocks: 1 page written to, 2 freed page, 3 its predecessor, 4 its successor, 5 bitmap, 6 metapage.
pub(super) fn squeeze(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let (prev, next) = (u32_at(op.main, 0)?, u32_at(op.main, 4)?);
    match op.block.id {
        1 => return squeeze_target(op, next, page),
        2 => init(page, NONE, NONE, flag::UNUSED)?,
        3 => set_link(page, NEXT, next)?,
        4 => set_link(page, PREV, prev)?,
        5 => set_bit(page, data_u32(op)?, false)?,
        _ => meta::set_first_free(page, data_u32(op)?)?,
    }
    Ok(Outcome::Changed)
}

fn squeeze_target(op: &Op<'_>, next: u32, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let count = u16_at(op.main, 8)?;
    let is_prev = u8_at(op.main, 11)? != 0;
    if count > 0 {
        bucket::add_tuples(op, count, page)?;
    }
    if is_prev {
        set_link(page, NEXT, next)?;
    }
    // Before 17 the page got the record's LSN even if nothing on it changed.
    let changed = count > 0 || is_prev || op.ctx.version < PgVersion::V17;
    Ok(if changed { Outcome::Changed } else { Outcome::Unchanged })
}
