//! What keeps moments readable: leases, named holds, and reads in progress; when which part of the history arrived; and
//! how much of it is kept.
//!
//! All times here are of the steady clock ([`env::clock::steady_now`]), so nothing ends early while the process runs,
//! however the wall clock is set. Stored times are later by as much as the wall clock is ahead of it, and after a
//! restart they count by the clock of then.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use utils::lsn::Lsn;

use super::manifest::{Hold, Kept, Limits};
use crate::config::RetentionPolicy;

/// Distance of the times at which the end of the history is noted.
const MARK_PERIOD: Duration = Duration::from_secs(600);
/// What is stored of a lease is that it ends this much later: it is seldom stored again when it is renewed, and after a
/// restart it holds at least as long as was promised.
const STORED_AHEAD: Duration = Duration::from_secs(24 * 3600);
/// Differences of the clocks count in steps of this length: what is stored does not change with each tick.
const AHEAD_STEP: u64 = 60;

/// A lease of an LSN.
#[derive(Clone, Copy, Debug)]
struct Lease {
    /// As promised.
    until: SystemTime,
    /// As manifests that are written from now on say.
    noted: SystemTime,
    /// As one says that is known to have been written.
    stored: SystemTime,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Keeping {
    leases: BTreeMap<Lsn, Lease>,
    named: BTreeMap<String, Lsn>,
    /// LSNs that are being read, and by how many.
    pinned: BTreeMap<Lsn, usize>,
    /// Ascending: when everything up to an LSN had arrived, in seconds since 1970.
    arrived: Vec<(u64, Lsn)>,
    /// How much is kept, where that is not what the server's settings say.
    limits: Limits,
    /// When the timeline was archived, in seconds since 1970.
    archived_at: Option<u64>,
}

/// Why an LSN stays readable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Keeper {
    Lease,
    Hold(String),
    Read,
}

/// Seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// By how many seconds stored times are later, as the wall clock is ahead of the steady one. If it is behind, by none:
/// whatever it is after a restart, nothing may look older than it is.
pub(crate) fn ahead(wall: SystemTime, steady: SystemTime) -> u64 {
    let seconds = wall.duration_since(steady).unwrap_or_default().as_secs();
    seconds / AHEAD_STEP * AHEAD_STEP
}

fn time(seconds: u64) -> SystemTime {
    // Nobody lives to see a later year.
    UNIX_EPOCH + Duration::from_secs(seconds.min(1 << 40))
}

impl Keeping {
    /// As a manifest has it, at a start at `now`.
    pub(crate) fn of(kept: &Kept, now: SystemTime) -> Self {
        let Kept { limits, archived_at, .. } = *kept;
        let mut keeping = Self { limits, archived_at, ..Self::default() };
        for (at, lsn) in &kept.arrived {
            // A clock was set back since: by now it has arrived.
            let at = seconds(now).min(*at);
            match keeping.arrived.last_mut() {
                Some(last) if last.0 == at => last.1 = *lsn,
                _ => keeping.arrived.push((at, *lsn)),
            }
        }
        for hold in kept.holds.iter().filter(|_| !fault::planted(fault::Bug::ForgetStoredHolds)) {
            match hold.until {
                Some(until) => {
                    let until = time(until);
                    keeping.leases.insert(hold.lsn, Lease { until, noted: until, stored: until });
                }
                None => drop(keeping.named.insert(hold.name.clone(), hold.lsn)),
            }
        }
        keeping
    }

    /// For the manifest. The wall clock is [`ahead`] by so many seconds.
    pub(crate) fn kept(&self, ahead: u64) -> Kept {
        let lease = |(lsn, lease): (&Lsn, &Lease)| Hold {
            lsn: *lsn,
            until: Some(seconds(lease.noted) + ahead),
            name: String::new(),
        };
        let hold = |(name, lsn): (&String, &Lsn)| Hold { lsn: *lsn, until: None, name: name.clone() };
        let holds = self.leases.iter().map(lease).chain(self.named.iter().map(hold)).collect();
        let arrived = self.arrived.iter().map(|(at, lsn)| (at + ahead, *lsn)).collect();
        Kept { holds, arrived, limits: self.limits, archived_at: self.archived_at }
    }

