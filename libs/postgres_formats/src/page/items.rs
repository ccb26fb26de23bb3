//! Operations on single items: reading, adding, deleting, overwriting.

use std::borrow::{Borrow, BorrowMut};

use super::{ITEM_ID_SIZE, ItemId, Layout, PAGE_HEADER_SIZE, Page, PageBytes, PageError};
use crate::{BLCKSZ, maxalign};

/// Position of line pointer `offset` (from 1).
fn slot(offset: u16) -> usize {
    PAGE_HEADER_SIZE + usize::from(offset).saturating_sub(1) * ITEM_ID_SIZE
}

/// An item that was checked to lie within the item area, at a multiple of 8.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    /// Start.
    pub(super) start: usize,
    /// Length rounded up to a multiple of 8.
    pub(super) size: usize,
}

impl<B: Borrow<PageBytes>> Page<B> {
    /// Number of line pointers, the highest offset number (`PageGetMaxOffsetNumber`).
    pub fn max_offset(&self) -> u16 {
        (self.lower().saturating_sub(PAGE_HEADER_SIZE as u16)) / ITEM_ID_SIZE as u16
    }

    /// Line pointer `offset`, from 1.
    pub fn item_id(&self, offset: u16) -> Result<ItemId, PageError> {
        let count = self.max_offset();
        if offset == 0 || offset > count {
            return Err(PageError::NoItem { offset, count });
        }
        Ok(ItemId(self.u32_at(slot(offset))?))
    }

    /// The bytes of the item of line pointer `offset`, which must have one; its kind does not matter.
    pub fn item(&self, offset: u16) -> Result<&[u8], PageError> {
        let (start, len) = self.item_place(offset)?;
        self.slice(start, len)
    }

    fn item_place(&self, offset: u16) -> Result<(usize, usize), PageError> {
        let item = self.item_id(offset)?;
        let (start, len) = (usize::from(item.offset()), usize::from(item.len()));
        let in_page = start >= PAGE_HEADER_SIZE && start + len <= BLCKSZ;
        if len == 0 || !in_page {
            return Err(PageError::BadItem { offset, item });
        }
        Ok((start, len))
    }

    /// The item of line pointer `offset`, validated as index operations do.
    pub(super) fn placed(&self, offset: u16, layout: Layout) -> Result<Placed, PageError> {
        let item = self.item_id(offset)?;
        let (start, len) = (usize::from(item.offset()), usize::from(item.len()));
        if start < layout.upper || start + len > layout.special || !start.is_multiple_of(8) {
            return Err(PageError::BadItem { offset, item });
        }
        Ok(Placed { start, size: maxalign(len) })
    }
}

impl<B: BorrowMut<PageBytes>> Page<B> {
    /// Replaces line pointer `offset`, which must exist.
    pub fn set_item_id(&mut self, offset: u16, item: ItemId) -> Result<(), PageError> {
        self.item_id(offset)?;
        self.put(slot(offset), &item.0.to_le_bytes())
    }

    /// The bytes of the item of line pointer `offset`, mutable.
    pub fn item_mut(&mut self, offset: u16) -> Result<&mut [u8], PageError> {
        let (start, len) = self.item_place(offset)?;
        self.slice_mut(start, len)
    }

    /// Adds an item at line pointer `offset`: an existing one must be unused, otherwise it must be the next one
    /// (`PageAddItem` in overwrite mode: heap, BRIN).
    pub fn add_item(&mut self, item: &[u8], offset: u16) -> Result<(), PageError> {
        self.add(item, offset, false)
    }

    /// Adds an item at line pointer `offset`; line pointers from there on move up by one (`PageAddItem` of indexes).
    pub fn insert_item(&mut self, item: &[u8], offset: u16) -> Result<(), PageError> {
        self.add(item, offset, true)
    }

