//! The part of a file in the bucket that is on local disk: a sparse file with every block at its place.
//!
//! It is a cache: nothing is synced, the file system knows which blocks are there, and a block that fails
//! verification counts as absent. It may be cut, damaged or removed at any time, and a restart finds it again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use camino::Utf8PathBuf;
use layer_format::block::BLOCK_SIZE;
use tokio::sync::OnceCell;

use crate::block_cache::{BlockCache, Lease};
use errors::StorageError;
use metrics::METRICS;
use virtual_file::{AlignedBuf, OpenMode, VirtualFile};

/// Blocks written at once.
pub(super) const WRITE_BLOCKS: u64 = 64;
/// Maximum number of reads in flight.
const READS_IN_FLIGHT_MAX: usize = 64;

const SIZE: u64 = BLOCK_SIZE as u64;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Partial {
    path: Utf8PathBuf,
    file: OnceCell<VirtualFile>,
    present: Present,
    cache: Arc<BlockCache>,
    /// The file is no longer ours: nothing more may be written.
    is_left: AtomicBool,
}

/// Blocks on their way to the file.
pub(super) struct Offered {
    first: u64,
    bytes: Bytes,
    _memory: Lease,
}

/// One bit for each block.
#[derive(Debug)]
struct Present {
    words: Vec<AtomicU64>,
    count: AtomicU64,
}

impl Present {
    fn new(blocks: u64) -> Self {
        let words = (0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { words, count: AtomicU64::new(0) }
    }

    fn word(&self, block: u64) -> Option<(&AtomicU64, u64)> {
        Some((self.words.get((block / 64) as usize)?, 1 << (block % 64)))
    }

    fn has(&self, block: u64) -> bool {
        self.word(block).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Returns whether it was absent.
    fn set(&self, block: u64) -> bool {
        let is_new = self.word(block).is_some_and(|(word, bit)| word.fetch_or(bit, Ordering::Relaxed) & bit == 0);
        self.count.fetch_add(u64::from(is_new), Ordering::Relaxed);
        is_new
    }

    fn clear(&self, block: u64) {
        let was_set = self.word(block).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0);
        self.count.fetch_sub(u64::from(was_set), Ordering::Relaxed);
    }
}

impl Partial {
    /// Adopts the file at `path`, if there is one, for a file of `blocks` blocks.
    pub(super) async fn open(path: Utf8PathBuf, blocks: u64, cache: Arc<BlockCache>) -> Self {
        let file = VirtualFile::open(&path, OpenMode::Update).await.ok();
        let present = Present::new(blocks);
        if let Some(file) = &file {
            for range in file.data_ranges().await.unwrap_or_default() {
                for block in range.start.div_ceil(SIZE)..range.end / SIZE {
                    present.set(block);
                }
            }
        }
        Self { path, file: OnceCell::new_with(file), present, cache, is_left: AtomicBool::new(false) }
    }

    /// Whether a block should be there.
    pub(super) fn has(&self, block: u64) -> bool {
        self.present.has(block)
    }

    /// Number of blocks that should be there.
    pub(super) fn count(&self) -> u64 {
        self.present.count.load(Ordering::Relaxed)
    }

    /// Stops writing. What is there can still be read.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// Whether writing has stopped.
    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }

    /// The blocks of `ranges` that are there and pass `check`, in pieces.
    pub(super) async fn load(&self, ranges: &[Range<u64>], check: impl Fn(u64, &[u8]) -> bool) -> Vec<(u64, Bytes)> {
        let Some(file) = self.file.get() else { return Vec::new() };
        let mut found = Vec::new();
        let there: Vec<Range<u64>> = ranges.iter().flat_map(|range| self.present_parts(range)).collect();
        for group in there.chunks(READS_IN_FLIGHT_MAX) {
            let unit = file.align();
            let reads: Vec<_> = group
                .iter()
                .map(|range| {
                    let start = range.start * SIZE / unit * unit;
                    let len = (range.end * SIZE).next_multiple_of(unit) - start;
                    (range, start, file.start_read(start, len as usize))
                })
                .collect();
            for (range, start, read) in reads {
                // What cannot be read counts as absent.
                let bytes = read.await.map(Bytes::from_owner).unwrap_or_default();
                let bytes = bytes.get((range.start * SIZE - start) as usize..).map(|own| bytes.slice_ref(own));
                self.keep_sound(range, &bytes.unwrap_or_default(), &check, &mut found);
            }
        }
        found
    }

