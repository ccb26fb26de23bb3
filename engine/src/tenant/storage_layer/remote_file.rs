//! A layer file in the bucket: blocks come from memory, from what local disk has of the file, from requests that are
//! under way, or by requests of just what is missing. Whatever comes is verified; what is damaged counts as missing.

mod flight;
mod partial;
mod streams;
mod whole;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use camino::Utf8PathBuf;
use layer_format::block::{self, BLOCK_SIZE, ENVELOPE_FILE_ID, FileId};
use parking_lot::Mutex;

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

/// What the file that holds some blocks of a layer has behind the layer's file name.
pub const PARTIAL_SUFFIX: &str = ".partial";
/// Blocks between two wanted ones that are rather fetched along than asked for separately.
const GAP_BLOCKS_MAX: u64 = 32;
/// What a request costs beside its blocks, as so many of them: the same weighing as for gaps.
const REQUEST_COST: u64 = GAP_BLOCKS_MAX;
/// Fewer requests do not make a layer worth fetching as a whole, however small it is.
const WORTHLESS_REQUESTS: u64 = 4;
/// A layer that is worth fetching as a whole is read in pieces of so many blocks until it is here: 1 MiB.
const PIECE_BLOCKS: u64 = 256;
/// Blocks of one request at most, if there is as much memory, and how many may be more than there is.
const REQUEST_BLOCKS_MAX: u64 = 4096;
const REQUEST_BLOCKS_MIN: u64 = 64;
/// No device wants larger units than so many blocks.
const UNIT_BLOCKS_MAX: usize = 16;

/// Where an object is.
#[derive(Clone, Debug)]
pub struct RemoteObject {
    /// The store.
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
    /// The first block of the index: reads ahead end here.
    index_block: u64,
    partial: Partial,
    flights: Arc<Flights>,
    streams: Mutex<Streams>,
    /// What was asked for in the bucket has cost as much as so many blocks.
    spent: AtomicU64,
    /// All of it is on its way.
    is_completing: AtomicBool,
}

