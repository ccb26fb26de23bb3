//! Whether a timeline is far behind the server that it follows. Images of its end would then be old within moments, and
//! nobody waits for pages there: few are made until it has caught up.

use std::sync::atomic::{AtomicBool, Ordering};

use utils::lsn::Lsn;

/// A timeline that is more bytes of WAL behind than this is catching up,
const FAR_BEHIND: u64 = 256 << 20;
/// until it is not even so many behind.
const CAUGHT_UP: u64 = 32 << 20;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct CatchingUp(AtomicBool);

impl CatchingUp {
    /// Notes that the last record ends at `last`, and the server's WAL at `end`; 0 if there is no server.
    pub(crate) fn note(&self, last: Lsn, end: Lsn) {
        let limit = if self.is_going_on() { CAUGHT_UP } else { FAR_BEHIND };
        self.0.store(end.0.saturating_sub(last.0) > limit, Ordering::Relaxed);
    }

    /// Whether it is.
    pub(crate) fn is_going_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_fallen_far_behind_catches_up_to_the_end() {
        let catching_up = CatchingUp::default();
        let at = |behind: u64| {
            catching_up.note(Lsn(1000), Lsn(1000 + behind));
            catching_up.is_going_on()
        };
        assert!(!at(CAUGHT_UP + 1) && !at(FAR_BEHIND), "a live server is a little ahead");
        assert!(at(FAR_BEHIND + 1) && at(CAUGHT_UP + 1));
        assert!(!at(CAUGHT_UP) && !at(FAR_BEHIND));
        assert!(at(1 << 40));
        catching_up.note(Lsn(1000), Lsn::INVALID);
        assert!(!catching_up.is_going_on(), "the server is gone");
    }
}
