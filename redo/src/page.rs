//! Page operations that redo needs beyond `postgres_formats::page`.

use postgres_formats::page::{PD_ALL_VISIBLE, PageBytes, PageError, PageMut};

use crate::error::Fault;

/// Content of a page to be built from scratch.
pub(crate) const BLANK: PageBytes = [0; 8192];

/// Lowest transaction id that is compared modulo 2^32 (`FirstNormalTransactionId`).
const FIRST_NORMAL_XID: u32 = 3;

/// Operations that several resource managers need.
pub(crate) trait RedoPage {
    /// Adds an item after all others.
    fn append_item(&mut self, item: &[u8]) -> Result<(), PageError>;

    /// Sets or clears `PD_ALL_VISIBLE`.
    fn set_all_visible(&mut self, on: bool);

    /// Records that `xid` left something to prune, unless an older transaction did (`PageSetPrunable`).
    fn set_prunable(&mut self, xid: u32);

    /// Sets `pd_lower` to the end of content that is not line pointers.
    fn set_content_end(&mut self, end: usize) -> Result<(), Fault>;

    /// The 16-bit field `at` bytes into the special space, which is at least `size` bytes long.
    fn special_u16(&self, size: usize, at: usize) -> Result<u16, PageError>;

    /// The 32-bit field `at` bytes into the special space.
    fn special_u32(&self, size: usize, at: usize) -> Result<u32, PageError>;

    /// Writes to the special space, starting at its byte `at`.
    fn put_special(&mut self, size: usize, at: usize, bytes: &[u8]) -> Result<(), PageError>;

    /// Applies `change` to the 16-bit flags `at` bytes into the special space.
    fn change_special_flags(&mut self, size: usize, at: usize, change: impl Fn(u16) -> u16) -> Result<(), PageError>;
}

impl RedoPage for PageMut<'_> {
    fn append_item(&mut self, item: &[u8]) -> Result<(), PageError> {
        self.insert_item(item, self.max_offset().saturating_add(1))
    }

    fn set_all_visible(&mut self, on: bool) {
        self.set_flag(PD_ALL_VISIBLE, on);
    }

    fn set_prunable(&mut self, xid: u32) {
        if self.prune_xid() == 0 || precedes(xid, self.prune_xid()) {
            self.set_prune_xid(xid);
        }
    }

    fn set_content_end(&mut self, end: usize) -> Result<(), Fault> {
        let end = u16::try_from(end).ok().filter(|end| *end <= self.special());
        self.set_lower(end.ok_or(Fault::Inconsistent("content is longer than the page"))?);
        Ok(())
    }

    fn special_u16(&self, size: usize, at: usize) -> Result<u16, PageError> {
        self.u16_at(self.special_at_least(size)? + at)
    }

    fn special_u32(&self, size: usize, at: usize) -> Result<u32, PageError> {
        self.u32_at(self.special_at_least(size)? + at)
    }

    fn put_special(&mut self, size: usize, at: usize, bytes: &[u8]) -> Result<(), PageError> {
        self.put(self.special_at_least(size)? + at, bytes)
    }

    fn change_special_flags(&mut self, size: usize, at: usize, change: impl Fn(u16) -> u16) -> Result<(), PageError> {
        let flags = change(self.special_u16(size, at)?);
        self.put_special(size, at, &flags.to_le_bytes())
    }
}

/// Whether transaction `a` is older than `b` (`TransactionIdPrecedes`).
fn precedes(a: u32, b: u32) -> bool {
    if a < FIRST_NORMAL_XID || b < FIRST_NORMAL_XID {
        return a < b;
    }
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_ids_compare_modulo() {
        assert!(precedes(3, 4) && !precedes(4, 3) && !precedes(4, 4));
        assert!(precedes(u32::MAX, 3), "after the wraparound 3 is newer");
        assert!(precedes(2, u32::MAX) && !precedes(u32::MAX, 2), "frozen is older than all");
    }

    #[test]
    fn prunable_keeps_the_oldest() {
        let mut bytes = BLANK;
        let mut page = PageMut::new(&mut bytes);
        for (xid, kept) in [(10, 10), (12, 10), (8, 8)] {
            page.set_prunable(xid);
            assert_eq!(page.prune_xid(), kept);
        }
    }
}
