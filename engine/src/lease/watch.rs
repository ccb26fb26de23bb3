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
    /// The newest renewal, and when it was first seen.
    seen: Option<(Renewal, Instant)>,
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
        let since = match &self.seen {
            Some((seen, since)) if seen.is_same(&found) => *since,
            _ => {
                self.seen = Some((found, now));
                now
            }
        };
        let passed = now.saturating_duration_since(since);
        if passed >= after { Verdict::Overdue } else { Verdict::Believed(after - passed) }
    }

    /// The newest renewal that was seen.
    pub(crate) fn seen(&self) -> Option<&Renewal> {
        self.seen.as_ref().map(|(seen, _)| seen)
    }
}
