//! Blocks of files in the bucket: in memory within a budget of bytes, and how much of them local disk may hold.
//!
//! A block is named by its file's random id and its number, so what is cached stays right however often a file is
//! opened, and nothing has to be invalidated.
//!
//! The budget is for all that blocks from the bucket take in memory. What is on its way has an [`Account`] for each
//! purpose, so that none keeps another waiting; the cache has the rest.

mod account;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::config::PageServerConf;
use crate::disk_budget::DiskBudget;
use account::Account;
pub(crate) use account::Lease;

/// What an entry takes beside its bytes.
const ENTRY_OVERHEAD: u64 = 128;
/// Size of a block, for the estimate of how many there will be.
const BLOCK_SIZE: u64 = 4096;

/// The part of the cache that only blocks have which were asked for again. The rest keeps what has just come for those
/// who read on from there: reads in sequence share a block, and scans take turns.
const HOT_SHARE: f64 = 0.75;

type Name = (u64, u64);

#[derive(Clone, Debug)]
struct Weight;

impl Weighter<Name, Bytes> for Weight {
    fn weight(&self, _name: &Name, bytes: &Bytes) -> u64 {
        bytes.len() as u64 + ENTRY_OVERHEAD
    }
}

/// Bytes until [`configure`] says otherwise.
const MEMORY_DEFAULT: u64 = 96 << 20;
/// Shares of the memory: one part in so many.
const AHEAD_SHARE: u64 = 3;
const READS_SHARE: u64 = 8;
const BACKGROUND_SHARE: u64 = 8;

/// For what is fetched ahead of sequential reads: under way, or here and not read yet.
pub(crate) static AHEAD: Account = Account::new(MEMORY_DEFAULT / AHEAD_SHARE);
/// For what somebody waits for.
pub(crate) static READS: Account = Account::new(MEMORY_DEFAULT / READS_SHARE);
/// For whole layers, and for what goes to the local disk since it was read.
pub(crate) static BACKGROUND: Account = Account::new(MEMORY_DEFAULT / BACKGROUND_SHARE);

static MEMORY: OnceLock<Cache<Name, Bytes, Weight>> = OnceLock::new();
static MEMORY_MAX: AtomicU64 = AtomicU64::new(MEMORY_DEFAULT);
static DISK_MAX: AtomicU64 = AtomicU64::new(1 << 30);
static DISK_USED: AtomicU64 = AtomicU64::new(0);
static DISK_BUDGET: RwLock<Option<DiskBudget>> = RwLock::new(None);
static DISK_ALLOWED: AtomicBool = AtomicBool::new(true);
static READ_AHEAD_MAX: AtomicU64 = AtomicU64::new(4 << 20);
static WHOLE_AFTER: AtomicU64 = AtomicU64::new(50);

/// Takes over the limits in `conf`, for the whole process. May be called again.
pub fn configure(conf: &PageServerConf) {
    let memory = conf.block_cache_memory;
    MEMORY_MAX.store(memory, Ordering::Relaxed);
    AHEAD.resize(memory / AHEAD_SHARE);
    READS.resize(memory / READS_SHARE);
    BACKGROUND.resize(memory / BACKGROUND_SHARE);
    DISK_MAX.store(conf.block_cache_disk, Ordering::Relaxed);
    READ_AHEAD_MAX.store(conf.read_ahead_max, Ordering::Relaxed);
    WHOLE_AFTER.store(conf.prefetch_whole_after, Ordering::Relaxed);
    if let Some(cache) = MEMORY.get() {
        cache.set_capacity(cache_max());
    }
}

/// What the accounts leave.
fn cache_max() -> u64 {
    let memory = MEMORY_MAX.load(Ordering::Relaxed);
    memory - memory / AHEAD_SHARE - memory / READS_SHARE - memory / BACKGROUND_SHARE
}

fn memory() -> &'static Cache<Name, Bytes, Weight> {
    MEMORY.get_or_init(|| {
        let capacity = cache_max();
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
pub(crate) fn get(file_id: u64, block: u64) -> Option<Bytes> {
    memory().get(&(file_id, block))
}

/// Keeps a block in memory. The bytes are copied: they may be a small part of something large.
pub(crate) fn insert(file_id: u64, block: u64, bytes: &[u8]) {
    memory().insert((file_id, block), Bytes::copy_from_slice(bytes));
}

/// Forgets everything that is in memory. For tests and benchmarks.
pub fn clear_memory() {
    memory().clear();
}

/// Bytes in memory: cached, or on their way.
pub fn memory_used() -> u64 {
    memory_by_use().iter().map(|(_, bytes)| bytes).sum()
}

/// Bytes in memory, by what for.
pub fn memory_by_use() -> [(&'static str, u64); 4] {
    let cached = memory().weight();
    [("cache", cached), ("ahead", AHEAD.used()), ("reads", READS.used()), ("background", BACKGROUND.used())]
}

/// Whether `bytes` more may be kept on local disk.
pub(crate) fn disk_has_room(bytes: u64) -> bool {
    let used = DISK_USED.load(Ordering::Relaxed);
    DISK_ALLOWED.load(Ordering::Relaxed) && used.saturating_add(bytes) <= DISK_MAX.load(Ordering::Relaxed)
}

/// Notes that so much more is kept on local disk.
pub(crate) fn add_disk_used(bytes: u64) {
    DISK_USED.fetch_add(bytes, Ordering::Relaxed);
    if let Some(budget) = &*DISK_BUDGET.read() {
        budget.note_used(bytes);
    }
}

/// From now on blocks that are kept on local disk take room of this budget.
pub fn set_budget(budget: DiskBudget) {
    *DISK_BUDGET.write() = Some(budget);
}

/// What blocks on local disk take at this moment, as whoever looks after the disk has counted. What is written after
/// that is added.
pub fn set_disk_used(bytes: u64) {
    DISK_USED.store(bytes, Ordering::Relaxed);
}

/// Whether anything may be cached on local disk: not when it is nearly full.
pub fn allow_disk(allowed: bool) {
    DISK_ALLOWED.store(allowed, Ordering::Relaxed);
}

/// Whether anything may be cached on local disk.
pub fn disk_allowed() -> bool {
    DISK_ALLOWED.load(Ordering::Relaxed)
}

/// Most bytes that one request fetches ahead of a sequential read.
pub(crate) fn read_ahead_max() -> u64 {
    READ_AHEAD_MAX.load(Ordering::Relaxed)
}

/// Percent of a layer which, once read, make it be fetched as a whole.
pub(crate) fn whole_after() -> u64 {
    WHOLE_AFTER.load(Ordering::Relaxed)
}
