//! Delays between attempts to connect.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(15);

/// Exponentially growing delays, each randomly shortened by up to a half, so that clients do not all return at once.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { next: FIRST }
    }

    /// The delay before the next attempt.
    pub(super) fn delay(&mut self) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(LAST);
        whole.mul_f64(0.5 + (env::random::u64() >> 11) as f64 / (1_u64 << 54) as f64)
    }

    /// Restarts from the first delay, after a success.
    pub(super) fn reset(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit() {
        let mut backoff = Backoff::new();
        let mut whole = FIRST;
        for _ in 0..20 {
            let delay = backoff.delay();
            assert!(whole / 2 <= delay && delay <= whole, "{delay:?} of {whole:?}");
            whole = (whole * 2).min(LAST);
        }
        backoff.reset();
        assert!(backoff.delay() <= FIRST);
    }
}
