//! The metapage (`HashMetaPageData`): numbers of tuples and buckets, and where overflow pages and their bitmaps are.

use postgres_formats::cursor::{array_at, u16_at, u32_at};
use postgres_formats::page::PageMut;

use super::page::{NONE, flag, init as init_page};
use crate::error::Fault;
use crate::op::Op;
use crate::page::RedoPage;

/// Start and size of `HashMetaPageData`.
const START: usize = 24;
const SIZE: usize = 4544;

/// Offsets within it.
mod field {
    pub(super) const TUPLES: usize = 8;
    pub(super) const MAX_BUCKET: usize = 24;
    pub(super) const HIGH_MASK: usize = 28;
    pub(super) const LOW_MASK: usize = 32;
    pub(super) const OVERFLOW_POINT: usize = 36;
    pub(super) const FIRST_FREE: usize = 40;
    pub(super) const MAPS: usize = 44;
    pub(super) const PROC_ID: usize = 48;
    pub(super) const SPARES: usize = 52;
    pub(super) const MAP_PAGES: usize = 444;
}

const SPARES: u32 = 98;
const MAP_PAGES: u32 = 1024;

const MAGIC: u32 = 0x0644_0640;
const VERSION: u32 = 4;
/// Usable bytes of a page, bytes of the bitmap on a bitmap page, and the binary logarithm of its number of bits.
const BUCKET_SIZE: u16 = 8152;
const BITMAP_SIZE: u16 = 4096;
const BITMAP_SHIFT: u16 = 15;

/// Splitpoints up to this group have one phase, later groups have four (`HASH_SPLITPOINT_GROUPS_WITH_ONE_PHASE`).
const ONE_PHASE_GROUPS: u32 = 10;

fn get(page: &PageMut<'_>, field: usize) -> Result<u32, Fault> {
    Ok(page.u32_at(START + field)?)
}

fn put(page: &mut PageMut<'_>, field: usize, value: u32) -> Result<(), Fault> {
    Ok(page.put(START + field, &value.to_le_bytes())?)
}

/// `xl_hash_init_meta_page`: number of tuples (f64) 0, hash function 8, fill factor 12 (`_hash_init_metabuffer`).
pub(super) fn init(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let tuples = f64::from_le_bytes(array_at(op.main, 0)?);
    let fill_factor = u16_at(op.main, 12)?;
    let buckets = initial_buckets(tuples / f64::from(fill_factor));
    let spare = spare_index(buckets);
    let high_mask = buckets.saturating_add(1).checked_next_power_of_two().map_or(u32::MAX, |n| n - 1);

    init_page(page, NONE, NONE, flag::META)?;
    put(page, 0, MAGIC)?;
    put(page, 4, VERSION)?;
    let sizes = [fill_factor, BUCKET_SIZE, BITMAP_SIZE, BITMAP_SHIFT];
    for (at, size) in (START + 16..).step_by(2).zip(sizes) {
        page.put(at, &size.to_le_bytes())?;
    }
    put(page, field::MAX_BUCKET, buckets.saturating_sub(1))?;
    put(page, field::HIGH_MASK, high_mask)?;
    put(page, field::LOW_MASK, high_mask >> 1)?;
    put(page, field::OVERFLOW_POINT, spare)?;
    put(page, field::PROC_ID, u32_at(op.main, 8)?)?;
    put(page, field::SPARES + spare as usize * 4, 1)?;
    page.set_content_end(START + SIZE)
}

fn initial_buckets(wanted: f64) -> u32 {
    const MOST: f64 = (1u32 << 30) as f64;
    if wanted <= 2.0 {
        2
    } else if wanted >= MOST {
        1 << 30
    } else {
        total_buckets(spare_index(wanted as u32))
    }
}

/// The splitpoint phase in which bucket number `buckets - 1` is allocated (`_hash_spareindex`).
fn spare_index(buckets: u32) -> u32 {
    let group = buckets.checked_next_power_of_two().map_or(32, u32::trailing_zeros);
    if group < ONE_PHASE_GROUPS {
        return group;
    }
    let phase = (buckets.saturating_sub(1) >> (group - 3)) & 3;
    ONE_PHASE_GROUPS + (group - ONE_PHASE_GROUPS) * 4 + phase
}

