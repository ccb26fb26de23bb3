//! Reads the index entries of a layer in order, a few pages at a time and past the page cache: a job over whole layers
//! neither holds their indexes in memory nor evicts what reads need.

use std::ops::Range;

use layer_format::block::block_start;
use layer_format::index::{INDEX_PAGE_BLOCKS, INDEX_PAGE_SIZE, IndexEntry, IndexPage};
use pageserver_api::key::{CompactKey, Key};
use utils::lsn::Lsn;

use super::block_source::{BlockSource, Extent};
use super::layer_file::LayerFile;
use super::visit::compact_bounds;
use super::{DeltaLayer, ImageLayer};
use errors::StorageError;

/// Index pages read at once.
const PAGES_AT_ONCE: u32 = 16;

/// The entries of a layer with keys and LSNs in given ranges.
#[derive(Debug)]
pub(crate) struct IndexCursor {
    source: BlockSource,
    index_block: u64,
    /// Index pages still to be read.
    pages: Range<u32>,
    /// How many to read next: few at first, as the range may be narrow.
    at_once: u32,
    /// First and last key; `None` if the range has none.
    keys: Option<(CompactKey, CompactKey)>,
    lsns: Range<Lsn>,
    entries: Vec<IndexEntry>,
    /// The next one of `entries`.
    at: usize,
}

impl IndexCursor {
    pub(super) fn new(file: &LayerFile, keys: &Range<Key>, lsns: Range<Lsn>) -> Self {
        let keys = compact_bounds(keys);
        // The last key's entries may go on for more pages; where they end is seen when they are read.
        let pages = keys.map_or(0..0, |(first, _)| file.page_of(first)..file.pages());
        Self {
            source: file.source().clone(),
            index_block: file.footer().index_block,
            pages,
            at_once: 1,
            keys,
            lsns,
            entries: Vec::new(),
            at: 0,
        }
    }

    /// The next entry, if [`IndexCursor::fill`] was called since the last one was taken.
    pub(crate) fn peek(&self) -> Option<&IndexEntry> {
        self.entries.get(self.at)
    }

    /// Takes the entry that [`IndexCursor::peek`] returns.
    pub(crate) fn advance(&mut self) {
        self.at += 1;
    }

    /// Index pages that have not been read yet.
    pub(super) fn pages_left(&self) -> u32 {
        self.pages.end.saturating_sub(self.pages.start)
    }

    /// The layer's blocks.
    pub(super) fn source(&self) -> &BlockSource {
        &self.source
    }

    /// Reads more entries if there is none to peek at. Afterwards there is none only at the end.
    pub(crate) async fn fill(&mut self) -> Result<(), StorageError> {
        while self.at >= self.entries.len() && !self.pages.is_empty() {
            self.read_pages().await?;
        }
        Ok(())
    }

    async fn read_pages(&mut self) -> Result<(), StorageError> {
        let now = self.pages.start..self.pages.end.min(self.pages.start + self.at_once);
        self.pages.start = now.end;
        self.at_once = PAGES_AT_ONCE;
        self.entries.clear();
        self.at = 0;
        let Some((first, last)) = self.keys else { return Ok(()) };
        let block = |page: u32| self.index_block + u64::from(page) * INDEX_PAGE_BLOCKS;
        let extent = |page| Extent { position: block_start(block(page)), len: INDEX_PAGE_SIZE as u32 };
        let extents: Vec<Extent> = now.clone().map(extent).collect();
        let (pages, _) = self.source.read_values(&extents).await?;
        for (page, bytes) in now.zip(&pages) {
            let index = IndexPage::decode(bytes).map_err(|error| self.source.corrupt(block(page), error.0))?;
            let wanted = |entry: &IndexEntry| (first..=last).contains(&entry.key) && self.lsns.contains(&entry.lsn);
            self.entries.extend(index.iter_from(0).filter(wanted));
            if index.get(index.len().saturating_sub(1)).is_some_and(|entry| entry.key > last) {
                self.pages = 0..0;
                break;
            }
        }
        Ok(())
    }
}

impl DeltaLayer {
    /// Its entries with keys in `keys` and LSNs in `lsns`.
    pub(crate) fn cursor(&self, keys: &Range<Key>, lsns: Range<Lsn>) -> IndexCursor {
        IndexCursor::new(self.file(), keys, lsns)
    }

    /// Up to `count` of its keys, ascending, with about equally many entries between them.
    pub(crate) fn sample_keys(&self, count: usize) -> Vec<Key> {
        self.file().sample_keys(count)
    }
}

impl ImageLayer {
    /// Up to `count` of its keys, ascending, with about equally many entries between them.
    pub(crate) fn sample_keys(&self, count: usize) -> Vec<Key> {
        self.file().sample_keys(count)
    }

    /// Its entries with keys in `keys`.
    pub(crate) fn cursor(&self, keys: &Range<Key>) -> IndexCursor {
        IndexCursor::new(self.file(), keys, self.lsn()..self.lsn() + 1)
    }
}
