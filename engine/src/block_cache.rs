//! Caches blocks of files in the bucket in memory, within a byte budget, and limits how many the local disk may hold.
//!
//! A block's name is its file's random id and its number. Cached blocks therefore stay valid however often a file is
//! reopened, and nothing has to be invalidated.
//!
//! The budget covers all memory that blocks from the bucket occupy. Blocks in transit draw on one [`Account`] per
//! purpose, so that no purpose starves another; the cache gets the rest.

mod account;
mod ahead;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use env::random::{Hashing, hashing};
use parking_lot::RwLock;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use crate::disk_budget::DiskBudget;
use account::Account;
pub(crate) use account::Lease;
pub(crate) use ahead::FetchedAhead;

/// Bytes that an entry occupies besides its block.
const ENTRY_OVERHEAD: u64 = 128;
/// Size of a block, for estimating how many will fit.
const BLOCK_SIZE: u64 = 4096;

/// The share of the cache reserved for blocks that were requested again. The rest holds newly fetched blocks for
/// those who read on from there: sequential reads share a block, and scans take turns.
const HOT_SHARE: f64 = 0.75;

/// Shares of the memory: one part in this many.
const AHEAD_SHARE: u64 = 3;
const READS_SHARE: u64 = 8;
const BACKGROUND_SHARE: u64 = 8;

type Name = (u64, u64);

#[derive(Clone, Debug)]
struct Weight;

impl Weighter<Name, Bytes> for Weight {
    fn weight(&self, _name: &Name, bytes: &Bytes) -> u64 {
        bytes.len() as u64 + ENTRY_OVERHEAD
    }
}

/// How much memory and disk blocks from the bucket may use, and how eagerly they are fetched.
#[derive(Clone, Copy, Debug)]
pub struct BlockLimits {
    /// Memory for blocks, cached or in transit, in bytes.
    pub memory: u64,
    /// Local disk for blocks, in bytes.
    pub disk: u64,
    /// Maximum number of bytes that one request reads ahead of a sequential read.
    pub read_ahead_max: u64,
    /// Percentage of a layer that, once read, causes the whole layer to be fetched; above 100 disables this.
    pub whole_after: u64,
    /// Maximum number of bytes that are fetched at once to open a timeline's layers, as soon as one of them is read. A
    /// layer of at most a quarter of that is fetched whole when it is opened. 0: neither.
    pub open_ahead_max: u64,
}

impl Default for BlockLimits {
    fn default() -> Self {
        Self { memory: 96 << 20, disk: 1 << 30, read_ahead_max: 4 << 20, whole_after: 50, open_ahead_max: 4 << 20 }
    }
}

/// See the module's documentation.
pub struct BlockCache {
    limits: RwLock<BlockLimits>,
    /// Created on first use: a server without a bucket needs none.
    memory: OnceLock<Cache<Name, Bytes, Weight, Hashing>>,
    /// Read-ahead of sequential reads: in flight, or fetched but not read yet.
    ahead: ahead::Ahead,
    /// Fetches that a reader is waiting for.
    pub(crate) reads: Arc<Account>,
    /// Fetches of whole layers, and blocks that were read and are being written to local disk.
    pub(crate) background: Arc<Account>,
    disk_used: AtomicU64,
    disk_budget: RwLock<DiskBudget>,
}

impl Default for BlockCache {
    fn default() -> Self {
        let limits = BlockLimits::default();
        Self {
            limits: RwLock::new(limits),
            memory: OnceLock::new(),
            ahead: ahead::Ahead::new(limits.memory / AHEAD_SHARE),
            reads: Account::new(limits.memory / READS_SHARE),
            background: Account::new(limits.memory / BACKGROUND_SHARE),
            disk_used: AtomicU64::new(0),
            disk_budget: RwLock::default(),
        }
    }
}

impl BlockCache {
    /// Replaces the limits. May be called again.
    pub fn configure(&self, limits: BlockLimits) {
        *self.limits.write() = limits;
        self.ahead.account.resize(limits.memory / AHEAD_SHARE);
        self.reads.resize(limits.memory / READS_SHARE);
        self.background.resize(limits.memory / BACKGROUND_SHARE);
        if let Some(cache) = self.memory.get() {
            cache.set_capacity(self.cache_max());
        }
    }

    /// The memory that the accounts leave for the cache.
    fn cache_max(&self) -> u64 {
        let memory = self.limits.read().memory;
        memory - memory / AHEAD_SHARE - memory / READS_SHARE - memory / BACKGROUND_SHARE
    }

