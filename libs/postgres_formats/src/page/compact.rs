//! Operations that lay out all items anew, and the trimming of line pointers.
//!
//! Compaction puts items in the order of their line pointers: the first one ends at the special space, the next one
//! directly below it, and so on. The bytes of the hole keep what they were.

use std::borrow::BorrowMut;

use super::items::Placed;
use super::{ITEM_ID_SIZE, ItemId, Layout, PAGE_HEADER_SIZE, PD_HAS_FREE_LINES, Page, PageBytes, PageError};
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
        check_room(&kept, layout)?;
        self.set_lower((PAGE_HEADER_SIZE + kept.len() * ITEM_ID_SIZE) as u16);
        let kept = kept.into_iter().zip(1..).map(|((item, placed), offset)| (offset, item, placed));
        self.lay_out(kept, layout)
    }

    /// Compacts the items and sets the hint of free line pointers (`PageRepairFragmentation`).
    ///
    /// Unused line pointers at the end are cut off if `cut_tail`, which the server does since 15.
    pub fn repair_fragmentation(&mut self, cut_tail: bool) -> Result<(), PageError> {
        let layout = self.aligned_layout()?;
        let count = self.max_offset();
        let (mut kept, mut unused, mut last_used) = (Vec::with_capacity(count.into()), 0, 0);
        for offset in 1..=count {
            let item = self.item_id(offset)?;
            if !item.is_used() {
                self.set_item_id(offset, ItemId::UNUSED)?;
                unused += 1;
                continue;
            }
            last_used = offset;
            if item.has_storage() {
                kept.push((offset, item, self.stored(offset, item, layout)?));
            }
        }
        let placed: Vec<_> = kept.iter().map(|(_, item, placed)| (*item, *placed)).collect();
        check_room(&placed, layout)?;
        self.lay_out(kept.into_iter(), layout)?;
        if cut_tail {
            unused -= count - last_used;
            self.set_lower((layout.lower - usize::from(count - last_used) * ITEM_ID_SIZE) as u16);
        }
        self.set_flag(PD_HAS_FREE_LINES, unused > 0);
        Ok(())
    }

    /// The place of a heap item; unlike in indexes its start need not be a multiple of 8.
    fn stored(&self, offset: u16, item: ItemId, layout: Layout) -> Result<Placed, PageError> {
        let (start, size) = (usize::from(item.offset()), maxalign(item.len().into()));
        if start < layout.upper || start + size > layout.special {
            return Err(PageError::BadItem { offset, item });
        }
        Ok(Placed { start, size })
    }

    /// Puts the items below the special space in the given order, and sets their line pointers and `pd_upper`.
    fn lay_out(&mut self, items: impl Iterator<Item = (u16, ItemId, Placed)>, layout: Layout) -> Result<(), PageError> {
        let before = *self.bytes();
        let mut upper = layout.special;
        for (offset, item, placed) in items {
            upper = upper.saturating_sub(placed.size);
            self.put(upper, crate::cursor::slice_at(&before, placed.start, placed.size)?)?;
            self.set_item_id(offset, item.with_offset(upper as u16))?;
        }
        self.set_upper(upper as u16);
        Ok(())
    }

    /// Cuts off unused line pointers at the end, but never the first one, and sets the hint of free ones
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

/// Items may overlap on a damaged page: then they would not fit when laid out one by one.
fn check_room(items: &[(ItemId, Placed)], layout: Layout) -> Result<(), PageError> {
    let needed = items.iter().map(|(_, placed)| placed.size).sum();
    let free = layout.special - layout.lower;
    if needed > free { Err(PageError::NoSpace { needed, free }) } else { Ok(()) }
}
