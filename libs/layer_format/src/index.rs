//! Index pages: (key, LSN) -> position of the value, in columns as narrow as the page's values permit.
//!
//! A page holds up to 8,184 bytes (two blocks' payload). Each column stores differences to the page's base in a fixed
//! number of bytes, so that an entry for a 100-byte value costs about 10 bytes and a search needs no decoding.

use pageserver_api::key::CompactKey;
use utils::lsn::Lsn;

use crate::FormatError;
use crate::block::BLOCK_PAYLOAD;
use crate::bytes::{Cursor, byte_width};

/// Blocks of an index page.
pub const INDEX_PAGE_BLOCKS: u64 = 2;
/// Maximum size of an index page in bytes.
pub const INDEX_PAGE_SIZE: usize = INDEX_PAGE_BLOCKS as usize * BLOCK_PAYLOAD;
/// Bytes before the columns: count (2), widths (4), base key (16), LSN (8), position (8), length (8).
const HEADER_LEN: usize = 2 + 4 + 16 + 8 + 8 + 8;
/// Readers load columns in 8- or 16-byte words, which may reach past the last entry.
const COLUMNS: usize = 4;

/// One entry: the location of the value of (key, LSN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Key.
    pub key: CompactKey,
    /// LSN of the version.
    pub lsn: Lsn,
    /// Logical position of the value's first byte.
    pub position: u64,
    /// Stored length of the value in bytes.
    pub len: u32,
    /// Delta layers: the value needs no earlier version. Image layers: the value is compressed.
    pub flag: bool,
}

impl IndexEntry {
    fn packed_len(&self) -> u64 {
        u64::from(self.len) << 1 | u64::from(self.flag)
    }
}

/// Collects entries in order of (key, LSN) into one page.
#[derive(Debug, Default)]
pub struct IndexPageBuilder {
    entries: Vec<IndexEntry>,
    lsn: Spread,
    position: Spread,
    len: Spread,
}

/// The smallest and largest value of a column, and the number of bytes for differences to the smallest.
#[derive(Clone, Copy, Debug)]
struct Spread {
    min: u64,
    max: u64,
    width: usize,
}

impl Default for Spread {
    fn default() -> Self {
        Self { min: u64::MAX, max: 0, width: 0 }
    }
}

impl Spread {
    #[inline]
    fn with(self, value: u64) -> Self {
        if (self.min..=self.max).contains(&value) {
            return self;
        }
        let (min, max) = (self.min.min(value), self.max.max(value));
        Self { min, max, width: byte_width(u128::from(max - min)) }
    }
}

fn key_bits(key: CompactKey) -> u128 {
    key.to_i128() as u128
}

impl IndexPageBuilder {
    /// Adds an entry. Returns false without adding it if the page is full.
    ///
    /// # Panics
    /// If the entry's key and LSN do not come after the last entry's.
    pub fn push(&mut self, entry: IndexEntry) -> bool {
        let lsn = self.lsn.with(entry.lsn.0);
        let position = self.position.with(entry.position);
        let len = self.len.with(entry.packed_len());
        let key_width = match (self.entries.first(), self.entries.last()) {
            (Some(first), Some(last)) => {
                let comes_after = last.key < entry.key || last.key == entry.key && last.lsn < entry.lsn;
                assert!(comes_after, "index entries come in order");
                byte_width(key_bits(entry.key) - key_bits(first.key))
            }
            _ => 0,
        };
        let row = key_width + lsn.width + position.width + len.width;
        if HEADER_LEN + row * (self.entries.len() + 1) > INDEX_PAGE_SIZE || self.entries.len() == usize::from(u16::MAX)
        {
            return false;
        }
        (self.lsn, self.position, self.len) = (lsn, position, len);
        self.entries.push(entry);
        true
    }

    /// The first entry, if any.
    pub fn first(&self) -> Option<&IndexEntry> {
        self.entries.first()
    }

    /// Appends the page to `out` and starts a new one. Appends nothing if the page is empty.
    pub fn finish_into(&mut self, out: &mut Vec<u8>) {
        let (Some(first), Some(last)) = (self.entries.first(), self.entries.last()) else { return };
        let base_key = key_bits(first.key);
        let key_width = byte_width(key_bits(last.key) - base_key);
        let widths = [key_width, self.lsn.width, self.position.width, self.len.width];
        out.extend_from_slice(&(self.entries.len() as u16).to_le_bytes());
        out.extend(widths.map(|width| width as u8));
        out.extend_from_slice(&base_key.to_le_bytes());
        for base in [self.lsn.min, self.position.min, self.len.min] {
            out.extend_from_slice(&base.to_le_bytes());
        }
        let [key_width, lsn_width, position_width, len_width] = widths;
        push_column(out, key_width, self.entries.iter().map(|e| key_bits(e.key) - base_key));
        push_column(out, lsn_width, self.entries.iter().map(|e| u128::from(e.lsn.0 - self.lsn.min)));
        push_column(out, position_width, self.entries.iter().map(|e| u128::from(e.position - self.position.min)));
        push_column(out, len_width, self.entries.iter().map(|e| u128::from(e.packed_len() - self.len.min)));
        self.entries.clear();
        (self.lsn, self.position, self.len) = Default::default();
    }
}