    fn memory(&self) -> &Cache<Name, Bytes, Weight, Hashing> {
        self.memory.get_or_init(|| {
            let capacity = self.cache_max();
            let options = OptionsBuilder::new()
                .estimated_items_capacity((capacity / BLOCK_SIZE) as usize)
                .weight_capacity(capacity)
                .hot_allocation(HOT_SHARE)
                .build()
                .expect("both capacities are given");
            Cache::with_options(options, Weight, hashing(), DefaultLifecycle::default())
        })
    }

    /// Block `block` of file `file_id`, if it is in memory.
    pub(crate) fn get(&self, file_id: u64, block: u64) -> Option<Bytes> {
        self.memory().get(&(file_id, block))
    }

    /// Keeps a block in memory. The bytes are copied, because they may be a small slice of a large buffer.
    pub(crate) fn insert(&self, file_id: u64, block: u64, bytes: &[u8]) {
        self.memory().insert((file_id, block), Bytes::copy_from_slice(bytes));
    }

    /// Drops everything held in memory. For tests and benchmarks.
    pub fn clear_memory(&self) {
        self.memory().clear();
    }

    /// Bytes in memory, cached or in transit.
    pub fn memory_used(&self) -> u64 {
        self.memory_by_use().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes in memory, by use.
    pub fn memory_by_use(&self) -> [(&'static str, u64); 4] {
        [
            ("cache", self.memory.get().map_or(0, Cache::weight)),
            ("ahead", self.ahead.account.used()),
            ("reads", self.reads.used()),
            ("background", self.background.used()),
        ]
    }

    /// Takes memory to read ahead `wanted` bytes; if that much is not available, at least `worth` bytes, the minimum
    /// that justifies a request of its own; otherwise `None`.
    pub(crate) fn memory_ahead(&self, wanted: u64, worth: u64) -> Option<Lease> {
        self.ahead.take(wanted, worth)
    }

    /// Registers a read-ahead, which gives up its memory to others once nobody reads towards it.
    pub(crate) fn note_ahead(&self, fetched: impl FetchedAhead) {
        self.ahead.note(fetched);
    }

    /// Maximum number of bytes to read ahead at once: half of the account, so that a sequence can have another window
    /// in flight.
    pub(crate) fn window_max(&self) -> u64 {
        self.limits.read().read_ahead_max.min(self.ahead.account.size() / 2)
    }

    /// Maximum number of bytes fetched at once to open layers: no larger part of the memory for reads than a third.
    pub(crate) fn open_ahead_max(&self) -> u64 {
        self.limits.read().open_ahead_max.min(self.reads.size() / 3)
    }

    /// Percentage of a layer that, once read, causes the whole layer to be fetched.
    pub(crate) fn whole_after(&self) -> u64 {
        self.limits.read().whole_after
    }

    /// Whether `bytes` more of layers that are only partially on local disk may be kept there.
    pub(crate) fn disk_has_room(&self, bytes: u64) -> bool {
        let used = self.disk_used.load(Ordering::Relaxed);
        used.saturating_add(bytes) <= self.limits.read().disk && self.disk_allowed(bytes)
    }

    /// Whether `bytes` more may be written to local disk: what is only a copy may not take the room of the intake.
    pub(crate) fn disk_allowed(&self, bytes: u64) -> bool {
        self.disk_budget.read().can_spare(bytes)
    }

    /// Adds `bytes` to what is kept on local disk.
    pub(crate) fn add_disk_used(&self, bytes: u64) {
        self.disk_used.fetch_add(bytes, Ordering::Relaxed);
        self.disk_budget.read().note_used(bytes);
    }

    /// From now on, blocks written to local disk are charged to this budget.
    pub fn set_budget(&self, budget: DiskBudget) {
        *self.disk_budget.write() = budget;
    }

    /// Sets the bytes that blocks occupy on local disk, as measured by the keeper. Later writes are added to it.
    pub fn set_disk_used(&self, bytes: u64) {
        self.disk_used.store(bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockCache").field("limits", &*self.limits.read()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_budget::Measured;

    #[test]
    fn blocks_take_no_room_of_the_intake_between_two_measurements() {
        let (cache, budget) = (BlockCache::default(), DiskBudget::default());
        cache.set_budget(budget.clone());
        let measured = Measured { room: 10 << 20, slow_below: 4 << 20, ..Measured::default() };
        budget.set(measured, budget.begin());
        assert!(cache.disk_has_room(6 << 20) && !cache.disk_has_room(7 << 20));
        cache.add_disk_used(6 << 20);
        assert!(!cache.disk_has_room(1) && !cache.disk_allowed(1));
    }
}