    fn add(&mut self, item: &[u8], offset: u16, shift: bool) -> Result<(), PageError> {
        let layout = self.layout()?;
        let count = self.max_offset();
        if offset == 0 || offset > count + 1 {
            return Err(PageError::NoItem { offset, count });
        }
        let existing = offset <= count;
        if existing && !shift {
            let old = self.item_id(offset)?;
            if old.is_used() || old.has_storage() {
                return Err(PageError::InUse(offset));
            }
        }
        let grows = !existing || shift;
        let lower = layout.lower + if grows { ITEM_ID_SIZE } else { 0 };
        let (needed, free) = (maxalign(item.len()), layout.upper.saturating_sub(lower));
        let no_space = PageError::NoSpace { needed, free };
        let upper = layout.upper.checked_sub(needed).filter(|upper| *upper >= lower).ok_or(no_space)?;
        if existing && shift {
            let at = slot(offset);
            self.copy_within(at, at + ITEM_ID_SIZE, layout.lower.saturating_sub(at))?;
        }
        self.put(slot(offset), &ItemId::normal(upper as u16, item.len() as u16).0.to_le_bytes())?;
        self.put(upper, item)?;
        self.set_lower(lower as u16);
        self.set_upper(upper as u16);
        Ok(())
    }

    /// Removes item `offset` and its line pointer, closing both gaps (`PageIndexTupleDelete`).
    pub fn delete_item(&mut self, offset: u16) -> Result<(), PageError> {
        let layout = self.aligned_layout()?;
        let gone = self.placed(offset, layout)?;
        let after = slot(offset) + ITEM_ID_SIZE;
        self.copy_within(after, after - ITEM_ID_SIZE, layout.lower.saturating_sub(after))?;
        self.set_lower((layout.lower - ITEM_ID_SIZE) as u16);
        self.close_gap(gone, layout, |_| true)
    }

    /// Removes item `offset`; its line pointer becomes unused, or is removed if it is the last one
    /// (`PageIndexTupleDeleteNoCompact`).
    pub fn delete_item_keep_pointer(&mut self, offset: u16) -> Result<(), PageError> {
        let layout = self.aligned_layout()?;
        let gone = self.placed(offset, layout)?;
        if offset < self.max_offset() {
            self.set_item_id(offset, ItemId::UNUSED)?;
        } else {
            self.set_lower((layout.lower - ITEM_ID_SIZE) as u16);
        }
        self.close_gap(gone, layout, ItemId::has_storage)
    }

    /// Moves the items below `gone` up over it, and adjusts those of their line pointers that `moves` selects.
    fn close_gap(&mut self, gone: Placed, layout: Layout, moves: fn(ItemId) -> bool) -> Result<(), PageError> {
        self.copy_within(layout.upper, layout.upper + gone.size, gone.start - layout.upper)?;
        self.set_upper((layout.upper + gone.size) as u16);
        self.shift_items(gone.start, gone.size as isize, moves)
    }

    /// Adds `by` to the offset of every selected line pointer whose item starts at or below `start`.
    fn shift_items(&mut self, start: usize, by: isize, moves: fn(ItemId) -> bool) -> Result<(), PageError> {
        for offset in 1..=self.max_offset() {
            let item = self.item_id(offset)?;
            if moves(item) && usize::from(item.offset()) <= start {
                let moved = isize::try_from(item.offset()).ok().and_then(|at| u16::try_from(at + by).ok());
                let moved = moved.ok_or(PageError::BadItem { offset, item })?;
                self.set_item_id(offset, item.with_offset(moved))?;
            }
        }
        Ok(())
    }

    /// Replaces item `offset` with `new` in place, moving the items below if its size changes
    /// (`PageIndexTupleOverwrite`). The line pointer keeps its kind.
    pub fn overwrite_item(&mut self, offset: u16, new: &[u8]) -> Result<(), PageError> {
        let layout = self.aligned_layout()?;
        let (item, old) = (self.item_id(offset)?, self.placed(offset, layout)?);
        if !item.has_storage() {
            return Err(PageError::BadItem { offset, item });
        }
        let needed = maxalign(new.len());
        let free = old.size + (layout.upper - layout.lower);
        if needed > free {
            return Err(PageError::NoSpace { needed, free });
        }
        if needed != old.size {
            let upper = layout.upper + old.size - needed;
            self.copy_within(layout.upper, upper, old.start - layout.upper)?;
            self.set_upper(upper as u16);
            self.shift_items(old.start, old.size as isize - needed as isize, ItemId::has_storage)?;
        }
        let item = self.item_id(offset)?.with_len(new.len() as u16);
        self.set_item_id(offset, item)?;
        self.put(old.start + old.size - needed, new)
    }
}
