//! Index pages of open layers, within a budget.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use quick_cache::sync::Cache;

/// Pages kept when [`init`] was not called.
const DEFAULT_PAGES: usize = 8192;

type PageCache = Cache<(u64, u32), Bytes>;

static CACHE: OnceLock<PageCache> = OnceLock::new();
static NEXT_FILE: AtomicU64 = AtomicU64::new(1);

/// Names an open layer file in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CachedFile(u64);

/// Sets the budget, in pages of 8 KiB.
///
/// # Panics
/// If the cache is in use already.
pub fn init(pages: usize) {
    let fresh = CACHE.set(Cache::new(pages)).is_ok();
    assert!(fresh, "the page cache is initialized twice");
}

fn cache() -> &'static PageCache {
    CACHE.get_or_init(|| Cache::new(DEFAULT_PAGES))
}

/// A name that no other open file has or had.
pub(crate) fn register_file() -> CachedFile {
    CachedFile(NEXT_FILE.fetch_add(1, Ordering::Relaxed))
}

/// Page `page` of `file`, if it is cached.
pub(crate) fn get(file: CachedFile, page: u32) -> Option<Bytes> {
    cache().get(&(file.0, page))
}

/// Keeps page `page` of `file`.
pub(crate) fn insert(file: CachedFile, page: u32, bytes: Bytes) {
    cache().insert((file.0, page), bytes);
}
