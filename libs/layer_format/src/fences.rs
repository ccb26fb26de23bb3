//! Fences: the first (key, LSN) of each index page, kept in memory while a layer is open.

use pageserver_api::key::CompactKey;
use utils::lsn::Lsn;

use crate::FormatError;
use crate::bytes::Cursor;

/// Bytes of a fence.
pub const FENCE_LEN: usize = 24;

/// The first (key, LSN) of each index page, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fences {
    first: Vec<(CompactKey, Lsn)>,
}

impl Fences {
    /// Adds the next page, which starts with (`key`, `lsn`).
    pub fn push(&mut self, key: CompactKey, lsn: Lsn) {
        debug_assert!(self.first.last().is_none_or(|last| *last < (key, lsn)), "index pages come in order");
        self.first.push((key, lsn));
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.first.len()
    }

    /// Whether there are no pages.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// The page where a search for (`key`, `lsn`) starts: the last one that begins at or before it, otherwise the
    /// first.
    pub fn page_of(&self, key: CompactKey, lsn: Lsn) -> usize {
        self.first.partition_point(|fence| *fence <= (key, lsn)).saturating_sub(1)
    }

    /// The first (key, LSN) of page `page`.
    pub fn first_of(&self, page: usize) -> Option<(CompactKey, Lsn)> {
        self.first.get(page).copied()
    }

    /// The encoding: for each page its key's 16 bytes big-endian and its LSN's 8 bytes little-endian.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.first.len() * FENCE_LEN);
        for (key, lsn) in &self.first {
            out.extend_from_slice(&key.to_i128().to_be_bytes());
            out.extend_from_slice(&lsn.0.to_le_bytes());
        }
        out
    }

    /// Decodes the fences of `pages` pages.
    pub fn decode(bytes: &[u8], pages: u32) -> Result<Self, FormatError> {
        if bytes.len() != pages as usize * FENCE_LEN {
            return Err(FormatError::new(format!("{} bytes of fences for {pages} index pages", bytes.len())));
        }
        let mut cursor = Cursor::new(bytes);
        let mut first = Vec::with_capacity(pages as usize);
        for _ in 0..pages {
            first.push((CompactKey::from(i128::from_be_bytes(cursor.array()?)), Lsn(cursor.u64()?)));
        }
        if first.is_sorted() { Ok(Self { first }) } else { Err(FormatError::new("fences are not in order")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_and_round_trip() {
        let mut fences = Fences::default();
        for n in [10, 20, 30] {
            fences.push(CompactKey::from(n), Lsn(5));
        }
        assert_eq!(Fences::decode(&fences.encode(), 3).unwrap(), fences);
        assert!(Fences::decode(&fences.encode(), 2).is_err());
        let page = |key, lsn| fences.page_of(CompactKey::from(key), Lsn(lsn));
        assert_eq!([page(5, 0), page(10, 5), page(20, 4), page(20, 5), page(99, 0)], [0, 0, 0, 1, 2]);
    }
}
