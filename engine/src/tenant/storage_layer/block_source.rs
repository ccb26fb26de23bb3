//! Reads checksummed blocks of a file on this disk, some of which may still be in its tail in memory, or of a file in
//! the bucket.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use layer_format::block::{self, BLOCK_PAYLOAD, BLOCK_SIZE, FileId, block_of, offset_in_block};
use parking_lot::RwLock;

use super::read_costs::ReadCosts;
use super::remote_file::RemoteFile;
use super::run::{READ_BLOCKS_MAX, Run};
use crate::context::Pace;
use errors::StorageError;
use metrics::METRICS;
use virtual_file::buffered_writer::Tail;
use virtual_file::{AlignedBuf, IoFuture, VirtualFile};

/// Gaps of up to this many blocks are read along rather than skipped.
const GAP_BLOCKS_MAX: u64 = 4;
/// Maximum number of reads in flight.
const READS_IN_FLIGHT_MAX: usize = 64;

impl Pace {
    /// Maximum blocks of one read.
    fn read_max(self) -> u64 {
        match self {
            Pace::Full => READ_BLOCKS_MAX,
            Pace::GivesWay => 32,
        }
    }

    /// Maximum blocks in flight.
    fn in_flight_max(self) -> u64 {
        match self {
            Pace::Full => READS_IN_FLIGHT_MAX as u64 * READ_BLOCKS_MAX,
            Pace::GivesWay => 32,
        }
    }
}

/// Where a value lies: logical position and length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Extent {
    pub(super) position: u64,
    pub(super) len: u32,
}

impl Extent {
    fn first_block(&self) -> u64 {
        block_of(self.position)
    }

    fn last_block(&self) -> u64 {
        block_of(self.position + u64::from(self.len.max(1)) - 1)
    }
}

/// A file of checksummed blocks.
#[derive(Clone, Debug)]
pub(super) struct BlockSource {
    origin: Origin,
    file_id: FileId,
    tail: Option<Arc<RwLock<Tail>>>,
}

#[derive(Clone, Debug)]
enum Origin {
    Local(Arc<VirtualFile>),
    Remote(Arc<RemoteFile>),
}

/// The blocks that a set of extents needs.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    runs: Vec<Run>,
}

impl Blocks {
    /// The bytes of `extent`, which must be one of those for which the blocks were read.
    pub(super) fn extract(&self, extent: Extent) -> Option<Bytes> {
        let mut out = Vec::with_capacity(extent.len as usize);
        self.pieces(extent, |piece| out.extend_from_slice(piece)).then(|| out.into())
    }

    /// Copies the bytes of `extent` to `target`, which must have its length. Returns whether all of them are there.
    pub(super) fn copy_to(&self, extent: Extent, target: &mut [u8]) -> bool {
        let mut rest = target;
        self.pieces(extent, |piece| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(piece.len());
            now.copy_from_slice(piece);
            rest = later;
        })
    }

    /// Gives the bytes of `extent` to `take`, piece by piece. Returns whether all of them are there.
    pub(super) fn pieces(&self, extent: Extent, mut take: impl FnMut(&[u8])) -> bool {
        let (mut number, mut offset) = (extent.first_block(), offset_in_block(extent.position));
        let mut missing = extent.len as usize;
        while missing > 0 {
            let Some(piece) = self.piece(number, offset, missing).filter(|piece| !piece.is_empty()) else {
                return false;
            };
            take(piece);
            missing -= piece.len();
            (number, offset) = (number + 1, 0);
        }
        true
    }

    /// Up to `len` payload bytes of one block.
    fn piece(&self, number: u64, offset: usize, len: usize) -> Option<&[u8]> {
        let at = self.runs.partition_point(|run| run.first() <= number).checked_sub(1)?;
        let run = self.runs.get(at)?;
        let start = usize::try_from(number - run.first()).ok()? * BLOCK_SIZE + offset;
        let bytes = run.bytes();
        bytes.get(start..(start + len.min(BLOCK_PAYLOAD - offset)).min(bytes.len()))
    }
}

impl BlockSource {
    pub(super) fn new(file: Arc<VirtualFile>, file_id: FileId, tail: Option<Arc<RwLock<Tail>>>) -> Self {
        Self { origin: Origin::Local(file), file_id, tail }
    }

    /// The blocks of a file in the bucket.
    pub(super) fn remote(file: Arc<RemoteFile>, file_id: FileId) -> Self {
        Self { origin: Origin::Remote(file), file_id, tail: None }
    }

    /// The file in the bucket, if the blocks come from there.
    pub(super) fn remote_file(&self) -> Option<&Arc<RemoteFile>> {
        match &self.origin {
            Origin::Local(_) => None,
            Origin::Remote(file) => Some(file),
        }
    }

