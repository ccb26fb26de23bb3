//! Operations that rearrange all items, and truncation of the line pointer array.
//!
//! Compaction places items in the order of their line pointers: the first one ends at the special space, the next one
//! directly below it, and so on. The bytes of the hole are not cleared.

use std::borrow::BorrowMut;

use super::items::Placed;
use super::{ITEM_ID_SIZE, ItemId, Layout, PAGE_HEADER_SIZE, PD_HAS_FREE_LINES, Page, PageBytes, PageError};
use crate::cursor::slice_at;
use crate::maxalign;

/// Deleting up to this many items keeps the physical order of the others.
const FEW: usize = 2;

impl<B: BorrowMut<PageBytes>> Page<B> {
    /// Removes the items `offsets` (ascending) and their line pointers (`PageIndexMultiDelete`).
    pub fn delete_items(&mut self, offsets: &[u16]) -> Result<(), PageError> {
        if offsets.len() <= FEW {
            if !offsets.is_sorted_by(|a, b| a < b) {
                return Err(PageError::DeleteList);
            }
            return offsets.iter().rev().try_for_each(|offset| self.delete_item(*offset));
        }
        let layout = self.aligned_layout()?;
        let mut gone = offsets.iter().copied().peekable();
        let mut kept = Vec::with_capacity(self.max_offset().into());
        for offset in 1..=self.max_offset() {
            let placed = self.placed(offset, layout)?;
            if gone.next_if_eq(&offset).is_none() {
                kept.push((self.item_id(offset)?, placed));
            }
        }
        if gone.next().is_some() {
            return Err(PageError::DeleteList);
        }
        let before = *self.bytes();
        let mut packed = Packed::new(&before, layout);
        self.set_lower((PAGE_HEADER_SIZE + kept.len() * ITEM_ID_SIZE) as u16);
        for ((item, placed), offset) in kept.into_iter().zip(1..) {
            let upper = packed.add(self, placed)?;
            self.set_item_id(offset, item.with_offset(upper))?;
        }
        packed.finish(self)
    }

    /// Compacts the items and updates the hint about free line pointers (`PageRepairFragmentation`).
    ///
    /// Trailing unused line pointers are removed if `cut_tail`, as the server does since 15.
    pub fn repair_fragmentation(&mut self, cut_tail: bool) -> Result<(), PageError> {
        let layout = self.aligned_layout()?;
        let count = self.max_offset();
        let before = *self.bytes();
        let mut packed = Packed::new(&before, layout);
        let (mut unused, mut last_used) = (0, 0);
        for offset in 1..=count {
            let item = self.item_id(offset)?;
            let mut new = item;
            if !item.is_used() {
                new = ItemId::UNUSED;
                unused += 1;
            } else {
                last_used = offset;
                if item.has_storage() {
                    new = item.with_offset(packed.add(self, self.stored(offset, item, layout)?)?);
                }
            }
            if new != item {
                self.set_item_id(offset, new)?;
            }
        }
        packed.finish(self)?;
        if cut_tail {
            unused -= count - last_used;
            self.set_lower((layout.lower - usize::from(count - last_used) * ITEM_ID_SIZE) as u16);
        }
        self.set_flag(PD_HAS_FREE_LINES, unused > 0);
        Ok(())
    }

    /// The location of a heap item; unlike in indexes its start need not be a multiple of 8.
    fn stored(&self, offset: u16, item: ItemId, layout: Layout) -> Result<Placed, PageError> {
        let (start, size) = (usize::from(item.offset()), maxalign(item.len().into()));
        if start < layout.upper || start + size > layout.special {
            return Err(PageError::BadItem { offset, item });
        }
        Ok(Placed { start, size })
    }

    /// Removes trailing unused line pointers, but never the first one, and updates the hint about free ones
    /// (`PageTruncateLinePointerArray`).
    pub fn truncate_line_pointers(&mut self) -> Result<(), PageError> {
        let layout = self.layout()?;
        let mut last = self.max_offset();
        while last > 1 && !self.item_id(last)?.is_used() {
            last -= 1;
        }
        let cut = usize::from(self.max_offset() - last);
        self.set_lower((layout.lower - cut * ITEM_ID_SIZE) as u16);
        let mut any_unused = false;
        for offset in 1..=last {
            any_unused |= !self.item_id(offset)?.is_used();
        }
        self.set_flag(PD_HAS_FREE_LINES, any_unused);
        Ok(())
    }
}

/// Packs items one below the other, from the special space down.
struct Packed<'a> {
    before: &'a PageBytes,
    layout: Layout,
    upper: usize,
    /// Adjacent items that stay adjacent, moved in one step: original start, and length; they end up at `upper`.
    run: Placed,
}

impl<'a> Packed<'a> {
    fn new(before: &'a PageBytes, layout: Layout) -> Self {
        Self { before, layout, upper: layout.special, run: Placed { start: layout.special, size: 0 } }
    }

    /// Adds the next item; returns its new offset. On a damaged page items may overlap, and then not all fit.
    fn add<B: BorrowMut<PageBytes>>(&mut self, page: &mut Page<B>, item: Placed) -> Result<u16, PageError> {
        if item.start + item.size != self.run.start {
            self.move_run(page)?;
            self.run = Placed { start: item.start + item.size, size: 0 };
        }
        let free = self.upper - self.layout.lower;
        let no_space = PageError::NoSpace { needed: item.size, free };
        self.upper = self.upper.checked_sub(item.size).filter(|upper| *upper >= self.layout.lower).ok_or(no_space)?;
        self.run = Placed { start: item.start, size: self.run.size + item.size };
        Ok(self.upper as u16)
    }

    fn move_run<B: BorrowMut<PageBytes>>(&self, page: &mut Page<B>) -> Result<(), PageError> {
        if self.run.start == self.upper {
            return Ok(());
        }
        page.put(self.upper, slice_at(self.before, self.run.start, self.run.size)?)
    }

    fn finish<B: BorrowMut<PageBytes>>(self, page: &mut Page<B>) -> Result<(), PageError> {
        self.move_run(page)?;
        page.set_upper(self.upper as u16);
        Ok(())
    }
}