    /// Leases `lsn` for `length` from `now`; never shortens a lease. Returns until when and, if that must be stored
    /// before it is promised, what [`Keeping::note_stored`] is to be told after that.
    pub(crate) fn lease(&mut self, lsn: Lsn, now: SystemTime, length: Duration) -> (SystemTime, Option<SystemTime>) {
        self.leases.retain(|_, lease| lease.until > now);
        let lease = self.leases.entry(lsn).or_insert(Lease { until: now, noted: now, stored: now });
        lease.until = lease.until.max(now + length);
        if lease.noted < lease.until {
            lease.noted = lease.until + STORED_AHEAD;
        }
        let is_promised = lease.stored >= lease.until || fault::planted(fault::Bug::PromiseUnstoredLease);
        (lease.until, (!is_promised).then_some(lease.noted))
    }

    /// A manifest has been written that says that the lease of `lsn` lasts until `noted`.
    pub(crate) fn note_stored(&mut self, lsn: Lsn, noted: SystemTime) {
        if let Some(lease) = self.leases.get_mut(&lsn) {
            lease.stored = lease.stored.max(noted);
        }
    }

    /// Names `lsn`. False if the name is that of another LSN.
    pub(crate) fn hold(&mut self, name: &str, lsn: Lsn) -> bool {
        *self.named.entry(name.to_owned()).or_insert(lsn) == lsn
    }

    /// Removes a named hold. Returns the LSN that it was of.
    pub(crate) fn release(&mut self, name: &str) -> Option<Lsn> {
        self.named.remove(name)
    }

    /// Named holds, and the leases that have not ended, with their ends as a wall clock that shows `wall` will.
    pub(crate) fn holds(&self, now: SystemTime, wall: SystemTime) -> Vec<Hold> {
        let live = self.leases.iter().filter(|(_, lease)| lease.until > now);
        let until = |lease: &Lease| Some(seconds(wall + lease.until.duration_since(now).unwrap_or_default()));
        let lease = |(lsn, lease): (&Lsn, &Lease)| Hold { lsn: *lsn, until: until(lease), name: String::new() };
        let named = self.named.iter().map(|(name, lsn)| Hold { lsn: *lsn, until: None, name: name.clone() });
        live.map(lease).chain(named).collect()
    }

    /// Counts one more reader of `lsn`.
    pub(crate) fn pin(&mut self, lsn: Lsn) {
        *self.pinned.entry(lsn).or_default() += 1;
    }

    /// Counts one reader less.
    pub(crate) fn unpin(&mut self, lsn: Lsn) {
        if let Some(count) = self.pinned.get_mut(&lsn) {
            *count -= 1;
            if *count == 0 {
                self.pinned.remove(&lsn);
            }
        }
    }

    /// What stays readable, and why.
    pub(crate) fn points(&self, now: SystemTime) -> Vec<(Lsn, Keeper)> {
        let leases = self.leases.iter().filter(|(_, lease)| lease.until > now);
        let leases = leases.map(|(lsn, _)| (*lsn, Keeper::Lease));
        let named = self.named.iter().map(|(name, lsn)| (*lsn, Keeper::Hold(name.clone())));
        let pinned = self.pinned.keys().map(|lsn| (*lsn, Keeper::Read));
        leases.chain(named).chain(pinned).collect()
    }

    /// Notes that everything up to `lsn` has arrived by `now`, unless that was noted a short time ago.
    pub(crate) fn note_arrival(&mut self, now: SystemTime, lsn: Lsn, server: &RetentionPolicy) {
        let window = self.limits.over(server).pitr_interval;
        let (now, period) = (seconds(now), MARK_PERIOD.min(window / 16).as_secs());
        if self.arrived.last().is_some_and(|(at, known)| now < at.saturating_add(period) || lsn <= *known) {
            return;
        }
        self.arrived.push((now, lsn));
        let ended = now.saturating_sub(window.as_secs());
        let before = self.arrived.partition_point(|(at, _)| *at <= ended);
        self.arrived.drain(..before.saturating_sub(1));
    }