    /// Offsets and lengths of reads are multiples of this many blocks.
    pub(super) fn unit_blocks(&self) -> u64 {
        match &self.origin {
            Origin::Local(file) => file.align() / BLOCK_SIZE as u64,
            Origin::Remote(_) => 1,
        }
    }

    /// Caches the blocks of `extents`, given in ascending order, if the file is in the bucket.
    pub(super) async fn prefetch(&self, extents: &[Extent]) -> Result<ReadCosts, StorageError> {
        let Origin::Remote(file) = &self.origin else { return Ok(ReadCosts::default()) };
        let wanted: Vec<Range<u64>> =
            self.plan(extents, Pace::Full).into_iter().map(|(first, end)| first..end).collect();
        file.gather(&wanted).await.map(|(_, costs)| costs)
    }

    /// Reads and verifies the blocks of `extents`, given in ascending order. Returns them, and what that took.
    async fn read(&self, extents: &[Extent], pace: Pace) -> Result<(Blocks, ReadCosts), StorageError> {
        let began = env::clock::now();
        let (blocks, mut costs) = self.start_reading(extents, pace).finish().await?;
        let took = env::clock::now().saturating_duration_since(began);
        costs.fetching = took.saturating_sub(costs.waiting);
        Ok((blocks, costs))
    }

    /// Starts to do what [`read`](Self::read) does.
    pub(super) fn start_reading(&self, extents: &[Extent], pace: Pace) -> Reading<'_> {
        let ranges = self.plan(extents, pace);
        let mut blocks = Blocks { runs: Vec::with_capacity(ranges.len()) };
        let mut on_disk = Vec::with_capacity(ranges.len());
        if let Some(tail) = &self.tail {
            let tail = tail.read();
            let first_in_memory = tail.start() / BLOCK_SIZE as u64;
            for (first, end) in ranges {
                if first < first_in_memory {
                    on_disk.push((first, end.min(first_in_memory)));
                }
                if end > first_in_memory {
                    blocks.runs.push(copy_from_memory(&tail, first.max(first_in_memory), end));
                }
            }
        } else {
            on_disk = ranges;
        }
        let mut reading = Reading { source: self, pace, blocks, started: VecDeque::new(), later: on_disk.into() };
        reading.start_more();
        reading
    }

    /// Ranges of blocks to read, coalesced.
    fn plan(&self, extents: &[Extent], pace: Pace) -> Vec<(u64, u64)> {
        debug_assert!(extents.is_sorted_by_key(|extent| extent.position));
        let unit = self.unit_blocks();
        // Requests to the bucket are coalesced elsewhere, where it is known what is cached.
        let (gap, longest) = match &self.origin {
            Origin::Local(_) => (GAP_BLOCKS_MAX, pace.read_max()),
            Origin::Remote(_) => (0, u64::MAX),
        };
        let mut ranges: Vec<(u64, u64)> = Vec::with_capacity(extents.len());
        for extent in extents {
            let first = extent.first_block() / unit * unit;
            let end = (extent.last_block() + 1).next_multiple_of(unit);
            match ranges.last_mut() {
                Some(last) if end <= last.1 => {}
                // Cut reads at one size, so that their buffers can be reused.
                Some(last) if first < last.1 && end - last.0 > longest => {
                    let start = last.1;
                    ranges.push((start, end));
                }
                Some(last) if first < last.1 => last.1 = end,
                Some(last) if first <= last.1 + gap && end - last.0 <= longest => last.1 = end,
                _ => ranges.push((first, end)),
            }
        }
        ranges
    }

    fn verify(&self, first: u64, end: u64, buf: AlignedBuf) -> Result<Run, StorageError> {
        for (number, bytes) in (first..end).zip(buf.chunks(BLOCK_SIZE)) {
            let opened = block::open(self.file_id, number, bytes);
            if !fault::planted(fault::Bug::IgnoreChecksum) {
                opened.map_err(|error| self.corrupt(number, error.to_string()))?;
            }
        }
        Ok(Run::read(first, buf))
    }

    pub(super) fn corrupt(&self, block: u64, reason: impl Into<String>) -> StorageError {
        METRICS.corrupt_blocks.inc();
        let path = match &self.origin {
            Origin::Local(file) => file.path(),
            Origin::Remote(file) => file.name(),
        };
        StorageError::Corrupt { path, offset: block * BLOCK_SIZE as u64, reason: reason.into() }
    }

    /// The values of `extents`, in the same order, and what reading them took.
    pub(super) async fn read_values(&self, extents: &[Extent]) -> Result<(Vec<Bytes>, ReadCosts), StorageError> {
        self.read_values_at(extents, Pace::Full).await
    }

    /// The same at another pace.
    pub(super) async fn read_values_at(
        &self,
        extents: &[Extent],
        pace: Pace,
    ) -> Result<(Vec<Bytes>, ReadCosts), StorageError> {
        let in_memory = self.in_memory(extents);
        let missing = extents.iter().zip(&in_memory).filter(|(_, value)| value.is_none()).map(|(extent, _)| *extent);
        let mut sorted: Vec<Extent> = missing.collect();
        sorted.sort_unstable();
        let (blocks, costs) = if sorted.is_empty() { Default::default() } else { self.read(&sorted, pace).await? };
        let extract = |(extent, value): (&Extent, Option<Bytes>)| {
            let value = value.or_else(|| blocks.extract(*extent));
            value.ok_or_else(|| self.corrupt(extent.first_block(), "the file ends inside a value"))
        };
        Ok((extents.iter().zip(in_memory).map(extract).collect::<Result<_, _>>()?, costs))
    }

    /// Those of `extents` that are wholly in memory, in the tail.
    fn in_memory(&self, extents: &[Extent]) -> Vec<Option<Bytes>> {
        let Some(tail) = &self.tail else { return vec![None; extents.len()] };
        let tail = tail.read();
        let first_in_memory = tail.start().div_ceil(BLOCK_SIZE as u64);
        let copy =
            |extent: &Extent| (extent.first_block() >= first_in_memory).then(|| copy_value(&tail, *extent)).flatten();
        extents.iter().map(copy).collect()
    }

    /// All blocks from `first` on, if all of them are in memory.
    pub(super) fn all_in_memory(&self, first: u64) -> Option<Blocks> {
        let tail = self.tail.as_ref()?.read();
        if tail.start() > first * BLOCK_SIZE as u64 {
            return None;
        }
        let block = |offset: u64| offset / BLOCK_SIZE as u64;
        let full = tail.full().map(|(offset, buf)| Run::kept(block(offset), Arc::clone(buf)));
        let (offset, rest) = tail.last();
        Some(Blocks { runs: full.chain([Run::copied(block(offset), rest.to_vec())]).collect() })
    }

    /// The payload of blocks `first..end`, verified, back to back, and what reading them took.
    pub(super) async fn read_payload(&self, first: u64, end: u64) -> Result<(Vec<u8>, ReadCosts), StorageError> {
        let (mut out, mut costs) = (Vec::with_capacity((end - first) as usize * BLOCK_PAYLOAD), ReadCosts::default());
        for start in (first..end).step_by(READ_BLOCKS_MAX as usize) {
            let stop = end.min(start + READ_BLOCKS_MAX);
            let position = block::block_start(start);
            let extent = Extent { position, len: ((stop - start) as usize * BLOCK_PAYLOAD) as u32 };
            let (values, more) = self.read_values(&[extent]).await?;
            values.iter().for_each(|value| out.extend_from_slice(value));
            costs += more;
        }
        Ok((out, costs))
    }
}

