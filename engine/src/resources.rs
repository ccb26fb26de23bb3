//! Resources shared by the tenants of one engine: its caches, and limits on concurrent expensive work. Each engine
//! has its own, so that several can run in one process without affecting each other.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::block_cache::BlockCache;
use crate::page_cache::PageCache;

/// Maximum number of whole layers downloaded in the background at once.
const DOWNLOADS_MAX: usize = 2;
/// Maximum number of deleted timelines whose objects are removed at once.
const REMOVALS_MAX: usize = 4;

/// A shared handle: clones refer to the same resources.
#[derive(Clone, Debug)]
pub struct Resources {
    /// Index pages of open layers and rebuilt pages.
    pub pages: Arc<PageCache>,
    /// Blocks of layers in the bucket.
    pub blocks: Arc<BlockCache>,
    /// Limits concurrent downloads of whole layers.
    pub(crate) downloads: Arc<Semaphore>,
    /// Limits concurrent removals of deleted timelines.
    pub(crate) removals: Arc<Semaphore>,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            pages: Arc::default(),
            blocks: Arc::default(),
            downloads: Arc::new(Semaphore::new(DOWNLOADS_MAX)),
            removals: Arc::new(Semaphore::new(REMOVALS_MAX)),
        }
    }
}
