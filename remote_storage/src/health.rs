//! Logs once when a bucket stops answering, and once when it answers again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Number of consecutive failures before a log line is written.
const NOTABLE: u32 = 3;
/// Minimum time between two such lines.
const LINE_EVERY: Duration = Duration::from_secs(30);

/// The recent health of a bucket.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Failures since the last success.
    failures: AtomicU32,
    outage: Mutex<Outage>,
}

#[derive(Debug, Default)]
struct Outage {
    /// When the current outage was logged, if it was.
    said: Option<Instant>,
    last_line: Option<Instant>,
}

impl Health {
    pub(super) fn failed(&self, url: &str, reason: &str) {
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 < NOTABLE {
            return;
        }
        let now = env::clock::now();
        let mut outage = self.outage.lock();
        let recent = |line: Instant| now.saturating_duration_since(line) < LINE_EVERY;
        if outage.said.is_none() && !outage.last_line.is_some_and(recent) {
            tracing::warn!("the bucket {url} does not answer as it should: {reason}. Trying again");
            *outage = Outage { said: Some(now), last_line: Some(now) };
        }
    }

    pub(super) fn answered(&self, url: &str) {
        if self.failures.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.failures.store(0, Ordering::Relaxed);
        if let Some(since) = self.outage.lock().said.take() {
            let away = env::clock::now().saturating_duration_since(since);
            tracing::info!("the bucket {url} answers again, after {away:.1?}");
        }
    }
}