impl RemoteFile {
    /// The layer `desc` in the bucket, of which there may be blocks in the file `partial`.
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
        }
    }

    /// What errors call it: the object, with the store's URL.
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

    /// Writes nothing more to the file on local disk, which is about to be something else.
    pub(crate) fn leave_disk(&self) {
        self.partial.leave();
    }

    /// Whether reading it has cost so much that the rest should be fetched as well. Many small requests are as good a
    /// reason as many blocks: so reads in random order cost at most a few times what fetching all at first had cost.
    pub(crate) fn is_worth_all(&self) -> bool {
        let known = self.spent.load(Ordering::Relaxed).max(self.partial.count());
        let all = self.blocks + WORTHLESS_REQUESTS * REQUEST_COST;
        let percent = self.cache().whole_after();
        percent <= 100 && known * 100 >= all * percent
    }

    /// Verified blocks of the ranges `wanted`, which ascend. Returns the number of requests, too.
    pub(super) async fn read(self: &Arc<Self>, wanted: &[Range<u64>]) -> Result<(Vec<Run>, u64), StorageError> {
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

    /// As [`RemoteFile::read`], for blocks that are in the file, and without an opinion about what comes next.
    pub(super) async fn gather(self: &Arc<Self>, wanted: &[Range<u64>]) -> Result<(Vec<Run>, u64), StorageError> {
        let (mut runs, missing) = self.in_memory(wanted);
        METRICS.block_cache_memory_hits.inc_by(runs.len() as u64);
        METRICS.block_cache_accesses.inc_by(wanted.iter().map(|range| range.end - range.start).sum());
        let (mut joined, rest) = self.flights.join(&missing);
        let rest = self.on_disk(rest, &mut runs).await;
        // A request that has ended since is in memory by now.
        let (found, rest) = self.in_memory(&rest);
        runs.extend(found);
        let planned = coalesce(merged([&rest[..], &self.around(&rest)].concat()), self.request_max());
        let requests = match self.cache().reads.try_take(planned.iter().map(bytes_of).sum()) {
            Some(memory) => {
                let requests = self.fetch(&rest, &planned, memory, &mut joined);
                for (flight, part) in joined {
                    let bytes = flight.bytes().await?;
                    runs.push(Run::shared(part.start, flight.part(bytes, &part)));
                }
                requests
            }
            None => self.gather_by_and_by(rest, joined, &mut runs).await?,
        };
        runs.sort_unstable_by_key(Run::first);
        Ok((runs, requests))
    }

    /// Blocks of one request that somebody waits for at most.
    fn request_max(&self) -> u64 {
        (self.cache().reads.size() / BLOCK_SIZE as u64).clamp(REQUEST_BLOCKS_MIN, REQUEST_BLOCKS_MAX)
    }

    /// Adds to `runs` what `joined` brings, and blocks `rest` by requests in turn, as there is memory. Who waits for
    /// memory must not hold any, so what comes is copied. Returns the number of requests.
    async fn gather_by_and_by(
        self: &Arc<Self>,
        rest: Vec<Range<u64>>,
        joined: Parts,
        runs: &mut Vec<Run>,
    ) -> Result<u64, StorageError> {
        copy_parts(joined, runs).await?;
        let mut requests = 0;
        for planned in coalesce(rest.clone(), self.request_max()) {
            let memory = self.cache().reads.take(bytes_of(&planned)).await;
            let (found, wanted) = self.in_memory(&common(&rest, &planned));
            runs.extend(found);
            let mut joined = Parts::new();
            requests += self.fetch(&wanted, &[planned], memory, &mut joined);
            copy_parts(joined, runs).await?;
        }
        Ok(requests)
    }

    /// Reads blocks, so that they are cached, and returns the last one as it is.
    pub(super) async fn read_last(self: &Arc<Self>, blocks: Range<u64>) -> Result<Vec<u8>, StorageError> {
        let (runs, _) = self.read(std::slice::from_ref(&blocks)).await?;
        let last = blocks.end.saturating_sub(1);
        let found = runs.iter().find_map(|run| run.block(last)).map(<[u8]>::to_vec);
        found.ok_or_else(|| self.corrupt(last, "the block is not there".to_owned()))
    }

    /// Those of the wanted blocks that are in memory, and the ranges that are not.
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

    /// Adds to `runs` those of the wanted blocks that are on local disk, and returns the rest.
    async fn on_disk(&self, wanted: Vec<Range<u64>>, runs: &mut Vec<Run>) -> Vec<Range<u64>> {
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
            runs.push(Run::shared(first, bytes));
        }
        METRICS.block_cache_disk_hits.inc_by(found_blocks.len() as u64);
        let mut rest = Vec::new();
        found_blocks.sort_unstable();
        let is_missing = |block: &u64| found_blocks.binary_search(block).is_err();
        wanted.into_iter().flatten().filter(is_missing).for_each(|block| add_block(&mut rest, block));
        rest
    }

    /// Has the wanted blocks fetched as planned, unless somebody else has begun to meanwhile. Returns the number of new
    /// requests.
    fn fetch(
        self: &Arc<Self>,
        wanted: &[Range<u64>],
        planned: &[Range<u64>],
        memory: Lease,
        joined: &mut Parts,
    ) -> u64 {
        let (flights, new) = self.flights.join_or_add(wanted, Purpose::Read, planned, memory);
        joined.extend(flights);
        let requests = new.len() as u64;
        new.into_iter().for_each(|flight| self.depart(flight));
        requests
    }

    /// What lies around the wanted blocks and is not here, if the layer is worth fetching as a whole, and waits for it.
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

    /// Follows sequences of reads, and fetches what they will come to. Gives the sequence that ends with this read.
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

    /// Has those of the blocks fetched that are not here, as far as there is memory. Gives where that ends.
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

    /// Makes a request in a task of its own: it ends even if nobody waits any more.
    fn depart(self: &Arc<Self>, flight: Arc<Flight>) {
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

    /// Blocks from the bucket, verified; damaged ones are asked for once more.
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
        // Header and footer are read before a file's id is known.
        let is_envelope = block == 0 || block + 1 == self.blocks;
        let id = if is_envelope { ENVELOPE_FILE_ID } else { self.file_id };
        block::open(id, block, bytes).is_ok()
    }

    fn corrupt(&self, block: u64, reason: String) -> StorageError {
        METRICS.corrupt_blocks.inc();
        StorageError::Corrupt { path: self.name(), offset: block * BLOCK_SIZE as u64, reason }
    }
}

/// Adds to `runs` copies of what `parts` bring, and keeps nothing else.
async fn copy_parts(parts: Parts, runs: &mut Vec<Run>) -> Result<(), StorageError> {
    for (flight, part) in parts {
        let bytes = flight.part(flight.bytes().await?, &part);
        runs.push(Run::shared(part.start, Bytes::copy_from_slice(&bytes)));
    }
    Ok(())
}

/// Puts requests together where little lies between, and cuts those that are longer than `longest` blocks.
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

/// Leaves the first so many blocks of `ranges`.
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

/// The pieces, of a file of so many blocks, in which `ranges` are. These ascend.
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

/// Where direct I/O wants units of more than a block, values begin at the second unit, and nothing is written between
/// the header and them: so many blocks from block 1 on, in a file that begins with `bytes`, have no checksum.
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