    /// The end of what had arrived a `window` before `now`, as far as is known.
    pub(crate) fn arrived_before(&self, now: SystemTime, window: Duration) -> Option<Lsn> {
        let ended = seconds(now).checked_sub(window.as_secs())?;
        let before = self.arrived.iter().take_while(|(at, _)| *at <= ended);
        before.last().map(|(_, lsn)| *lsn)
    }

    /// Below which LSN history is kept neither for its age nor because it is near `last`, the last record, as far as
    /// this timeline's limits and the server's policy go; and what keeps it from being later.
    pub(crate) fn window(&self, now: SystemTime, last: Lsn, server: &RetentionPolicy) -> (Lsn, &'static str) {
        if self.archived_at.is_some() {
            return (last, "archived");
        }
        let RetentionPolicy { pitr_interval, gc_horizon, history_max_bytes, .. } = self.limits.over(server);
        let arrived = self.arrived_before(now, pitr_interval).or(pitr_interval.is_zero().then_some(last));
        let before_end = |bytes: u64| Lsn(last.0.saturating_sub(bytes));
        let by_time = (arrived.unwrap_or(Lsn::INVALID), "pitr_interval");
        let by_wal = (before_end(gc_horizon), "gc_horizon");
        let kept = if by_wal.0 < by_time.0 { by_wal } else { by_time };
        // Not even a setting that was changed later makes it less than the horizon.
        let largest = before_end(history_max_bytes.max(gc_horizon));
        if history_max_bytes > 0 && largest > kept.0 { (largest, "history_max_bytes") } else { kept }
    }

    /// How much is kept, where that is not what the server's settings say.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Replaces these limits. Returns what they were.
    pub(crate) fn set_limits(&mut self, limits: Limits) -> Limits {
        std::mem::replace(&mut self.limits, limits)
    }

    /// When the timeline was archived, in seconds since 1970.
    pub(crate) fn archived_at(&self) -> Option<u64> {
        self.archived_at
    }

