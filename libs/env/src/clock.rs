//! Time. A test may freeze its thread's clock and move it by hand.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime};

thread_local! {
    static FROZEN: Cell<Option<(Instant, SystemTime)>> = const { Cell::new(None) };
}

/// Monotonic time.
pub fn now() -> Instant {
    FROZEN.get().map_or_else(Instant::now, |(instant, _)| instant)
}

/// Wall-clock time.
pub fn system_now() -> SystemTime {
    FROZEN.get().map_or_else(SystemTime::now, |(_, system)| system)
}

/// Stops this thread's clocks at their present values.
pub fn freeze_thread() {
    FROZEN.set(Some((now(), system_now())));
}

/// Moves this thread's frozen clocks; does nothing to running ones.
pub fn advance_thread(by: Duration) {
    FROZEN.set(FROZEN.get().map(|(instant, system)| (instant + by, system + by)));
}

/// Lets this thread's clocks run again.
pub fn thaw_thread() {
    FROZEN.set(None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_clock_moves_only_by_hand() {
        freeze_thread();
        let start = now();
        assert_eq!(start, now());
        advance_thread(Duration::from_secs(5));
        assert_eq!(now() - start, Duration::from_secs(5));
        thaw_thread();
        assert!(now() < start + Duration::from_secs(5));
    }
}