fn push_column(out: &mut Vec<u8>, width: usize, values: impl ExactSizeIterator<Item = u128>) {
    let (start, len) = (out.len(), width * values.len());
    // Stores whole words: the excess bytes of a value are overwritten by the next value.
    out.resize(start + len + size_of::<u128>(), 0);
    let column = out.get_mut(start..).unwrap_or_default();
    for (at, value) in values.enumerate() {
        let place = column.get_mut(at * width..).unwrap_or_default();
        if width <= size_of::<u64>() {
            if let Some(word) = place.first_chunk_mut() {
                *word = (value as u64).to_le_bytes();
            }
        } else if let Some(word) = place.first_chunk_mut() {
            *word = value.to_le_bytes();
        }
    }
    out.truncate(start + len);
}

/// A decoded view of an index page.
#[derive(Clone, Copy, Debug)]
pub struct IndexPage<'a> {
    count: usize,
    base_key: u128,
    bases: [u64; COLUMNS - 1],
    widths: [usize; COLUMNS],
    /// From the start of each column to the end of the page, so that whole words can be loaded.
    columns: [&'a [u8]; COLUMNS],
}

impl<'a> IndexPage<'a> {
    /// Decodes the page in `bytes`; bytes after it (padding to whole blocks) must be zero.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(bytes);
        let count = usize::from(cursor.u16()?);
        let widths = cursor.array::<COLUMNS>()?.map(usize::from);
        let [key_width, narrow @ ..] = widths;
        if count == 0 || key_width > 16 || narrow.iter().any(|width| *width > 8) {
            return Err(FormatError::new("index page header makes no sense"));
        }
        let base_key = cursor.u128()?;
        let bases = [cursor.u64()?, cursor.u64()?, cursor.u64()?];
        let mut columns: [&[u8]; COLUMNS] = [&[]; COLUMNS];
        for (column, width) in columns.iter_mut().zip(widths) {
            *column = cursor.rest();
            cursor.take(width * count)?;
        }
        cursor.expect_zeros()?;
        Ok(Self { count, base_key, bases, widths, columns })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the page has no entries (never true of a decoded page).
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Entry `at`, if there is one.
    pub fn get(&self, at: usize) -> Option<IndexEntry> {
        if at >= self.count {
            return None;
        }
        let [_, _, positions, lens] = self.columns;
        let [_, _, position_width, len_width] = self.widths;
        let [_, position_base, len_base] = self.bases;
        let packed_len = len_base.wrapping_add(load(lens, len_width, at));
        Some(IndexEntry {
            key: self.key(at),
            lsn: self.lsn(at),
            position: position_base.wrapping_add(load(positions, position_width, at)),
            len: (packed_len >> 1) as u32,
            flag: packed_len & 1 == 1,
        })
    }

    fn key(&self, at: usize) -> CompactKey {
        let ([column, ..], [width, ..]) = (self.columns, self.widths);
        let offset =
            if width <= size_of::<u64>() { load(column, width, at).into() } else { load_wide(column, width, at) };
        CompactKey::from(self.base_key.wrapping_add(offset) as i128)
    }

    fn lsn(&self, at: usize) -> Lsn {
        let ([_, column, ..], [_, width, ..], [base, ..]) = (self.columns, self.widths, self.bases);
        Lsn(base.wrapping_add(load(column, width, at)))
    }

    /// Number of entries less than (`key`, `lsn`).
    pub fn lower_bound(&self, key: CompactKey, lsn: Lsn) -> usize {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            let found = self.key(middle);
            if found < key || found == key && self.lsn(middle) < lsn {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// All entries from `at` on.
    pub fn iter_from(self, at: usize) -> impl Iterator<Item = IndexEntry> + use<'a> {
        (at..self.count).filter_map(move |at| self.get(at))
    }
}

/// Value `at` of a column of values of `width` bytes, at most 8. Loads a whole word and drops what is not of the value:
/// to copy a number of bytes that is known only at run time is a call, of which a search would make dozens.
fn load(column: &[u8], width: usize, at: usize) -> u64 {
    let rest = column.get(at * width..).unwrap_or_default();
    let word = rest.first_chunk().copied().unwrap_or_else(|| padded(rest));
    let unused = u64::BITS - u8::BITS * width as u32;
    u64::from_le_bytes(word) & u64::MAX.checked_shr(unused).unwrap_or(0)
}

/// The same of at most 16 bytes.
fn load_wide(column: &[u8], width: usize, at: usize) -> u128 {
    let rest = column.get(at * width..).unwrap_or_default();
    let word = rest.first_chunk().copied().unwrap_or_else(|| padded(rest));
    let unused = u128::BITS - u8::BITS * width as u32;
    u128::from_le_bytes(word) & u128::MAX.checked_shr(unused).unwrap_or(0)
}

/// The first bytes of a word that ends beyond the page.
#[cold]
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut word = [0; N];
    word.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    word
}

#[cfg(test)]
mod tests;