    /// Notes since when the timeline is archived, or that it is no more. Returns what was noted.
    pub(crate) fn set_archived(&mut self, since: Option<u64>) -> Option<u64> {
        std::mem::replace(&mut self.archived_at, since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    /// A policy that keeps what arrived within a time.
    fn policy(pitr_interval: Duration) -> RetentionPolicy {
        RetentionPolicy { pitr_interval, gc_horizon: 1, ..RetentionPolicy::ON_REQUEST }
    }

    #[test]
    fn leases_are_stored_seldom_and_outlive_a_restart() {
        let (mut keeping, start) = (Keeping::default(), time(1_000_000));
        let noted = start + HOUR + STORED_AHEAD;
        assert_eq!(keeping.lease(Lsn(8), start, HOUR), (start + HOUR, Some(noted)));
        assert_eq!(keeping.lease(Lsn(8), start, HOUR), (start + HOUR, Some(noted)), "it is not stored yet");
        keeping.note_stored(Lsn(8), noted);
        assert_eq!(keeping.lease(Lsn(8), start + HOUR / 2, HOUR), (start + HOUR / 2 * 3, None));
        assert_eq!(
            keeping.lease(Lsn(8), start + HOUR / 2, HOUR / 4),
            (start + HOUR / 2 * 3, None),
            "none is shortened"
        );
        assert_eq!(keeping.points(start + HOUR), [(Lsn(8), Keeper::Lease)]);
        assert_eq!(keeping.points(start + HOUR * 2), []);
        let again = Keeping::of(&keeping.kept(0), start);
        assert_eq!(again.points(start + HOUR * 2), [(Lsn(8), Keeper::Lease)], "what was promised is not known exactly");
        assert_eq!(again.points(start + HOUR * 30), []);
    }

    #[test]
    fn named_holds_last_until_they_are_deleted() {
        let (mut keeping, now) = (Keeping::default(), time(1_000_000));
        assert!(keeping.hold("release 7", Lsn(8)) && keeping.hold("release 7", Lsn(8)));
        assert!(!keeping.hold("release 7", Lsn(16)), "the name is that of another moment");
        keeping.pin(Lsn(24));
        keeping.pin(Lsn(24));
        keeping.unpin(Lsn(24));
        let hold = (Lsn(8), Keeper::Hold("release 7".to_owned()));
        assert_eq!(keeping.points(now), [hold.clone(), (Lsn(24), Keeper::Read)]);
        let mut again = Keeping::of(&keeping.kept(0), now);
        assert_eq!(again.points(now + HOUR * 10_000), [hold]);
        assert!(again.release("release 7").is_some() && again.release("release 7").is_none());
        assert_eq!(again.kept(0), Kept::default());
    }

    #[test]
    fn the_window_ends_at_what_had_surely_arrived() {
        let (mut keeping, start, window) = (Keeping::default(), time(1_000_000), HOUR * 16);
        assert_eq!(keeping.arrived_before(start, window), None);
        for hours in 0..40u32 {
            keeping.note_arrival(start + HOUR * hours, Lsn(u64::from(hours) * 100 + 100), &policy(window));
        }
        assert_eq!(keeping.arrived_before(start + HOUR * 39, window), Some(Lsn(2400)));
        assert_eq!(keeping.arrived_before(start + HOUR * 39 + HOUR / 2, window), Some(Lsn(2400)));
        assert!(keeping.arrived.len() < 20, "what is before the window is forgotten");
        let before = keeping.arrived.len();
        keeping.note_arrival(start + HOUR * 10, Lsn(5000), &policy(window));
        assert_eq!(keeping.arrived.len(), before, "a clock that was set back adds nothing");
        assert_eq!(keeping.arrived_before(start, window), None);
    }
    /// Hours of a history in which 100 bytes arrive each, from 100 at `start`.
    fn history(start: SystemTime, hours: u32, server: &RetentionPolicy) -> Keeping {
        let mut keeping = Keeping::default();
        for hour in 0..hours {
            keeping.note_arrival(start + HOUR * hour, Lsn(u64::from(hour) * 100 + 100), server);
        }
        keeping
    }

    #[test]
    fn what_holds_the_window_back_is_named() {
        let start = time(1_000_000);
        let (now, last) = (start + HOUR * 39, Lsn(4000));
        let with = |gc_horizon, history_max_bytes| {
            let server = RetentionPolicy { gc_horizon, history_max_bytes, ..policy(HOUR * 16) };
            history(start, 40, &server).window(now, last, &server)
        };
        assert_eq!(with(100, 0), (Lsn(2400), "pitr_interval"));
        assert_eq!(with(3000, 0), (Lsn(1000), "gc_horizon"));
        assert_eq!(with(100, 1000), (Lsn(3000), "history_max_bytes"));
        assert_eq!(with(100, 1599), (Lsn(2401), "history_max_bytes"));
        assert_eq!(with(100, 1600), (Lsn(2400), "pitr_interval"), "it does not keep more");
        assert_eq!(with(3000, 3500), (Lsn(1000), "gc_horizon"));
        assert_eq!(with(3000, 10), (Lsn(1000), "gc_horizon"), "the horizon wins");
        assert_eq!(with(u64::MAX, u64::MAX), (Lsn(0), "gc_horizon"));
        let server = RetentionPolicy { gc_horizon: 100, history_max_bytes: 1000, ..policy(HOUR * 16) };
        let unknown = Keeping::default();
        assert_eq!(unknown.window(now, last, &server), (Lsn(3000), "history_max_bytes"), "whenever it arrived");
        assert_eq!(unknown.window(now, Lsn(500), &server), (Lsn(0), "pitr_interval"));
    }

    #[test]
    fn a_timelines_own_limits_go_before_the_servers() {
        let start = time(1_000_000);
        let (now, last) = (start + HOUR * 39, Lsn(4000));
        let server = RetentionPolicy { gc_horizon: 100, ..policy(HOUR * 16) };
        let mut keeping = history(start, 40, &server);
        let shorter = Limits { pitr_interval: Some(2 * 3600), ..Limits::default() };
        assert_eq!(keeping.set_limits(shorter), Limits::default());
        assert_eq!(keeping.window(now, last, &server), (Lsn(3800), "pitr_interval"));
        keeping.set_limits(Limits { gc_horizon: Some(500), ..shorter });
        assert_eq!(keeping.window(now, last, &server), (Lsn(3500), "gc_horizon"));
        let again = Keeping::of(&keeping.kept(0), now);
        assert_eq!(again.window(now, last, &server), (Lsn(3500), "gc_horizon"), "they are stored");
        keeping.set_limits(Limits { history_max_bytes: Some(200), ..Limits::default() });
        assert_eq!(keeping.window(now, last, &server), (Lsn(3800), "history_max_bytes"));
        assert_eq!(keeping.set_limits(Limits::default()).history_max_bytes, Some(200));
        assert_eq!(keeping.window(now, last, &server), (Lsn(2400), "pitr_interval"), "as the server's settings say");
        // What was noted of the time before a longer window is gone, so it begins at what is still known.
        keeping.set_limits(Limits { pitr_interval: Some(100 * 3600), ..Limits::default() });
        assert_eq!(keeping.window(now, last, &server), (Lsn(0), "pitr_interval"));
    }

    #[test]
    fn of_an_archived_timeline_only_the_end_is_kept() {
        let start = time(1_000_000);
        let server = RetentionPolicy { gc_horizon: 1000, ..policy(HOUR * 16) };
        let mut keeping = history(start, 40, &server);
        assert!(keeping.hold("a moment", Lsn(2500)) && keeping.set_archived(Some(1_000_000)).is_none());
        assert_eq!(keeping.window(start + HOUR * 39, Lsn(4000), &server).0, Lsn(4000));
        let mut again = Keeping::of(&keeping.kept(0), start + HOUR * 39);
        assert_eq!(again.archived_at(), Some(1_000_000));
        assert_eq!(again.points(start), [(Lsn(2500), Keeper::Hold("a moment".to_owned()))], "holds win");
        assert_eq!(again.set_archived(None), Some(1_000_000));
        assert_eq!(again.window(start + HOUR * 39, Lsn(4000), &server), (Lsn(2400), "pitr_interval"));
    }

    #[test]
    fn times_are_stored_as_the_wall_clock_shows_them_but_never_earlier() {
        let start = time(1_000_000);
        let server = policy(HOUR * 16);
        let mut keeping = history(start, 40, &server);
        let now = start + HOUR * 39;
        keeping.lease(Lsn(3000), now, HOUR);
        assert_eq!(ahead(now - DAY, now), 0, "a clock that was set back");
        assert_eq!(ahead(now + Duration::from_secs(59), now), 0, "no difference that counts");
        assert_eq!(ahead(now + DAY, now), 24 * 3600);
        // The clock was a day behind at the start of the process, and was corrected.
        let again = Keeping::of(&keeping.kept(ahead(now + DAY, now)), now + DAY);
        assert_eq!(again.window(now + DAY, Lsn(4000), &server), keeping.window(now, Lsn(4000), &server));
        assert_eq!(again.points(now + DAY * 2), [(Lsn(3000), Keeper::Lease)]);
        // It was set back for good: what has arrived has, and is as old as it is from then on.
        let mut again = Keeping::of(&keeping.kept(0), now - DAY);
        assert_eq!(again.window(now - DAY, Lsn(4000), &server), (Lsn(0), "pitr_interval"));
        again.note_arrival(now - DAY + HOUR, Lsn(4100), &server);
        assert_eq!(again.window(now - DAY + HOUR * 16, Lsn(4100), &server), (Lsn(4000), "pitr_interval"));
        assert_eq!(again.window(now - DAY + HOUR * 17, Lsn(4100), &server), (Lsn(4099), "gc_horizon"));
    }
}
