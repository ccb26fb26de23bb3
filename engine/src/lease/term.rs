//! How long an owner's lease holds, by its own clock.

use std::time::{Duration, Instant};

/// An owner stops so much earlier than a standby takes over: as percentage of the time after which that does.
const HOLDS_PERCENT: u32 = 80;

/// The term of a lease.
#[derive(Clone, Debug)]
pub struct Term {
    holds: Duration,
    /// When the last renewal was asked for that took effect.
    renewed: Option<Instant>,
}

impl Term {
    /// A lease that was not renewed yet, of a server whose standbys take over after `takeover_after`.
    pub fn new(takeover_after: Duration) -> Self {
        Self { holds: takeover_after * HOLDS_PERCENT / 100, renewed: None }
    }

    /// A renewal took effect. It was asked for at `asked`: a standby cannot have seen it before that.
    pub fn renewed(&mut self, asked: Instant) {
        self.renewed = self.renewed.max(Some(asked));
    }

    /// For how long it holds, if it does.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let end = self.renewed? + self.holds;
        (now < end).then(|| end - now)
    }

    /// For how long it has not held, if it ever did.
    pub fn ended_for(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.renewed? + self.holds))
    }
}
