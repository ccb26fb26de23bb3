//! Resources shared by the tenants of one engine: its caches, and limits on concurrent expensive work. Each engine
//! has its own, so that several can run in one process without affecting each other.

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use tokio::sync::Semaphore;

use crate::block_cache::BlockCache;
use crate::l0_flush::{L0FlushConfig, L0FlushGlobalState};
use crate::lease::Lease;
use crate::page_cache::PageCache;
use crate::slow_reads::SlowReads;
use crate::turns::Turns;
use virtual_file::KeptMemory;

/// Maximum number of whole layers downloaded in the background at once.
const DOWNLOADS_MAX: usize = 2;
/// Bytes of values of in-memory layers that stay in memory unless it is said otherwise: three layers.
pub(crate) const EPHEMERAL_MEMORY: u64 = 768 << 20;
/// Maximum number of deleted timelines whose objects are removed at once.
const REMOVALS_MAX: usize = 4;

/// A shared handle: clones refer to the same resources.
#[derive(Clone, Debug)]
pub struct Resources {
    /// Index pages of open layers and rebuilt pages.
    pub pages: Arc<PageCache>,
    /// Blocks of layers in the bucket.
    pub blocks: Arc<BlockCache>,
    /// For values of in-memory layers that are on disk as well.
    pub kept: Arc<KeptMemory>,
    /// Whether this server may act as an owner.
    pub lease: Arc<Lease>,
    /// Limits concurrent downloads of whole layers.
    pub(crate) downloads: Arc<Semaphore>,
    /// One sort of L0 layers at a time.
    pub(crate) sorts: Arc<Turns>,
    /// One other job of compaction at a time.
    pub(crate) compactions: Arc<Turns>,
    /// How much is said about slow reads.
    pub(crate) slow_reads: Arc<SlowReads>,
    /// Limits concurrent removals of deleted timelines.
    pub(crate) removals: Arc<Semaphore>,
    /// Limits concurrent flushes of all timelines, once the first one has said to how many.
    flushes: Arc<OnceLock<L0FlushGlobalState>>,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            pages: Arc::default(),
            blocks: Arc::default(),
            kept: Arc::new(KeptMemory::new(EPHEMERAL_MEMORY)),
            lease: Arc::default(),
            downloads: Arc::new(Semaphore::new(DOWNLOADS_MAX)),
            sorts: Arc::default(),
            compactions: Arc::default(),
            slow_reads: Arc::default(),
            removals: Arc::new(Semaphore::new(REMOVALS_MAX)),
            flushes: Arc::default(),
        }
    }
}

impl Resources {
    /// The limit on concurrent flushes. `max_concurrency` counts only in the first call.
    pub(crate) fn flushes(&self, max_concurrency: NonZeroUsize) -> &L0FlushGlobalState {
        self.flushes.get_or_init(|| L0FlushGlobalState::new(L0FlushConfig::Direct { max_concurrency }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn timelines_flush_in_turns() {
        let resources = Resources::default();
        let one = NonZeroUsize::MIN;
        let first = resources.flushes(one).inner().acquire().await.unwrap();
        let others = resources.clone();
        let mut second = std::pin::pin!(others.flushes(one).inner().acquire());
        assert!(futures_util::poll!(&mut second).is_pending(), "a second flush at the same time");
        drop(first);
        drop(second.await.unwrap());
    }
}
