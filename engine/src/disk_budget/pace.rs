//! The pace of intake while room is running out.

use std::time::Duration;

/// Bytes per second when half of the slow zone (the room below `slow_below`) is left.
const RATE_AT_HALF: f64 = (64 << 20) as f64;
/// Shorter delays are accumulated first: timers are not that precise.
pub(super) const SHORTEST: Duration = Duration::from_millis(2);
/// Maximum delay of one batch.
pub(super) const LONGEST: Duration = Duration::from_millis(500);

/// The current room, and the room below which intake is slowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) room: i64,
    pub(super) slow_below: i64,
}

impl Pace {
    /// How long taking in `bytes` should take: zero at the upper end of the slow zone, growing without bound as room
    /// vanishes, but at most [`LONGEST`].
    pub(super) fn delay(self, bytes: u64) -> Duration {
        let left = self.room.max(0) as f64 / self.slow_below.max(1) as f64;
        if left >= 1.0 {
            return Duration::ZERO;
        }
        let debt = (1.0 - left) / left.max(1e-6);
        Duration::try_from_secs_f64(bytes as f64 * debt / RATE_AT_HALF).map_or(LONGEST, |delay| delay.min(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_room_means_more_time() {
        let delay = |room| Pace { room, slow_below: 100 << 20 }.delay(1 << 20);
        assert_eq!(delay(100 << 20), Duration::ZERO);
        assert_eq!(delay(i64::MAX), Duration::ZERO);
        let delays: Vec<Duration> = (0..=100).map(|mib| delay(mib << 20)).collect();
        assert!(delays.windows(2).all(|pair| pair[0] >= pair[1]), "{delays:?}");
        assert_eq!(delays[50], Duration::from_secs_f64(1.0 / 64.0));
        assert_eq!((delays[0], delay(-5)), (LONGEST, LONGEST));
    }
}
