//! Logs lasting trouble: when it begins, that it continues, and when it ends.

use std::io;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Minimum interval between two log lines about the same trouble.
const PACE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct Outage {
    source: Mutex<Option<Trouble>>,
    disk: Mutex<Option<Trouble>>,
    /// Separate from `disk`: space runs short before the disk is full, and that report must not suppress the other.
    room: Mutex<Option<Trouble>>,
}

struct Trouble {
    since: Instant,
    said: Instant,
}

impl Outage {
    /// The source did not answer.
    pub(crate) fn goes_on(&self, reason: &str) {
        if let Some(lasting) = due(&self.source) {
            tracing::warn!("the source does not answer, for {lasting:.1?}; reads wait for it: {reason}");
        }
    }

    /// The source answered.
    pub(crate) fn over(&self) {
        if let Some(trouble) = self.source.lock().take() {
            tracing::info!("the source answers again, after {:.1?}", env::clock::now() - trouble.since);
        }
    }

    /// A write found no room.
    pub(crate) fn disk_full(&self, error: &io::Error) {
        if due(&self.disk).is_some() {
            tracing::error!("the disk is full; writes wait for room: {error}");
        }
    }

    /// Fetched blocks could not be kept; they will be fetched again.
    pub(crate) fn not_kept(&self, error: &io::Error) {
        if due(&self.room).is_some() {
            tracing::warn!("fetched blocks are not kept: {error}");
        }
    }
}

/// How long the trouble has lasted, if it is time to log it.
fn due(trouble: &Mutex<Option<Trouble>>) -> Option<Duration> {
    let now = env::clock::now();
    let mut trouble = trouble.lock();
    match trouble.as_mut() {
        Some(trouble) if now - trouble.said < PACE => None,
        Some(trouble) => {
            trouble.said = now;
            Some(now - trouble.since)
        }
        None => {
            *trouble = Some(Trouble { since: now, said: now });
            Some(Duration::ZERO)
        }
    }
}
