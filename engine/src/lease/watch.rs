//! What a standby knows of an owner's lease, by its own clock.

use std::time::{Duration, Instant};

use super::objects::Renewal;

/// What follows from a look at a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is none: nobody knows whether the owner is there, and nobody takes over.
    None,
    /// It is still believed, for so long unless it is renewed.
    Believed(Duration),
    /// It was not renewed for too long.
    Overdue,
}

/// An owner's lease, as seen by a standby.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// The newest renewal, and when it was first seen; later by as long as the bucket has not answered since.
    seen: Option<(Renewal, Instant)>,
    /// When the bucket answered last.
    answered_at: Option<Instant>,
    /// It has not answered the last question.
    is_away: bool,
}

impl Watch {
    /// The bucket has answered at `now` what the lease is. `own` is after how long this standby would take over; the
    /// owner's word counts if that is longer. That the renewal is an old one proves that there was none in between,
    /// however long nobody looked.
    pub fn answered(&mut self, found: Option<Renewal>, now: Instant, own: Duration) -> Verdict {
        let Some(found) = found else {
            self.seen = None;
            return Verdict::None;
        };
        let mut after = own.max(Duration::from_millis(found.takeover_after_ms));
        if fault::planted(fault::Bug::TakeTooEarly) {
            after /= 2;
        }
        let away = self.answered_at.filter(|_| self.is_away).map_or(Duration::ZERO, |at| now - at);
        (self.answered_at, self.is_away) = (Some(now), false);
        let since = match &self.seen {
            Some((seen, since)) if seen.is_same(&found) => *since + away,
            _ => now,
        };
        self.seen = Some((found, since));
        let passed = now.saturating_duration_since(since);
        if passed >= after { Verdict::Overdue } else { Verdict::Believed(after - passed) }
    }

    /// The bucket has not answered. That time does not count: it may be away for the owner as well, who would otherwise
    /// lose its tenants to whoever reaches the bucket first when it is back.
    pub fn failed(&mut self) {
        self.is_away = true;
    }

    /// The newest renewal that was seen.
    pub(crate) fn seen(&self) -> Option<&Renewal> {
        self.seen.as_ref().map(|(seen, _)| seen)
    }
}
