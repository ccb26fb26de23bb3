//! Caches index pages of open layers and rebuilt pages within one budget.
//!
//! A rebuilt page is keyed by its key and the LSN of the newest version that went into it. A reader who finds that
//! version in an index knows that the cached page is the one it would rebuild, so nothing has to be invalidated.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use env::random::{Hashing, hashing};
use pageserver_api::key::{CompactKey, Key};
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use utils::lsn::Lsn;

use metrics::METRICS;

/// Cache size if none is configured, in pages.
const DEFAULT_PAGES: usize = 8192;
/// Longer values are not cached, so that the budget holds in bytes too.
const PAGE_SIZE: usize = 8192;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Name {
    Index { file: u64, page: u32 },
    Rebuilt { timeline: u64, key: CompactKey, lsn: Lsn },
}

type Pages = Cache<Name, Bytes, UnitWeighter, Hashing>;

/// The size passed to [`init`].
static PAGES: OnceLock<usize> = OnceLock::new();

/// Sets the size of page caches that are not configured explicitly, in pages of 8 KiB.
///
/// # Panics
/// If it was set before.
pub fn init(pages: usize) {
    let fresh = PAGES.set(pages).is_ok();
    assert!(fresh, "the page cache is initialized twice");
}

/// See the module's documentation.
pub struct PageCache {
    /// Created on first use. If `pages` is 0, the size is that of [`init`].
    cache: OnceLock<Pages>,
    pages: AtomicUsize,
    next_name: AtomicU64,
    keep_rebuilt: AtomicBool,
}

/// An open layer file in the cache.
#[derive(Clone, Debug)]
pub(crate) struct CachedFile {
    cache: Arc<PageCache>,
    name: u64,
}

/// An open timeline in the cache.
#[derive(Clone, Debug)]
pub(crate) struct CachedTimeline {
    cache: Arc<PageCache>,
    name: u64,
}

impl Default for PageCache {
    fn default() -> Self {
        let keep_rebuilt = AtomicBool::new(true);
        Self { cache: OnceLock::new(), pages: AtomicUsize::new(0), next_name: AtomicU64::new(1), keep_rebuilt }
    }
}

impl PageCache {
    /// Sets the budget, in pages of 8 KiB. May be called again.
    pub fn configure(&self, pages: usize) {
        self.pages.store(pages, Ordering::Relaxed);
        if let Some(cache) = self.cache.get() {
            cache.set_capacity(pages as u64);
        }
    }

    /// Sets whether rebuilt pages are cached. Benchmarks of rebuilding switch it off.
    pub fn set_keep_rebuilt(&self, keep: bool) {
        self.keep_rebuilt.store(keep, Ordering::Relaxed);
    }

    fn cache(&self) -> &Pages {
        self.cache.get_or_init(|| {
            let pages = match self.pages.load(Ordering::Relaxed) {
                0 => PAGES.get().copied().unwrap_or(DEFAULT_PAGES),
                pages => pages,
            };
            Cache::with(pages, pages as u64, UnitWeighter, hashing(), DefaultLifecycle::default())
        })
    }

    /// Bytes of its pages, if all of them were of full size.
    pub fn bytes(&self) -> u64 {
        self.cache.get().map_or(0, |cache| cache.len() * PAGE_SIZE) as u64
    }

    fn next_name(&self) -> u64 {
        self.next_name.fetch_add(1, Ordering::Relaxed)
    }

    /// A namespace for the pages of an open file. Its name is never reused.
    pub(crate) fn file(self: &Arc<Self>) -> CachedFile {
        CachedFile { cache: Arc::clone(self), name: self.next_name() }
    }

    /// A namespace for the pages of an open timeline. Its name is never reused.
    pub(crate) fn timeline(self: &Arc<Self>) -> CachedTimeline {
        CachedTimeline { cache: Arc::clone(self), name: self.next_name() }
    }
}

impl std::fmt::Debug for PageCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageCache").field("pages", &self.pages).finish_non_exhaustive()
    }
}

impl CachedFile {
    /// Page `page` of the file, if it is cached.
    pub(crate) fn get(&self, page: u32) -> Option<Bytes> {
        METRICS.page_cache_read_accesses.inc();
        let found = self.cache.cache().get(&Name::Index { file: self.name, page });
        METRICS.page_cache_read_hits.inc_by(u64::from(found.is_some()));
        found
    }

    /// Caches page `page` of the file.
    pub(crate) fn insert(&self, page: u32, bytes: Bytes) {
        self.cache.cache().insert(Name::Index { file: self.name, page }, bytes);
    }
}

impl CachedTimeline {
    /// An id that no other timeline of this cache has or ever had.
    pub(crate) fn id(&self) -> u64 {
        self.name
    }

    /// The value of `key` whose newest version is at `lsn`, if it is cached.
    pub(crate) fn get(&self, key: &Key, lsn: Lsn) -> Option<Bytes> {
        self.cache.cache().get(&self.name(key, lsn))
    }

    /// Caches the value of `key` whose newest version is at `lsn`.
    pub(crate) fn insert(&self, key: &Key, lsn: Lsn, value: Bytes) {
        if value.len() <= PAGE_SIZE && self.cache.keep_rebuilt.load(Ordering::Relaxed) {
            self.cache.cache().insert(self.name(key, lsn), value);
        }
    }

    fn name(&self, key: &Key, lsn: Lsn) -> Name {
        Name::Rebuilt { timeline: self.name, key: key.to_compact(), lsn }
    }
}
