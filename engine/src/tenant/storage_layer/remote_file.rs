//! A layer file in the bucket: blocks come from memory, from the part of the file on local disk, from requests in
//! flight, or by new requests for just what is missing. All blocks are verified; damaged ones count as missing.

mod flight;
mod partial;
mod streams;
mod whole;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use camino::Utf8PathBuf;
use layer_format::block::{self, BLOCK_SIZE, ENVELOPE_FILE_ID, FileId};
use parking_lot::Mutex;

use super::read_costs::ReadCosts;
use super::run::Run;
use super::{LayerIdentity, PersistentLayerDesc};
use crate::block_cache::{BlockCache, Lease};
use crate::resources::Resources;
use errors::StorageError;
use flight::{Flight, Flights, Landing, Parts, Purpose, Window, bytes_of};
use metrics::METRICS;
use partial::Partial;
use remote_storage::{RemotePath, RemoteStorage, RequestClass};
use streams::{Streams, WINDOW_BLOCKS_MIN};

/// Suffix that the file with some blocks of a layer adds to the layer's file name.
pub const PARTIAL_SUFFIX: &str = ".partial";
/// Gaps of up to this many blocks are fetched along rather than split into separate requests.
const GAP_BLOCKS_MAX: u64 = 32;
/// Cost of a request apart from its blocks, in blocks; the same trade-off as for gaps.
const REQUEST_COST: u64 = GAP_BLOCKS_MAX;
/// Fewer requests than this do not make a layer worth fetching whole, however small it is.
const WORTHLESS_REQUESTS: u64 = 4;
/// A layer worth fetching whole is read in pieces of this many blocks until it is here: 1 MiB.
const PIECE_BLOCKS: u64 = 256;
/// Maximum blocks of one request if memory permits, and the number permitted even if it does not.
const REQUEST_BLOCKS_MAX: u64 = 4096;
const REQUEST_BLOCKS_MIN: u64 = 64;
/// No device requires units larger than this many blocks.
const UNIT_BLOCKS_MAX: usize = 16;

/// The location of an object.
#[derive(Clone, Debug)]
pub struct RemoteObject {
    /// The bucket.
    pub storage: RemoteStorage,
    /// The path in it.
    pub path: RemotePath,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct RemoteFile {
    object: RemoteObject,
    file_id: FileId,
    blocks: u64,
    resources: Resources,
    /// The first block of the index, where reading ahead ends.
    index_block: u64,
    partial: Partial,
    flights: Arc<Flights>,
    streams: Mutex<Streams>,
    /// What reading from the bucket has cost so far, in blocks.
    spent: AtomicU64,
    /// The whole file is being fetched.
    is_completing: AtomicBool,
    /// When a read last had blocks fetched.
    last_fetch: Mutex<Instant>,
}

impl RemoteFile {
    /// The layer `desc` in the bucket; the file `partial` may have some of its blocks.
    pub(crate) async fn open(
        object: RemoteObject,
        identity: LayerIdentity,
        desc: &PersistentLayerDesc,
        partial: Utf8PathBuf,
        resources: &Resources,
    ) -> Self {
        let blocks = desc.file_size / BLOCK_SIZE as u64;
        Self {
            object,
            file_id: FileId(identity.file_id),
            blocks,
            resources: resources.clone(),
            index_block: identity.tail_offset / BLOCK_SIZE as u64,
            partial: Partial::open(partial, blocks, Arc::clone(&resources.blocks)).await,
            flights: Arc::default(),
            streams: Mutex::default(),
            spent: AtomicU64::new(0),
            is_completing: AtomicBool::new(false),
            last_fetch: Mutex::new(env::clock::now()),
        }
    }

    /// Its name in errors: the object, with the bucket's URL.
    pub(super) fn name(&self) -> Utf8PathBuf {
        self.object.storage.name_of(&self.object.path).into()
    }

    /// What it shares with other files.
    pub(super) fn resources(&self) -> &Resources {
        &self.resources
    }

    fn cache(&self) -> &BlockCache {
        &self.resources.blocks
    }

    /// Stops writing to the file on local disk, which is about to be replaced or removed.
    pub(crate) fn leave_disk(&self) {
        self.partial.leave();
    }

    /// Whether reading it has cost so much that the rest should be fetched, too. Many small requests count as well as
    /// many blocks: so random reads cost at most a few times what fetching everything at first would have.
    pub(crate) fn is_worth_all(&self) -> bool {
        let known = self.spent.load(Ordering::Relaxed).max(self.partial.count());
        let all = self.blocks + WORTHLESS_REQUESTS * REQUEST_COST;
        let percent = self.cache().whole_after();
        percent <= 100 && known * 100 >= all * percent
    }

