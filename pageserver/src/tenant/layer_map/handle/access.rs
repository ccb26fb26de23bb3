//! When and how often a layer was read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use super::Layer;

/// Coarse: whoever evicts does not care about milliseconds, nor about a read that was counted twice.
#[derive(Debug, Default)]
pub(super) struct Access {
    last: AtomicU64,
    count: AtomicU64,
}

fn now_ms() -> u64 {
    let since = env::clock::system_now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Layer {
    /// Notes a read.
    pub fn touch(&self) {
        self.access.last.store(now_ms(), Ordering::Relaxed);
        self.access.count.fetch_add(1, Ordering::Relaxed);
    }

    /// When it was read last, in milliseconds since 1970; 0 for a layer in the bucket that was not read here.
    pub fn last_access(&self) -> u64 {
        self.access.last.load(Ordering::Relaxed)
    }

    /// How often it was read.
    pub fn accesses(&self) -> u64 {
        self.access.count.load(Ordering::Relaxed)
    }

    /// Takes over what an earlier process knew: it counts as read, by `ahead_ms` milliseconds later than now.
    pub(crate) fn restore_access(&self, ahead_ms: u64) {
        self.access.last.fetch_max(now_ms().saturating_add(ahead_ms), Ordering::Relaxed);
    }
}