/// A read of blocks in progress.
pub(super) struct Reading<'a> {
    source: &'a BlockSource,
    pace: Pace,
    blocks: Blocks,
    /// First block, end block, offset in the file, and the read.
    started: VecDeque<(u64, u64, u64, IoFuture<AlignedBuf>)>,
    /// Ranges whose reads are not started yet.
    later: VecDeque<(u64, u64)>,
}

impl Reading<'_> {
    fn start_more(&mut self) {
        let Origin::Local(file) = &self.source.origin else { return };
        while let Some((first, end)) = self.next_to_start() {
            self.later.pop_front();
            let offset = first * BLOCK_SIZE as u64;
            let read = file.start_read(offset, (end - first) as usize * BLOCK_SIZE);
            self.started.push_back((first, end, offset, read));
        }
    }

    /// The next range, if what is in flight leaves room for its read.
    fn next_to_start(&self) -> Option<(u64, u64)> {
        let (first, end) = self.later.front().copied()?;
        let in_flight: u64 = self.started.iter().map(|(first, end, ..)| end - first).sum();
        let has_room = in_flight + (end - first) <= self.pace.in_flight_max();
        (self.started.is_empty() || (has_room && self.started.len() < READS_IN_FLIGHT_MAX)).then_some((first, end))
    }

    /// Waits for the blocks and verifies them. Returns them, and what was read, without the time.
    pub(super) async fn finish(mut self) -> Result<(Blocks, ReadCosts), StorageError> {
        let file = match &self.source.origin {
            Origin::Local(file) => file,
            Origin::Remote(file) => {
                let wanted: Vec<Range<u64>> = self.later.iter().map(|(first, end)| *first..*end).collect();
                let (runs, costs) = file.read(&wanted).await?;
                return Ok((Blocks { runs }, costs));
            }
        };
        let reads = (self.started.len() + self.later.len()) as u64;
        let mut costs = ReadCosts { reads, ..ReadCosts::default() };
        while let Some((first, end, offset, read)) = self.started.pop_front() {
            let buf = read.await.map_err(|source| file.error("read", offset, source))?;
            // The disk goes on while this is verified.
            self.start_more();
            costs.local_bytes += buf.len() as u64;
            self.blocks.runs.push(self.source.verify(first, end, buf)?);
        }
        self.blocks.runs.sort_unstable_by_key(|run| run.first());
        Ok((self.blocks, costs))
    }
}

