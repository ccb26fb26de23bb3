//! Blocks of files in the bucket: in memory within a budget of bytes, and how much of them local disk may hold.
//!
//! A block is named by its file's random id and its number, so what is cached stays right however often a file is
//! opened, and nothing has to be invalidated.
//!
//! The budget is for all that blocks from the bucket take in memory. What is on its way has an [`Account`] for each
//! purpose, so that none keeps another waiting; the cache has the rest.

mod account;
mod ahead;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::RwLock;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::disk_budget::DiskBudget;
use account::Account;
pub(crate) use account::Lease;
pub(crate) use ahead::FetchedAhead;

/// What an entry takes beside its bytes.
const ENTRY_OVERHEAD: u64 = 128;
/// Size of a block, for the estimate of how many there will be.
const BLOCK_SIZE: u64 = 4096;

/// The part of the cache that only blocks have which were asked for again. The rest keeps what has just come for those
/// who read on from there: reads in sequence share a block, and scans take turns.
const HOT_SHARE: f64 = 0.75;

/// Shares of the memory: one part in so many.
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

/// How much blocks from the bucket may take, and how eagerly they are fetched.
#[derive(Clone, Copy, Debug)]
pub struct BlockLimits {
    /// Memory for blocks, cached or on their way, in bytes.
    pub memory: u64,
    /// Local disk for blocks, in bytes.
    pub disk: u64,
    /// Most bytes that one request fetches ahead of a sequential read.
    pub read_ahead_max: u64,
    /// Percent of a layer which, once read, make it be fetched as a whole; never if above 100.
    pub whole_after: u64,
}

impl Default for BlockLimits {
    fn default() -> Self {
        Self { memory: 96 << 20, disk: 1 << 30, read_ahead_max: 4 << 20, whole_after: 50 }
    }
}

/// See the module's documentation.
pub struct BlockCache {
    limits: RwLock<BlockLimits>,
    /// Made when a block comes first: a server without a bucket needs none.
    memory: OnceLock<Cache<Name, Bytes, Weight>>,
    /// For what is fetched ahead of sequential reads: under way, or here and not read yet.
    ahead: ahead::Ahead,
    /// For what somebody waits for.
    pub(crate) reads: Arc<Account>,
    /// For whole layers, and for what goes to the local disk since it was read.
    pub(crate) background: Arc<Account>,
    disk_used: AtomicU64,
    disk_budget: RwLock<Option<DiskBudget>>,
    disk_allowed: AtomicBool,
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
            disk_budget: RwLock::new(None),
            disk_allowed: AtomicBool::new(true),
        }
    }
}

impl BlockCache {
    /// From now on these limits hold. May be called again.
    pub fn configure(&self, limits: BlockLimits) {
        *self.limits.write() = limits;
        self.ahead.account.resize(limits.memory / AHEAD_SHARE);
        self.reads.resize(limits.memory / READS_SHARE);
        self.background.resize(limits.memory / BACKGROUND_SHARE);
        if let Some(cache) = self.memory.get() {
            cache.set_capacity(self.cache_max());
        }
    }

    /// What the accounts leave.
    fn cache_max(&self) -> u64 {
        let memory = self.limits.read().memory;
        memory - memory / AHEAD_SHARE - memory / READS_SHARE - memory / BACKGROUND_SHARE
    }

    fn memory(&self) -> &Cache<Name, Bytes, Weight> {
        self.memory.get_or_init(|| {
            let capacity = self.cache_max();
            let options = OptionsBuilder::new()
                .estimated_items_capacity((capacity / BLOCK_SIZE) as usize)
                .weight_capacity(capacity)
                .hot_allocation(HOT_SHARE)
                .build()
                .expect("both capacities are given");
            Cache::with_options(options, Weight, DefaultHashBuilder::default(), DefaultLifecycle::default())
        })
    }

    /// Block `block` of file `file_id`, if it is in memory.
    pub(crate) fn get(&self, file_id: u64, block: u64) -> Option<Bytes> {
        self.memory().get(&(file_id, block))
    }

    /// Keeps a block in memory. The bytes are copied: they may be a small part of something large.
    pub(crate) fn insert(&self, file_id: u64, block: u64, bytes: &[u8]) {
        self.memory().insert((file_id, block), Bytes::copy_from_slice(bytes));
    }

    /// Forgets everything that is in memory. For tests and benchmarks.
    pub fn clear_memory(&self) {
        self.memory().clear();
    }

    /// Bytes in memory: cached, or on their way.
    pub fn memory_used(&self) -> u64 {
        self.memory_by_use().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes in memory, by what for.
    pub fn memory_by_use(&self) -> [(&'static str, u64); 4] {
        [
            ("cache", self.memory().weight()),
            ("ahead", self.ahead.account.used()),
            ("reads", self.reads.used()),
            ("background", self.background.used()),
        ]
    }

    /// Memory for so many bytes that are to be fetched ahead: if not for all, for at least `worth` of them, which are
    /// worth a request of their own, or for none.
    pub(crate) fn memory_ahead(&self, wanted: u64, worth: u64) -> Option<Lease> {
        self.ahead.take(wanted, worth)
    }

    /// Notes what is fetched ahead, which gives way to others once nobody reads towards it.
    pub(crate) fn note_ahead(&self, fetched: impl FetchedAhead) {
        self.ahead.note(fetched);
    }

    /// Most bytes to fetch ahead at once: one sequence may have as many again before it.
    pub(crate) fn window_max(&self) -> u64 {
        self.limits.read().read_ahead_max.min(self.ahead.account.size() / 2)
    }

    /// Percent of a layer which, once read, make it be fetched as a whole.
    pub(crate) fn whole_after(&self) -> u64 {
        self.limits.read().whole_after
    }

    /// Whether `bytes` more may be kept on local disk.
    pub(crate) fn disk_has_room(&self, bytes: u64) -> bool {
        let used = self.disk_used.load(Ordering::Relaxed);
        self.disk_allowed() && used.saturating_add(bytes) <= self.limits.read().disk
    }

    /// Notes that so much more is kept on local disk.
    pub(crate) fn add_disk_used(&self, bytes: u64) {
        self.disk_used.fetch_add(bytes, Ordering::Relaxed);
        if let Some(budget) = &*self.disk_budget.read() {
            budget.note_used(bytes);
        }
    }

    /// From now on blocks that are kept on local disk take room of this budget.
    pub fn set_budget(&self, budget: DiskBudget) {
        *self.disk_budget.write() = Some(budget);
    }

    /// What blocks on local disk take at this moment, as whoever looks after the disk has counted. What is written
    /// after that is added.
    pub fn set_disk_used(&self, bytes: u64) {
        self.disk_used.store(bytes, Ordering::Relaxed);
    }

    /// Whether anything may be cached on local disk: not when it is nearly full.
    pub fn allow_disk(&self, allowed: bool) {
        self.disk_allowed.store(allowed, Ordering::Relaxed);
    }

    /// Whether anything may be cached on local disk.
    pub fn disk_allowed(&self) -> bool {
        self.disk_allowed.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockCache").field("limits", &*self.limits.read()).finish_non_exhaustive()
    }
}
