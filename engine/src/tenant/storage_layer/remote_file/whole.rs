//! Fetches whole files from the bucket: onto the local disk, or only to verify them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use layer_format::block::BLOCK_SIZE;

use super::flight::{Purpose, bytes_of};
use super::partial::WRITE_BLOCKS;
use super::{RemoteFile, coalesce};
use errors::StorageError;
use remote_storage::RequestClass;

/// Bounds of the blocks in one request.
const CHUNK_BLOCKS_MAX: u64 = 1024;
const CHUNK_BLOCKS_MIN: u64 = 64;
/// How long no read has to fetch anything before a whole file is fetched, and how long that is waited for.
const QUIET: Duration = Duration::from_millis(200);
const QUIET_WITHIN: Duration = Duration::from_secs(10);
/// Requests in flight.
const CHUNKS_IN_FLIGHT: usize = 4;

impl RemoteFile {
    /// Waits until no read has had blocks fetched for a moment, but not for long. What a scan fetches is kept on the
    /// disk, if there is memory for that: fetching the whole file beside it would take that memory, and fetch the same
    /// blocks once more.
    pub(crate) async fn until_quiet(&self) {
        let end = env::clock::now() + QUIET_WITHIN;
        loop {
            let (now, quiet_at) = (env::clock::now(), *self.last_fetch.lock() + QUIET);
            if now >= quiet_at.min(end) || self.partial.is_left() {
                return;
            }
            env::clock::sleep(quiet_at.min(end).saturating_duration_since(now)).await;
        }
    }

    /// Brings all blocks, verified, into the file on local disk, and makes it durable. Blocks that are there already
    /// are read and verified there.
    pub(crate) async fn complete(self: &Arc<Self>) -> Result<(), StorageError> {
        self.is_completing.store(true, Ordering::Relaxed);
        let chunks = stream::iter(self.chunks()).map(|chunk| self.complete_chunk(chunk));
        let completed = chunks.buffer_unordered(CHUNKS_IN_FLIGHT).try_collect::<()>().await;
        self.is_completing.store(false, Ordering::Relaxed);
        completed?;
        self.partial.seal(self.blocks * BLOCK_SIZE as u64).await
    }

    fn chunks(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let (blocks, chunk) = (self.blocks, self.chunk_blocks());
        (0..blocks).step_by(chunk as usize).map(move |first| first..blocks.min(first + chunk))
    }

    /// All chunks in flight and their write buffers must fit into the memory for them.
    fn chunk_blocks(&self) -> u64 {
        let share = self.cache().background.size() / BLOCK_SIZE as u64 / CHUNKS_IN_FLIGHT as u64;
        share.saturating_sub(WRITE_BLOCKS).clamp(CHUNK_BLOCKS_MIN, CHUNK_BLOCKS_MAX)
    }

    async fn complete_chunk(self: &Arc<Self>, chunk: Range<u64>) -> Result<(), StorageError> {
        if self.partial.is_left() {
            return Err(StorageError::Shutdown);
        }
        // For what is read here or fetched, and for the write buffer.
        let mut memory = self.cache().background.take(chunk_bytes(&chunk)).await;
        let there = self.partial.load(std::slice::from_ref(&chunk), |block, bytes| self.check(block, bytes)).await;
        let mut missing = Vec::new();
        let mut next = chunk.start;
        for (first, bytes) in there {
            missing.push(next..first);
            next = first + (bytes.len() / BLOCK_SIZE) as u64;
        }
        missing.push(next..chunk.end);
        missing.retain(|range| !range.is_empty());
        if let Some(first) = missing.first_mut().filter(|_| chunk.start == 0) {
            // Which blocks after the header have no checksum is evident only together with the header.
            first.start = 0;
        }
        let planned = coalesce(missing.clone(), CHUNK_BLOCKS_MAX);
        let lease = memory.split(planned.iter().map(bytes_of).sum());
        let (joined, new) = self.flights.join_or_add(&missing, Purpose::Whole, &planned, lease);
        new.into_iter().for_each(|flight| self.depart(flight));
        for (flight, part) in joined {
            let bytes = flight.bytes().await?;
            // Including its neighbors, for disks that require units larger than a block.
            self.partial.store(flight.blocks.start, &flight.part(bytes, &flight.blocks)).await?;
            debug_assert!(flight.blocks.start <= part.start && part.end <= flight.blocks.end);
        }
        Ok(())
    }

    /// Verifies every block of the object. Returns their number.
    pub(crate) async fn verify_all(&self) -> Result<u64, StorageError> {
        let chunks = stream::iter(self.chunks()).map(|chunk| async {
            let _memory = self.cache().background.take(bytes_of(&chunk)).await;
            self.get_checked(RequestClass::Scrub, chunk).await.map(drop)
        });
        chunks.buffer_unordered(CHUNKS_IN_FLIGHT).try_for_each(|()| async { Ok(()) }).await?;
        Ok(self.blocks)
    }
}

/// Memory needed to complete a chunk.
fn chunk_bytes(chunk: &Range<u64>) -> u64 {
    bytes_of(chunk) + WRITE_BLOCKS * BLOCK_SIZE as u64
}
