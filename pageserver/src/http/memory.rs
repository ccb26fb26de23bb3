//! What the process's memory is used for, as far as it is counted.

use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::Timeline;
use virtual_file::buffer;

/// Bytes by use. What blocks from the bucket take is not among them: [`memory_by_use`] has that in more detail.
///
/// [`memory_by_use`]: engine::block_cache::BlockCache::memory_by_use
pub(super) fn by_use(manager: &TenantManager, timelines: &[Timeline]) -> [(&'static str, u64); 3] {
    let indexes = timelines.iter().map(|timeline| timeline.info().in_memory_index_bytes).sum();
    [
        ("page_cache", manager.conf().resources.pages.bytes()),
        ("in_memory_index", indexes),
        ("buffers", buffer::allocated_bytes() as u64),
    ]
}
