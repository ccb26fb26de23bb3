//! Data pages (`PageHeaderData`, `bufpage.c`): header fields, line pointers, items, and the operations that replay
//! needs, with the same physical result as the server's.
//!
//! Nothing here trusts a page: for any bytes, an operation yields a result or a [`PageError`]. After an error the
//! page's content may be partly changed.

mod checksum;
mod compact;
mod item_id;
mod items;
#[cfg(test)]
mod tests;

use std::borrow::{Borrow, BorrowMut};

use thiserror::Error;

use crate::{
    BLCKSZ,
    cursor::{Truncated, array_at, slice_at},
};

pub use checksum::{data_checksum, set_data_checksum};
pub use item_id::{ItemId, LpFlags};

/// The bytes of a page.
pub type PageBytes = [u8; BLCKSZ];

/// Size of the page header, where the line pointers start (`SizeOfPageHeaderData`).
pub const PAGE_HEADER_SIZE: usize = 24;

/// Size of a line pointer.
pub const ITEM_ID_SIZE: usize = 4;

/// `pd_pagesize_version` of every page: 8192 bytes, layout version 4.
pub const PAGE_SIZE_VERSION: u16 = 0x2004;

/// `pd_flags`: there may be unused line pointers.
pub const PD_HAS_FREE_LINES: u16 = 0x0001;
/// `pd_flags`: not enough room for a new tuple.
pub const PD_PAGE_FULL: u16 = 0x0002;
/// `pd_flags`: all tuples are visible to everyone.
pub const PD_ALL_VISIBLE: u16 = 0x0004;

/// Offsets of the header's fields.
mod field {
    pub(super) const LSN: usize = 0;
    pub(super) const CHECKSUM: usize = 8;
    pub(super) const FLAGS: usize = 10;
    pub(super) const LOWER: usize = 12;
    pub(super) const UPPER: usize = 14;
    pub(super) const SPECIAL: usize = 16;
    pub(super) const SIZE_VERSION: usize = 18;
    pub(super) const PRUNE_XID: usize = 20;
}

/// Why an operation on a page is impossible: the page is damaged, or the record does not match it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PageError {
    /// Header pointers contradict each other.
    #[error("page header is corrupt: lower {lower}, upper {upper}, special {special}")]
    Layout {
        /// `pd_lower`
        lower: u16,
        /// `pd_upper`
        upper: u16,
        /// `pd_special`
        special: u16,
    },
    /// There is no line pointer with this number.
    #[error("no line pointer {offset}: the page has {count}")]
    NoItem {
        /// Number of the line pointer, from 1.
        offset: u16,
        /// Number of line pointers.
        count: u16,
    },
    /// A line pointer points outside the item area, or has no item.
    #[error("line pointer {offset} is corrupt or of the wrong kind: {item:?}")]
    BadItem {
        /// Number of the line pointer, from 1.
        offset: u16,
        /// The line pointer.
        item: ItemId,
    },
    /// The line pointer to fill is in use.
    #[error("line pointer {0} is in use")]
    InUse(u16),
    /// Not enough room.
    #[error("{needed} bytes do not fit into {free} free bytes")]
    NoSpace {
        /// Bytes needed.
        needed: usize,
        /// Bytes between the line pointers and the items.
        free: usize,
    },
    /// Numbers of items to delete are not ascending or do not exist.
    #[error("item numbers to delete do not ascend, or the page has no such items")]
    DeleteList,
    /// The special space is smaller than the access method requires.
    #[error("special space at {special} is smaller than {needed} bytes")]
    Special {
        /// `pd_special`
        special: u16,
        /// Size that the access method needs.
        needed: usize,
    },
    /// A read or write extends beyond the page.
    #[error("beyond the page: {0}")]
    Outside(#[from] Truncated),
}

/// A page: over `&PageBytes` for reading, over `&mut PageBytes`, `PageBytes` or `Box<PageBytes>` for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<B>(B);

/// A page that can be changed in place.
pub type PageMut<'a> = Page<&'a mut PageBytes>;