    /// Verified blocks of the ranges `wanted`, which must ascend, and what that took but for the time of requests.
    pub(super) async fn read(self: &Arc<Self>, wanted: &[Range<u64>]) -> Result<(Vec<Run>, ReadCosts), StorageError> {
        if wanted.last().is_some_and(|last| last.end > self.blocks) {
            return Err(self.corrupt(self.blocks, "the file ends inside a value".to_owned()));
        }
        let ended = self.read_ahead(wanted);
        let found = self.gather(wanted).await;
        if let Some(stream) = ended {
            self.flights.passed(stream, None);
        }
        found
    }

    /// As [`RemoteFile::read`], for blocks known to be in the file, and without predicting what comes next.
    pub(super) async fn gather(self: &Arc<Self>, wanted: &[Range<u64>]) -> Result<(Vec<Run>, ReadCosts), StorageError> {
        let (mut runs, missing) = self.in_memory(wanted);
        let mut costs = ReadCosts::default();
        METRICS.block_cache_memory_hits.inc_by(runs.len() as u64);
        METRICS.block_cache_accesses.inc_by(wanted.iter().map(|range| range.end - range.start).sum());
        let (mut joined, rest) = self.flights.join(&missing);
        let rest = self.on_disk(rest, &mut runs, &mut costs).await;
        // The blocks of a request that has ended since are in memory by now.
        let (found, rest) = self.in_memory(&rest);
        runs.extend(found);
        let take = |wanted: Vec<Range<u64>>| {
            let planned = coalesce(wanted, self.request_max());
            Some((self.cache().reads.try_take(planned.iter().map(bytes_of).sum())?, planned))
        };
        // With what is around it, if there is memory for that: what is asked for must not wait for the rest.
        let around = self.around(&rest);
        match take(merged([&rest[..], &around].concat())).or_else(|| take(rest.clone())) {
            Some((memory, planned)) => {
                self.fetch(&rest, &planned, memory, &mut joined, &mut costs);
                for (flight, part) in joined {
                    let bytes = flight.bytes().await?;
                    runs.push(Run::shared(part.start, flight.part(bytes, &part)));
                }
            }
            None => self.gather_by_and_by(rest, joined, &mut runs, &mut costs).await?,
        }
        runs.sort_unstable_by_key(Run::first);
        Ok((runs, costs))
    }

    /// Maximum blocks of one request for which somebody waits.
    fn request_max(&self) -> u64 {
        (self.cache().reads.size() / BLOCK_SIZE as u64).clamp(REQUEST_BLOCKS_MIN, REQUEST_BLOCKS_MAX)
    }

    /// Adds to `runs` what `joined` brings, and fetches the blocks `rest` by successive requests as memory permits.
    /// Whoever waits for memory must not hold any, so results are copied.
    async fn gather_by_and_by(
        self: &Arc<Self>,
        rest: Vec<Range<u64>>,
        joined: Parts,
        runs: &mut Vec<Run>,
        costs: &mut ReadCosts,
    ) -> Result<(), StorageError> {
        copy_parts(joined, runs).await?;
        for planned in coalesce(rest.clone(), self.request_max()) {
            let began = env::clock::now();
            let memory = self.cache().reads.take(bytes_of(&planned)).await;
            costs.waiting += env::clock::now().saturating_duration_since(began);
            let (found, wanted) = self.in_memory(&common(&rest, &planned));
            runs.extend(found);
            let mut joined = Parts::new();
            self.fetch(&wanted, &[planned], memory, &mut joined, costs);
            copy_parts(joined, runs).await?;
        }
        Ok(())
    }

    /// Reads blocks, so that they are cached, and returns the raw bytes of the last one, and what that took, as
    /// [`RemoteFile::read`] does.
    pub(super) async fn read_last(self: &Arc<Self>, blocks: Range<u64>) -> Result<(Vec<u8>, ReadCosts), StorageError> {
        let (runs, costs) = self.read(std::slice::from_ref(&blocks)).await?;
        let last = blocks.end.saturating_sub(1);
        let found = runs.iter().find_map(|run| run.block(last)).map(<[u8]>::to_vec);
        let found = found.ok_or_else(|| self.corrupt(last, "the block is not there".to_owned()))?;
        Ok((found, costs))
    }

