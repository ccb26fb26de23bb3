//! Reads the pages of a fork in chunks, across its segment files.

use std::fs::File;
use std::os::unix::fs::FileExt;

use camino::{Utf8Path, Utf8PathBuf};
use pageserver_api::reltag::BlockNumber;
use postgres_formats::BLCKSZ;
use postgres_formats::page::{PageBytes, PageRef, data_checksum};

use super::small_files::{corrupt, io_error};
use super::{ForkFiles, RELATION_SEGMENT_BLOCKS};
use errors::StorageError;

/// Pages read at once: 1 MiB.
const CHUNK_PAGES: u32 = 128;

/// Consecutive pages of one file.
#[derive(Debug)]
pub struct PageChunk {
    /// Block number, within the fork, of the first page.
    pub first: BlockNumber,
    /// The pages, back to back.
    pub bytes: Vec<u8>,
    /// The file.
    pub path: Utf8PathBuf,
    /// Offset of the first page in the file.
    pub offset: u64,
}

impl PageChunk {
    /// The pages with their block numbers.
    pub fn pages(&self) -> impl Iterator<Item = (BlockNumber, &PageBytes)> {
        (self.first..).zip(self.bytes.as_chunks::<BLCKSZ>().0)
    }

    /// Offset of page `blkno` in the file.
    pub fn offset_of(&self, blkno: BlockNumber) -> u64 {
        self.offset + u64::from(blkno - self.first) * BLCKSZ as u64
    }
}

/// Reads a fork from start to end.
#[derive(Debug)]
pub struct PageReader {
    files: ForkFiles,
    next: BlockNumber,
    open: Option<(usize, File)>,
}

impl PageReader {
    /// A reader of all blocks of `files`.
    pub fn new(files: ForkFiles) -> Self {
        Self { files, next: 0, open: None }
    }

    /// The segment file whose first page is next; `None` if the next page is not the first of its segment.
    pub fn at_start_of(&self) -> Option<&Utf8Path> {
        let (number, within) = (self.next / RELATION_SEGMENT_BLOCKS, self.next % RELATION_SEGMENT_BLOCKS);
        let path = self.files.segments.get(number as usize)?;
        (within == 0 && self.next < self.files.blocks).then_some(path)
    }

    /// Skips the rest of the segment file that contains the next page. Returns the number of skipped pages.
    pub fn skip_segment(&mut self) -> u32 {
        let end = (self.next / RELATION_SEGMENT_BLOCKS + 1).saturating_mul(RELATION_SEGMENT_BLOCKS);
        let end = end.min(self.files.blocks);
        end - std::mem::replace(&mut self.next, end)
    }

    /// Reads the next pages; `None` at the end. Does not block the runtime's other tasks.
    pub async fn next_chunk(&mut self) -> Result<Option<PageChunk>, StorageError> {
        let mut moved = std::mem::replace(self, Self::new(ForkFiles::default()));
        let task = env::spawn::blocking(move || {
            let chunk = moved.read_chunk();
            (moved, chunk)
        });
        let failed = |error| StorageError::Internal(format!("reading of pages: {error}"));
        let (moved, chunk) = task.await.map_err(failed)?;
        *self = moved;
        chunk
    }

    /// Reads the next pages, blocking; `None` at the end.
    pub fn read_chunk(&mut self) -> Result<Option<PageChunk>, StorageError> {
        let left = self.files.blocks - self.next;
        if left == 0 {
            return Ok(None);
        }
        let within = self.next % RELATION_SEGMENT_BLOCKS;
        let count = left.min(CHUNK_PAGES).min(RELATION_SEGMENT_BLOCKS - within);
        let number = (self.next / RELATION_SEGMENT_BLOCKS) as usize;
        let Some(path) = self.files.segments.get(number).cloned() else { return Ok(None) };
        let offset = u64::from(within) * BLCKSZ as u64;
        let mut bytes = vec![0; count as usize * BLCKSZ];
        let file = self.segment(number, &path)?;
        file.read_exact_at(&mut bytes, offset).map_err(|source| io_error("read", &path, offset, source))?;
        let first = self.next;
        self.next += count;
        Ok(Some(PageChunk { first, bytes, path, offset }))
    }

    fn segment(&mut self, number: usize, path: &Utf8Path) -> Result<&File, StorageError> {
        let known = self.open.take().filter(|(open, _)| *open == number);
        let file = match known {
            Some(open) => open,
            None => (number, File::open(path).map_err(|source| io_error("open", path, 0, source))?),
        };
        Ok(&self.open.insert(file).1)
    }
}

/// Checks the checksum of a page; the cluster must have checksums. New pages have none.
pub fn check_page(page: &PageBytes, blkno: BlockNumber, path: &Utf8Path, offset: u64) -> Result<(), StorageError> {
    let header = PageRef::new(page);
    let computed = data_checksum(page, blkno);
    if header.is_new() || header.checksum() == computed {
        return Ok(());
    }
    let reason = format!("page checksum is {:#06x}, computed {computed:#06x}", header.checksum());
    Err(corrupt(path, offset, reason))
}