/// A read-only page.
pub type PageRef<'a> = Page<&'a PageBytes>;

/// The three validated header pointers: 24 <= lower <= upper <= special <= 8192.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// End of the line pointers.
    pub lower: usize,
    /// Start of the items.
    pub upper: usize,
    /// Start of the special space.
    pub special: usize,
}

impl<B: Borrow<PageBytes>> Page<B> {
    /// Wraps the page in `bytes`, whatever they contain.
    pub fn new(bytes: B) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    pub fn into_inner(self) -> B {
        self.0
    }

    /// All bytes.
    pub fn bytes(&self) -> &PageBytes {
        self.0.borrow()
    }

    /// A header field. Its offset is a constant within the header, so the read cannot fail.
    fn header<const N: usize>(&self, offset: usize) -> [u8; N] {
        array_at(self.bytes(), offset).expect("header fields lie within the page")
    }

    /// The little-endian `u16` at `offset`.
    pub fn u16_at(&self, offset: usize) -> Result<u16, PageError> {
        Ok(u16::from_le_bytes(array_at(self.bytes(), offset)?))
    }

    /// The little-endian `u32` at `offset`.
    pub fn u32_at(&self, offset: usize) -> Result<u32, PageError> {
        Ok(u32::from_le_bytes(array_at(self.bytes(), offset)?))
    }

    /// The `len` bytes at `offset`.
    pub fn slice(&self, offset: usize, len: usize) -> Result<&[u8], PageError> {
        Ok(slice_at(self.bytes(), offset, len)?)
    }

    /// Whether the page was never initialized (`PageIsNew`: `pd_upper` is 0).
    pub fn is_new(&self) -> bool {
        self.upper() == 0
    }

    /// LSN of the last change (`pd_lsn`; stored as the high half, then the low half).
    pub fn lsn(&self) -> u64 {
        read_split_u64(self.header(field::LSN))
    }

    /// `pd_checksum` as stored.
    pub fn checksum(&self) -> u16 {
        u16::from_le_bytes(self.header(field::CHECKSUM))
    }

    /// `pd_flags`
    pub fn flags(&self) -> u16 {
        u16::from_le_bytes(self.header(field::FLAGS))
    }

    /// `pd_lower`, unchecked.
    pub fn lower(&self) -> u16 {
        u16::from_le_bytes(self.header(field::LOWER))
    }

    /// `pd_upper`, unchecked.
    pub fn upper(&self) -> u16 {
        u16::from_le_bytes(self.header(field::UPPER))
    }

    /// `pd_special`, unchecked.
    pub fn special(&self) -> u16 {
        u16::from_le_bytes(self.header(field::SPECIAL))
    }

    /// `pd_pagesize_version`
    pub fn size_version(&self) -> u16 {
        u16::from_le_bytes(self.header(field::SIZE_VERSION))
    }

    /// `pd_prune_xid`
    pub fn prune_xid(&self) -> u32 {
        u32::from_le_bytes(self.header(field::PRUNE_XID))
    }

    /// The validated header pointers.
    pub fn layout(&self) -> Result<Layout, PageError> {
        let (lower, upper, special) = (self.lower(), self.upper(), self.special());
        let header_fits = usize::from(lower) >= PAGE_HEADER_SIZE && usize::from(special) <= BLCKSZ;
        if !header_fits || lower > upper || upper > special {
            return Err(PageError::Layout { lower, upper, special });
        }
        Ok(Layout { lower: lower.into(), upper: upper.into(), special: special.into() })
    }

    /// As [`layout`](Self::layout), and also checks that the special space starts at a multiple of 8.
    fn aligned_layout(&self) -> Result<Layout, PageError> {
        let layout = self.layout()?;
        if !layout.special.is_multiple_of(8) {
            let (lower, upper, special) = (self.lower(), self.upper(), self.special());
            return Err(PageError::Layout { lower, upper, special });
        }
        Ok(layout)
    }

