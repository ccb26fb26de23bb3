//! Index pages of open layers and rebuilt pages, within one budget.
//!
//! A rebuilt page is kept under its key and the LSN of the newest version that went into it. Whoever has found that
//! version in an index knows that the page is the one it would rebuild; so nothing has to be invalidated.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use pageserver_api::key::{CompactKey, Key};
use quick_cache::sync::Cache;
use utils::lsn::Lsn;

use crate::metrics::METRICS;

/// Pages kept when [`init`] was not called.
const DEFAULT_PAGES: usize = 8192;
/// What is longer is not kept, so that the budget holds in bytes too.
const PAGE_SIZE: usize = 8192;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Name {
    Index { file: u64, page: u32 },
    Rebuilt { timeline: u64, key: CompactKey, lsn: Lsn },
}

static CACHE: OnceLock<Cache<Name, Bytes>> = OnceLock::new();
static NEXT_NAME: AtomicU64 = AtomicU64::new(1);

/// Names an open layer file in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CachedFile(u64);

/// Names an open timeline in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CachedTimeline(u64);

static KEEP_REBUILT: AtomicBool = AtomicBool::new(true);

/// Whether rebuilt pages are kept. Benchmarks of rebuilding switch it off.
pub fn set_keep_rebuilt(keep: bool) {
    KEEP_REBUILT.store(keep, Ordering::Relaxed);
}

/// Sets the budget, in pages of 8 KiB.
///
/// # Panics
/// If the cache is in use already.
pub fn init(pages: usize) {
    let fresh = CACHE.set(Cache::new(pages)).is_ok();
    assert!(fresh, "the page cache is initialized twice");
}

fn cache() -> &'static Cache<Name, Bytes> {
    CACHE.get_or_init(|| Cache::new(DEFAULT_PAGES))
}

fn next_name() -> u64 {
    NEXT_NAME.fetch_add(1, Ordering::Relaxed)
}

/// A name that no other open file has or had.
pub(crate) fn register_file() -> CachedFile {
    CachedFile(next_name())
}

/// A name that no other open timeline has or had.
pub(crate) fn register_timeline() -> CachedTimeline {
    CachedTimeline(next_name())
}

/// Page `page` of `file`, if it is cached.
pub(crate) fn get(file: CachedFile, page: u32) -> Option<Bytes> {
    METRICS.page_cache_read_accesses.inc();
    let found = cache().get(&Name::Index { file: file.0, page });
    METRICS.page_cache_read_hits.inc_by(u64::from(found.is_some()));
    found
}

/// Keeps page `page` of `file`.
pub(crate) fn insert(file: CachedFile, page: u32, bytes: Bytes) {
    cache().insert(Name::Index { file: file.0, page }, bytes);
}

impl CachedTimeline {
    /// The value of `key` whose newest version is at `lsn`, if it is cached.
    pub(crate) fn get(self, key: &Key, lsn: Lsn) -> Option<Bytes> {
        cache().get(&self.name(key, lsn))
    }

    /// Keeps the value of `key` whose newest version is at `lsn`.
    pub(crate) fn insert(self, key: &Key, lsn: Lsn, value: Bytes) {
        if value.len() <= PAGE_SIZE && KEEP_REBUILT.load(Ordering::Relaxed) {
            cache().insert(self.name(key, lsn), value);
        }
    }

    fn name(self, key: &Key, lsn: Lsn) -> Name {
        Name::Rebuilt { timeline: self.0, key: key.to_compact(), lsn }
    }
}
