//! What the tenants of one engine share: its caches, and turns at dear work. Each engine has its own, so that several
//! can run in one process and none sees what another does.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::block_cache::BlockCache;
use crate::page_cache::PageCache;

/// Whole layers that are fetched in the background at once.
const DOWNLOADS_MAX: usize = 2;
/// Deleted timelines whose objects are removed at once.
const REMOVALS_MAX: usize = 4;

/// A handle on them: clones share.
#[derive(Clone, Debug)]
pub struct Resources {
    /// Index pages of open layers and rebuilt pages.
    pub pages: Arc<PageCache>,
    /// Blocks of layers in the bucket.
    pub blocks: Arc<BlockCache>,
    /// Turns at fetching whole layers.
    pub(crate) downloads: Arc<Semaphore>,
    /// Turns at removing what is left of deleted timelines.
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
