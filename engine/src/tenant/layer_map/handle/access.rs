//! When and how often a layer was read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

/// Coarse: eviction does not depend on milliseconds, nor on a read that is counted twice.
#[derive(Debug, Default)]
pub(super) struct Access {
    last: AtomicU64,
    count: AtomicU64,
}

fn now_ms() -> u64 {
    let since = env::clock::system_now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Access {
    /// Notes a read.
    pub(super) fn note(&self) {
        self.last.store(now_ms(), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Time of the last read, in milliseconds since 1970; 0 if there was none.
    pub(super) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Pretends that it was last read `ahead_ms` milliseconds from now.
    pub(super) fn restore(&self, ahead_ms: u64) {
        self.last.fetch_max(now_ms().saturating_add(ahead_ms), Ordering::Relaxed);
    }
}
