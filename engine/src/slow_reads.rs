//! How much is said about slow reads: where many are slow, a line each would hide the others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Distance of lines.
const LINE_PERIOD: Duration = Duration::from_secs(1);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct SlowReads {
    /// Reads about which nothing was said since the last line.
    untold: AtomicU64,
    last_line: parking_lot::Mutex<Option<Instant>>,
}

impl SlowReads {
    /// Whether there may be a line now; then how many reads had none before.
    pub(crate) fn may_tell(&self) -> Option<u64> {
        let now = env::clock::now();
        let mut last = self.last_line.lock();
        if last.is_some_and(|last| now.saturating_duration_since(last) < LINE_PERIOD) {
            self.untold.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *last = Some(now);
        Some(self.untold.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_told_is_counted() {
        let reads = SlowReads::default();
        assert_eq!([reads.may_tell(), reads.may_tell(), reads.may_tell()], [Some(0), None, None]);
        let before = env::clock::now().checked_sub(LINE_PERIOD);
        *reads.last_line.lock() = before;
        assert_eq!([reads.may_tell(), reads.may_tell()], [Some(2), None]);
    }
}