    /// The wanted blocks that are in memory, and the ranges that are not.
    fn in_memory(&self, wanted: &[Range<u64>]) -> (Vec<Run>, Vec<Range<u64>>) {
        let (mut runs, mut missing) = (Vec::new(), Vec::new());
        for block in wanted.iter().cloned().flatten() {
            match self.cache().get(self.file_id.0, block).filter(|bytes| self.check(block, bytes)) {
                Some(bytes) => runs.push(Run::shared(block, bytes)),
                None => add_block(&mut missing, block),
            }
        }
        (runs, missing)
    }

    /// Adds to `runs` the wanted blocks that are on local disk, and returns the rest.
    async fn on_disk(&self, wanted: Vec<Range<u64>>, runs: &mut Vec<Run>, costs: &mut ReadCosts) -> Vec<Range<u64>> {
        if wanted.is_empty() {
            return wanted;
        }
        let found = self.partial.load(&wanted, |block, bytes| self.check(block, bytes)).await;
        let mut found_blocks = Vec::new();
        for (first, bytes) in found {
            for (block, bytes) in blocks_of(first, &bytes) {
                self.cache().insert(self.file_id.0, block, &bytes);
                found_blocks.push(block);
            }
            costs.local_bytes += bytes.len() as u64;
            runs.push(Run::shared(first, bytes));
        }
        METRICS.block_cache_disk_hits.inc_by(found_blocks.len() as u64);
        let mut rest = Vec::new();
        found_blocks.sort_unstable();
        let is_missing = |block: &u64| found_blocks.binary_search(block).is_err();
        wanted.into_iter().flatten().filter(is_missing).for_each(|block| add_block(&mut rest, block));
        rest
    }

    /// Fetches the wanted blocks as planned, unless other requests for them have begun in the meantime.
    fn fetch(
        self: &Arc<Self>,
        wanted: &[Range<u64>],
        planned: &[Range<u64>],
        memory: Lease,
        joined: &mut Parts,
        costs: &mut ReadCosts,
    ) {
        let (flights, new) = self.flights.join_or_add(wanted, Purpose::Read, planned, memory);
        joined.extend(flights);
        costs.reads += new.len() as u64;
        costs.requests += new.len() as u64;
        costs.fetched_bytes += new.iter().map(|flight| bytes_of(&flight.blocks)).sum::<u64>();
        new.into_iter().for_each(|flight| self.depart(flight));
    }

    /// The absent blocks around the wanted ones, if the layer is worth fetching whole and is waiting for that.
    fn around(&self, wanted: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut absent = Vec::new();
        let waits = self.is_worth_all() && !self.is_completing.load(Ordering::Relaxed);
        if wanted.is_empty() || !waits || !self.cache().disk_has_room(PIECE_BLOCKS * BLOCK_SIZE as u64) {
            return absent;
        }
        let is_here = |block: u64| self.partial.has(block) || self.cache().get(self.file_id.0, block).is_some();
        let pieces = pieces(wanted, self.blocks).into_iter().flatten();
        pieces.filter(|block| !is_here(*block)).for_each(|block| add_block(&mut absent, block));
        self.flights.join(&absent).1
    }

    /// Tracks sequences of reads and fetches ahead of them. Returns the sequence that ends with this read, if any.
    fn read_ahead(self: &Arc<Self>, wanted: &[Range<u64>]) -> Option<u64> {
        let range = wanted.first()?.start..wanted.last()?.end;
        if range.end > self.index_block {
            return None;
        }
        let used = wanted.iter().map(|range| range.end - range.start).sum();
        let mut streams = self.streams.lock();
        let advice = streams.note(range.clone(), used, self.index_block, self.cache().window_max() / BLOCK_SIZE as u64);
        if let Some(ended) = advice.ended {
            self.flights.passed(ended, None);
        }
        self.flights.passed(advice.stream, Some(range.start));
        if let Some(fetch) = &advice.fetch {
            let until = self.fetch_ahead(advice.stream, fetch.clone());
            streams.decline(&advice, until);
        }
        advice.is_last.then_some(advice.stream)
    }