    fn keep_sound(
        &self,
        range: &Range<u64>,
        bytes: &Bytes,
        check: impl Fn(u64, &[u8]) -> bool,
        found: &mut Vec<(u64, Bytes)>,
    ) {
        let mut piece: Option<Range<usize>> = None;
        let mut end_piece = |piece: &mut Option<Range<usize>>| {
            if let Some(own) = piece.take() {
                found.push((range.start + (own.start / BLOCK_SIZE) as u64, bytes.slice(own)));
            }
        };
        for (at, block) in range.clone().enumerate() {
            let own = at * BLOCK_SIZE..(at + 1) * BLOCK_SIZE;
            let content = bytes.get(own.clone());
            if content.is_some_and(|content| check(block, content)) {
                piece.get_or_insert(own.start..own.start).end = own.end;
                continue;
            }
            end_piece(&mut piece);
            self.present.clear(block);
            // A hole is not damage.
            METRICS.corrupt_blocks.inc_by(u64::from(content.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0))));
        }
        end_piece(&mut piece);
    }

    fn present_parts(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut parts: Vec<Range<u64>> = Vec::new();
        for block in range.clone().filter(|block| self.has(*block)) {
            match parts.last_mut() {
                Some(last) if last.end == block => last.end += 1,
                _ => parts.push(block..block + 1),
            }
        }
        parts
    }

    /// Accepts blocks to be written, if there is room and the disk keeps up.
    pub(super) fn offer(&self, first: u64, bytes: &Bytes) -> Option<Offered> {
        let size = bytes.len() as u64;
        if self.is_left() || !self.cache.disk_has_room(size) {
            return None;
        }
        let memory = self.cache.background.try_take(size)?;
        Some(Offered { first, bytes: bytes.clone(), _memory: memory })
    }

    /// Writes what was offered. A failure to do so is harmless.
    pub(super) async fn keep(&self, offered: Offered) {
        if let Err(error) = self.store(offered.first, &offered.bytes).await {
            tracing::debug!("{}: not cached here: {error}", self.path);
        }
    }

    /// Writes blocks from `first` on. Where the disk requires units larger than a block, the blocks before the first
    /// unit boundary are left out, and the last unit is padded with zeros.
    pub(super) async fn store(&self, first: u64, bytes: &[u8]) -> Result<(), StorageError> {
        let file = self.file.get_or_try_init(|| self.create()).await?;
        let unit = file.align();
        let skipped = (first * SIZE).next_multiple_of(unit) - first * SIZE;
        let Some(own) = bytes.get(skipped as usize..).filter(|own| !own.is_empty()) else { return Ok(()) };
        let mut at = first * SIZE + skipped;
        for piece in own.chunks((WRITE_BLOCKS * SIZE) as usize) {
            let padded = piece.len().next_multiple_of(unit as usize);
            let mut buf = AlignedBuf::with_capacity(padded);
            buf.extend_from_slice(piece);
            buf.extend_with_zeros(padded - piece.len());
            file.write_at(at, buf).await?;
            at += piece.len() as u64;
        }
        let first = first + skipped / SIZE;
        let new = (first..first + own.len() as u64 / SIZE).filter(|block| self.present.set(*block)).count();
        self.cache.add_disk_used(new as u64 * SIZE);
        Ok(())
    }

    async fn create(&self) -> Result<VirtualFile, StorageError> {
        match VirtualFile::open(&self.path, OpenMode::Update).await {
            Ok(file) => Ok(file),
            Err(_) => VirtualFile::open(&self.path, OpenMode::CreateNew).await,
        }
    }

    /// Makes everything durable as a file of `len` bytes.
    pub(super) async fn seal(&self, len: u64) -> Result<(), StorageError> {
        let file = self.file.get_or_try_init(|| self.create()).await?;
        file.set_len(len).await?;
        file.sync().await
    }
}