/// Number of buckets up to the end of a splitpoint phase (`_hash_get_totalbuckets`).
fn total_buckets(phase: u32) -> u32 {
    if phase < ONE_PHASE_GROUPS {
        return 1 << phase;
    }
    let group = ONE_PHASE_GROUPS + ((phase - ONE_PHASE_GROUPS) >> 2);
    let before = 1u32 << (group - 1).min(31);
    before + (before >> 2) * (((phase - ONE_PHASE_GROUPS) & 3) + 1)
}

pub(super) fn change_tuples(page: &mut PageMut<'_>, change: impl Fn(f64) -> f64) -> Result<(), Fault> {
    let tuples = f64::from_le_bytes(array_at(page.bytes(), START + field::TUPLES)?);
    Ok(page.put(START + field::TUPLES, &change(tuples).to_le_bytes())?)
}

/// Main data: the number of tuples.
pub(super) fn set_tuples(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let tuples = f64::from_le_bytes(array_at(op.main, 0)?);
    change_tuples(page, |_| tuples)
}

pub(super) fn set_first_free(page: &mut PageMut<'_>, bit: u32) -> Result<(), Fault> {
    put(page, field::FIRST_FREE, bit)
}

pub(super) fn set_max_bucket(page: &mut PageMut<'_>, bucket: u32) -> Result<(), Fault> {
    put(page, field::MAX_BUCKET, bucket)
}

pub(super) fn set_masks(page: &mut PageMut<'_>, low: u32, high: u32) -> Result<(), Fault> {
    put(page, field::LOW_MASK, low)?;
    put(page, field::HIGH_MASK, high)
}

/// Starts a new splitpoint, before which `pages` overflow pages were allocated.
pub(super) fn set_splitpoint(page: &mut PageMut<'_>, splitpoint: u32, pages: u32) -> Result<(), Fault> {
    put(page, spare_field(splitpoint)?, pages)?;
    put(page, field::OVERFLOW_POINT, splitpoint)
}

/// Adds the first bitmap page, which follows the last bucket.
pub(super) fn add_first_bitmap(page: &mut PageMut<'_>) -> Result<(), Fault> {
    let blkno = get(page, field::MAX_BUCKET)?.wrapping_add(2);
    add_bitmap(page, blkno)
}

pub(super) fn add_bitmap(page: &mut PageMut<'_>, blkno: u32) -> Result<(), Fault> {
    let maps = get(page, field::MAPS)?;
    if maps >= MAP_PAGES {
        return Err(Fault::Inconsistent("hash index has too many bitmap pages"));
    }
    put(page, field::MAP_PAGES + maps as usize * 4, blkno)?;
    put(page, field::MAPS, maps + 1)
}

/// Counts one more overflow page of the current splitpoint.
pub(super) fn count_overflow_page(page: &mut PageMut<'_>) -> Result<(), Fault> {
    let spare = spare_field(get(page, field::OVERFLOW_POINT)?)?;
    let pages = get(page, spare)?;
    put(page, spare, pages.wrapping_add(1))
}

fn spare_field(splitpoint: u32) -> Result<usize, Fault> {
    if splitpoint >= SPARES {
        return Err(Fault::Inconsistent("hash index has too many splitpoints"));
    }
    Ok(field::SPARES + splitpoint as usize * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitpoint_phases() {
        let phases: Vec<u32> =
            [1, 2, 3, 4, 5, 512, 513, 640, 641, 768, 769, 896, 897, 1024, 1025].map(spare_index).into();
        assert_eq!(phases, [0, 1, 2, 2, 3, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14]);
        assert_eq!([0, 9, 10, 11, 12, 13, 14].map(total_buckets), [1, 512, 640, 768, 896, 1024, 1280]);
    }

    #[test]
    fn initial_bucket_numbers() {
        assert_eq!([0.0, 2.0, 2.9, 3.0, 600.0].map(initial_buckets), [2, 2, 2, 4, 640]);
        assert_eq!(initial_buckets(f64::INFINITY), 1 << 30);
    }
}