    /// Starts fetching the blocks that are neither on disk nor in flight, as memory permits. Returns where that ends.
    fn fetch_ahead(self: &Arc<Self>, stream: u64, blocks: Range<u64>) -> u64 {
        let (start, end) = (blocks.start, blocks.end);
        let mut absent = Vec::new();
        blocks.filter(|block| !self.partial.has(*block)).for_each(|block| add_block(&mut absent, block));
        let (_, absent) = self.flights.join(&absent);
        let mut planned = coalesce(absent.clone(), REQUEST_BLOCKS_MAX);
        let wanted = planned.iter().map(bytes_of).sum();
        let worth = WINDOW_BLOCKS_MIN * BLOCK_SIZE as u64;
        let Some(memory) = self.cache().memory_ahead(wanted, worth) else { return start };
        let all = memory.bytes() >= wanted;
        cut(&mut planned, memory.bytes() / BLOCK_SIZE as u64);
        let end = if all { end } else { planned.last().map_or(start, |last| last.end) };
        let (_, new) = self.flights.join_or_add(&absent, Purpose::Ahead(stream), &planned, memory);
        for flight in new {
            METRICS.read_ahead_bytes.inc_by(bytes_of(&flight.blocks));
            self.cache().note_ahead(Window::new(&self.flights, &flight));
            self.depart(flight);
        }
        end
    }

    /// Makes a request in a task of its own, which completes even if nobody waits any more.
    fn depart(self: &Arc<Self>, flight: Arc<Flight>) {
        if flight.purpose != Purpose::Whole {
            *self.last_fetch.lock() = env::clock::now();
        }
        let (file, landing) = (Arc::clone(self), Landing { flights: Arc::clone(&self.flights), flight });
        env::spawn::task("blocks of a layer", async move {
            let Flight { blocks, purpose, .. } = &*landing.flight;
            let result = file.get_checked(purpose.class(), blocks.clone()).await;
            let bytes = result.as_ref().ok();
            if let Some(bytes) = bytes.filter(|_| *purpose == Purpose::Read) {
                for (block, bytes) in blocks_of(blocks.start, bytes) {
                    file.cache().insert(file.file_id.0, block, &bytes);
                }
            }
            let offered = bytes.filter(|_| *purpose != Purpose::Whole);
            let offered = offered.and_then(|bytes| file.partial.offer(blocks.start, bytes));
            landing.land(result);
            if let Some(offered) = offered {
                file.partial.keep(offered).await;
            }
        });
    }

    /// Verified blocks from the bucket; damaged ones are requested once more.
    async fn get_checked(&self, class: RequestClass, range: Range<u64>) -> Result<Bytes, StorageError> {
        let RemoteObject { storage, path } = &self.object;
        let bytes = range.start * BLOCK_SIZE as u64..range.end * BLOCK_SIZE as u64;
        self.spent.fetch_add(range.end - range.start + REQUEST_COST, Ordering::Relaxed);
        let mut is_repeated = false;
        loop {
            METRICS.block_requests.inc();
            METRICS.block_request_bytes.inc_by(bytes.end - bytes.start);
            let got = storage.get_range(class, path, bytes.clone()).await?;
            match self.first_damage(range.start, &got) {
                None => return Ok(got),
                Some(block) if is_repeated => return Err(self.corrupt(block, "checksum mismatch".to_owned())),
                Some(_) => is_repeated = true,
            }
        }
    }

    fn first_damage(&self, first: u64, bytes: &[u8]) -> Option<u64> {
        let unchecked = if first == 0 { blocks_without_checksum(bytes) } else { 0 };
        let mut blocks = (first..).zip(bytes.chunks(BLOCK_SIZE));
        blocks.find_map(|(block, bytes)| {
            let is_exempt = (1..=unchecked).contains(&block);
            (!is_exempt && !self.check(block, bytes)).then_some(block)
        })
    }

    fn check(&self, block: u64, bytes: &[u8]) -> bool {
        // Header and footer are read before the file's id is known.
        let is_envelope = block == 0 || block + 1 == self.blocks;
        let id = if is_envelope { ENVELOPE_FILE_ID } else { self.file_id };
        block::open(id, block, bytes).is_ok()
    }

    fn corrupt(&self, block: u64, reason: String) -> StorageError {
        METRICS.corrupt_blocks.inc();
        StorageError::Corrupt { path: self.name(), offset: block * BLOCK_SIZE as u64, reason }
    }
}

/// Adds to `runs` copies of what `parts` bring, so as to hold nothing else.
async fn copy_parts(parts: Parts, runs: &mut Vec<Run>) -> Result<(), StorageError> {
    for (flight, part) in parts {
        let bytes = flight.part(flight.bytes().await?, &part);
        runs.push(Run::shared(part.start, Bytes::copy_from_slice(&bytes)));
    }
    Ok(())
}

/// Joins requests separated by small gaps, and cuts those longer than `longest` blocks.
fn coalesce(ranges: Vec<Range<u64>>, longest: u64) -> Vec<Range<u64>> {
    let mut requests: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match requests.last_mut() {
            Some(last) if range.start <= last.end + GAP_BLOCKS_MAX && range.end - last.start <= longest => {
                last.end = range.end;
            }
            _ => {
                let cuts = range.clone().step_by(longest as usize);
                requests.extend(cuts.map(|start| start..range.end.min(start + longest)));
            }
        }
    }
    requests
}