    /// Offset of the special space, which must have at least `size` bytes.
    pub fn special_at_least(&self, size: usize) -> Result<usize, PageError> {
        let special = self.special();
        let fits = usize::from(special) >= PAGE_HEADER_SIZE && usize::from(special).saturating_add(size) <= BLCKSZ;
        if fits { Ok(special.into()) } else { Err(PageError::Special { special, needed: size }) }
    }
}

impl<B: BorrowMut<PageBytes>> Page<B> {
    /// All bytes, mutable.
    pub fn bytes_mut(&mut self) -> &mut PageBytes {
        self.0.borrow_mut()
    }

    /// Writes `bytes` at `offset`.
    pub fn put(&mut self, offset: usize, bytes: &[u8]) -> Result<(), PageError> {
        self.slice_mut(offset, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// The `len` bytes at `offset`, mutable.
    pub fn slice_mut(&mut self, offset: usize, len: usize) -> Result<&mut [u8], PageError> {
        let page = self.bytes_mut();
        let end = offset.saturating_add(len);
        Ok(page.get_mut(offset..end).ok_or(Truncated { offset, needed: len, len: BLCKSZ })?)
    }

    /// Moves the `len` bytes at `from` to `to`; the ranges may overlap.
    fn copy_within(&mut self, from: usize, to: usize, len: usize) -> Result<(), PageError> {
        slice_at(self.bytes(), from, len)?;
        slice_at(self.bytes(), to, len)?;
        self.bytes_mut().copy_within(from..from + len, to);
        Ok(())
    }

    fn put_header<const N: usize>(&mut self, offset: usize, value: [u8; N]) {
        self.put(offset, &value).expect("header fields lie within the page");
    }

    /// Sets `pd_lsn`.
    pub fn set_lsn(&mut self, lsn: u64) {
        self.put_header(field::LSN, split_u64(lsn));
    }

    /// Sets `pd_checksum`; [`set_data_checksum`] computes the correct value.
    pub fn set_checksum(&mut self, checksum: u16) {
        self.put_header(field::CHECKSUM, checksum.to_le_bytes());
    }

    /// Sets `pd_flags`.
    pub fn set_flags(&mut self, flags: u16) {
        self.put_header(field::FLAGS, flags.to_le_bytes());
    }

    /// Sets or clears one flag of `pd_flags`.
    pub fn set_flag(&mut self, flag: u16, on: bool) {
        let others = self.flags() & !flag;
        self.set_flags(if on { others | flag } else { others });
    }

    /// Sets `pd_lower`.
    pub fn set_lower(&mut self, lower: u16) {
        self.put_header(field::LOWER, lower.to_le_bytes());
    }

    /// Sets `pd_upper`.
    pub fn set_upper(&mut self, upper: u16) {
        self.put_header(field::UPPER, upper.to_le_bytes());
    }

    /// Sets `pd_prune_xid`.
    pub fn set_prune_xid(&mut self, xid: u32) {
        self.put_header(field::PRUNE_XID, xid.to_le_bytes());
    }

    /// Zeroes the page and writes an empty header with `special_size` bytes of special space (`PageInit`).
    pub fn init(&mut self, special_size: u16) {
        let special = BLCKSZ.saturating_sub(crate::maxalign(special_size.into())).max(PAGE_HEADER_SIZE) as u16;
        self.bytes_mut().fill(0);
        self.set_lower(PAGE_HEADER_SIZE as u16);
        self.set_upper(special);
        self.put_header(field::SPECIAL, special.to_le_bytes());
        self.put_header(field::SIZE_VERSION, PAGE_SIZE_VERSION.to_le_bytes());
    }
}

/// A 64-bit integer stored as two little-endian halves, the high one first (`PageXLogRecPtr`, also GiST's NSN).
pub fn read_split_u64(bytes: [u8; 8]) -> u64 {
    u64::from_le_bytes(bytes).rotate_left(32)
}

/// The bytes that [`read_split_u64`] reads.
pub fn split_u64(value: u64) -> [u8; 8] {
    value.rotate_left(32).to_le_bytes()
}