fn copy_value(tail: &Tail, extent: Extent) -> Option<Bytes> {
    let len = extent.len as usize;
    let mut out = Vec::with_capacity(len);
    let (mut number, mut offset) = (extent.first_block(), offset_in_block(extent.position));
    while out.len() < len {
        let wanted = (len - out.len()).min(BLOCK_PAYLOAD - offset);
        let piece = tail.bytes_at(number * BLOCK_SIZE as u64 + offset as u64, wanted);
        if piece.len() < wanted {
            return None;
        }
        out.extend_from_slice(piece);
        (number, offset) = (number + 1, 0);
    }
    Some(out.into())
}

fn copy_from_memory(tail: &Tail, first: u64, end: u64) -> Run {
    let mut bytes = Vec::with_capacity((end - first) as usize * BLOCK_SIZE);
    let stop = end * BLOCK_SIZE as u64;
    let mut offset = first * BLOCK_SIZE as u64;
    while offset < stop {
        let piece = tail.bytes_at(offset, (stop - offset) as usize);
        if piece.is_empty() {
            break;
        }
        bytes.extend_from_slice(piece);
        offset += piece.len() as u64;
    }
    Run::copied(first, bytes)
}

#[cfg(test)]
mod tests {
    use virtual_file::OpenMode;

    use super::super::block_writer::BlockWriter;
    use super::*;

    const VALUES: usize = 900;
    const LEN: usize = 3000;

    fn value(number: usize) -> Vec<u8> {
        (0..LEN).map(|at| (number * 31 + at / 7) as u8).collect()
    }

    #[tokio::test]
    async fn reads_that_give_way_are_short_and_few_at_once() {
        let dir = camino_tempfile::tempdir().unwrap();
        let file = Arc::new(VirtualFile::open(&dir.path().join("values"), OpenMode::CreateNew).await.unwrap());
        let mut writer = BlockWriter::new(Arc::clone(&file), FileId(7));
        let mut extents = Vec::new();
        for number in 0..VALUES {
            extents.push(Extent { position: writer.position(), len: LEN as u32 });
            writer.append(&value(number)).await.unwrap();
        }
        writer.pad_block().await.unwrap();
        writer.flush_and_cut().await.unwrap();
        let source = BlockSource::new(file, FileId(7), None);
        let mut reads = Vec::new();
        for pace in [Pace::Full, Pace::GivesWay] {
            let reading = source.start_reading(&extents, pace);
            let started = reading.started.iter().map(|(first, end, ..)| (*first, *end));
            let all: Vec<(u64, u64)> = started.chain(reading.later.iter().copied()).collect();
            assert!(all.iter().all(|(first, end)| end - first <= pace.read_max()), "{pace:?}: {all:?}");
            assert!(all.is_sorted_by(|one, next| one.1 <= next.0), "{pace:?}: {all:?}");
            assert!(!reading.later.is_empty() || pace == Pace::Full, "all are in flight at once");
            let in_flight: u64 = reading.started.iter().map(|(first, end, ..)| end - first).sum();
            assert!((1..=pace.in_flight_max()).contains(&in_flight), "{pace:?}: {in_flight}");
            let (_, costs) = reading.finish().await.unwrap();
            assert_eq!(costs.reads, all.len() as u64);
            reads.push(costs.reads);
            let (found, _) = source.read_values_at(&extents, pace).await.unwrap();
            assert!(found.iter().enumerate().all(|(number, found)| *found == value(number)), "{pace:?}");
        }
        assert!(reads[0] * 5 < reads[1], "{reads:?}");
        // Short reads from all over the file do not wait for each other.
        let apart: Vec<Extent> = extents.into_iter().step_by(40).collect();
        let reading = source.start_reading(&apart, Pace::GivesWay);
        assert!(reading.started.len() > 8 && !reading.later.is_empty(), "{} started", reading.started.len());
    }
}