/// Truncates `ranges` to their first `blocks` blocks.
fn cut(ranges: &mut Vec<Range<u64>>, mut blocks: u64) {
    ranges.retain_mut(|range| {
        range.end = range.end.min(range.start + blocks);
        blocks -= range.end - range.start;
        !range.is_empty()
    });
}

/// The parts of `ranges` that lie in `within`.
fn common(ranges: &[Range<u64>], within: &Range<u64>) -> Vec<Range<u64>> {
    let part = |range: &Range<u64>| range.start.max(within.start)..range.end.min(within.end);
    ranges.iter().map(part).filter(|range| !range.is_empty()).collect()
}

/// The same blocks in ascending ranges that do not touch.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut found: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match found.last_mut().filter(|last| range.start <= last.end) {
            Some(last) => last.end = last.end.max(range.end),
            None => found.push(range),
        }
    }
    found
}

/// The pieces, of a file of `blocks` blocks, that contain `ranges`, which must ascend.
fn pieces(ranges: &[Range<u64>], blocks: u64) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let first = range.start / PIECE_BLOCKS;
        for piece in first..range.end.div_ceil(PIECE_BLOCKS) {
            let start = piece * PIECE_BLOCKS;
            if found.last().is_none_or(|last| last.end <= start) {
                found.push(start..blocks.min(start + PIECE_BLOCKS));
            }
        }
    }
    found
}

fn add_block(ranges: &mut Vec<Range<u64>>, block: u64) {
    match ranges.last_mut() {
        Some(last) if last.end == block => last.end += 1,
        _ => ranges.push(block..block + 1),
    }
}

/// Where direct I/O requires units larger than a block, only the header is written before the second unit, where
/// values begin. Returns how many blocks from 1 on thus lack a checksum in a file that begins with `bytes`.
fn blocks_without_checksum(bytes: &[u8]) -> u64 {
    let zeros = bytes.chunks(BLOCK_SIZE).skip(1).take_while(|block| block.iter().all(|byte| *byte == 0)).count();
    if zeros < UNIT_BLOCKS_MAX && (zeros + 1).is_power_of_two() { zeros as u64 } else { 0 }
}

fn blocks_of(first: u64, bytes: &Bytes) -> impl Iterator<Item = (u64, Bytes)> {
    let count = bytes.len() / BLOCK_SIZE;
    (0..count).map(move |number| {
        let start = number * BLOCK_SIZE;
        (first + number as u64, bytes.slice(start..start + BLOCK_SIZE))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_put_together_and_cut() {
        assert_eq!(coalesce(vec![1..3, 10..12, 60..61], 4096), [1..12, 60..61]);
        assert_eq!(
            coalesce(vec![0..10_000, 20_000..20_001], 4096),
            [0..4096, 4096..8192, 8192..10_000, 20_000..20_001]
        );
        assert_eq!(coalesce(vec![0..4090, 4095..4100], 4096), [0..4090, 4095..4100]);
        assert_eq!(coalesce(Vec::new(), 4096), []);
        let mut ranges = vec![3..5, 9..20, 30..31];
        assert_eq!(common(&ranges, &(4..10)), [4..5, 9..10]);
        cut(&mut ranges, 6);
        assert_eq!(ranges, [3..5, 9..13]);
    }

    #[test]
    fn pieces_have_each_block_once() {
        assert_eq!(pieces(&[3..4, 5..300, 511..513], 520), [0..256, 256..512, 512..520]);
        assert_eq!(pieces(&[256..257, 1025..1026], 4096), [256..512, 1024..1280]);
        assert_eq!(pieces(&[], 4096), []);
        assert_eq!(merged(vec![9..12, 0..4, 3..5, 5..6, 10..11]), [0..6, 9..12]);
    }

    #[test]
    fn blocks_that_direct_io_leaves_out() {
        let mut bytes = vec![0; 8 * BLOCK_SIZE];
        bytes[4 * BLOCK_SIZE] = 1;
        assert_eq!(blocks_without_checksum(&bytes), 3);
        bytes[3 * BLOCK_SIZE] = 1;
        assert_eq!(blocks_without_checksum(&bytes), 0);
    }
}
