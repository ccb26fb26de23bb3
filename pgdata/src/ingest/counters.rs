//! The checkpoint that a server would write now: transaction ids, OIDs, multixacts and their limits.
//!
//! `next_xid` is stored as an upper bound, rounded up to a multiple of [`XID_STEP`], so that not every transaction
//! rewrites it; `docs/decisions/0010-next-xid.md` explains why that is safe. Checkpoint records make it exact again.

use postgres_formats::checkpoint::CheckPoint;

/// Granularity of the stored next transaction id.
const XID_STEP: u64 = 1024;
/// Smaller ids are special (`FirstNormalTransactionId`).
const FIRST_NORMAL_XID: u32 = 3;
/// `FirstMultiXactId`
const FIRST_MULTI: u32 = 1;

/// Counters of a cluster, as in its checkpoints.
#[derive(Clone, Debug)]
pub(super) struct Counters {
    checkpoint: CheckPoint,
    /// The checkpoint as last stored.
    stored: CheckPoint,
    tracks_commit_ts: bool,
}

impl Counters {
    pub(super) fn new(checkpoint: CheckPoint, tracks_commit_ts: bool) -> Self {
        Self { checkpoint, stored: checkpoint, tracks_commit_ts }
    }

    /// The checkpoint, if it changed since the last call.
    pub(super) fn take_changed(&mut self) -> Option<&CheckPoint> {
        if self.checkpoint == self.stored {
            return None;
        }
        self.stored = self.checkpoint;
        Some(&self.stored)
    }

    pub(super) fn checkpoint(&self) -> &CheckPoint {
        &self.checkpoint
    }

    /// Transaction `xid` exists, so the next one comes after it.
    pub(super) fn see_xid(&mut self, xid: u32) {
        let next = self.checkpoint.next_xid;
        if xid < FIRST_NORMAL_XID || !is_at_or_after(xid, next as u32) {
            return;
        }
        let exact = next.saturating_add(u64::from(xid.wrapping_sub(next as u32))).saturating_add(1);
        let rounded = exact.checked_next_multiple_of(XID_STEP).unwrap_or(exact);
        // The first ids of an epoch are never assigned to transactions.
        self.checkpoint.next_xid = if (rounded as u32) < FIRST_NORMAL_XID { rounded | 3 } else { rounded };
        if self.tracks_commit_ts && self.checkpoint.newest_commit_ts_xid != 0 {
            self.checkpoint.newest_commit_ts_xid = last_before(self.checkpoint.next_xid as u32);
        }
    }

    /// A shutdown checkpoint: its counters are exact.
    pub(super) fn shut_down(&mut self, checkpoint: &CheckPoint) {
        self.checkpoint = *checkpoint;
    }

    /// An online checkpoint: its counters are from some time before the record.
    pub(super) fn online(&mut self, checkpoint: &CheckPoint) {
        let now = self.checkpoint;
        self.checkpoint = CheckPoint {
            next_xid: now.next_xid.max(checkpoint.next_xid),
            next_multi: later(now.next_multi, checkpoint.next_multi),
            next_multi_offset: later(now.next_multi_offset, checkpoint.next_multi_offset),
            oldest_xid: later(now.oldest_xid, checkpoint.oldest_xid),
            oldest_multi: later(now.oldest_multi, checkpoint.oldest_multi),
            newest_commit_ts_xid: match (now.newest_commit_ts_xid, checkpoint.newest_commit_ts_xid) {
                (0, new) | (_, new @ 0) => new,
                (old, new) => later(old, new),
            },
            ..*checkpoint
        };
        if self.checkpoint.oldest_xid != checkpoint.oldest_xid {
            self.checkpoint.oldest_xid_db = now.oldest_xid_db;
        }
        if self.checkpoint.oldest_multi != checkpoint.oldest_multi {
            self.checkpoint.oldest_multi_db = now.oldest_multi_db;
        }
    }

    /// Oldest transaction that was running.
    pub(super) fn running(&mut self, oldest: u32) {
        self.checkpoint.oldest_active_xid = oldest;
    }

    pub(super) fn next_oid(&mut self, oid: u32) {
        self.checkpoint.next_oid = oid;
    }

    pub(super) fn full_page_writes(&mut self, on: bool) {
        self.checkpoint.full_page_writes = on;
    }

    /// The server switched to another WAL timeline.
    pub(super) fn timeline(&mut self, timeline: u32, previous: u32) {
        (self.checkpoint.timeline, self.checkpoint.previous_timeline) = (timeline, previous);
    }

    pub(super) fn wal_level(&mut self, level: i32) {
        self.checkpoint.wal_level = level;
    }

    /// A multixact was created, with its members from `offset` on.
    pub(super) fn create_multi(&mut self, id: u32, offset: u32, members: u32) {
        let next = id.wrapping_add(1).max(FIRST_MULTI);
        self.checkpoint.next_multi = later(self.checkpoint.next_multi, next);
        let next_offset = offset.wrapping_add(members);
        self.checkpoint.next_multi_offset = later(self.checkpoint.next_multi_offset, next_offset);
    }

    pub(super) fn oldest_multi(&mut self, id: u32, db: u32) {
        (self.checkpoint.oldest_multi, self.checkpoint.oldest_multi_db) = (id, db);
    }

    pub(super) fn oldest_xid(&mut self, xid: u32, db: u32) {
        (self.checkpoint.oldest_xid, self.checkpoint.oldest_xid_db) = (xid, db);
    }

    pub(super) fn oldest_commit_ts(&mut self, xid: u32) {
        if self.checkpoint.oldest_commit_ts_xid != 0 {
            self.checkpoint.oldest_commit_ts_xid = later(self.checkpoint.oldest_commit_ts_xid, xid);
        }
    }

    /// Turns commit timestamps on or off. Returns whether that is a change.
    pub(super) fn track_commit_ts(&mut self, on: bool) -> bool {
        let changed = self.tracks_commit_ts != on;
        self.tracks_commit_ts = on;
        let next = self.checkpoint.next_xid as u32;
        if !on {
            (self.checkpoint.oldest_commit_ts_xid, self.checkpoint.newest_commit_ts_xid) = (0, 0);
        } else if changed && self.checkpoint.oldest_commit_ts_xid == 0 {
            (self.checkpoint.oldest_commit_ts_xid, self.checkpoint.newest_commit_ts_xid) = (next, next);
        }
        changed
    }

    pub(super) fn tracks_commit_ts(&self) -> bool {
        self.tracks_commit_ts
    }
}

/// Whether `a` is not before `b`, both on a circle of 2^32.
fn is_at_or_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) >= 0
}

fn later(a: u32, b: u32) -> u32 {
    if is_at_or_after(a, b) { a } else { b }
}

/// The transaction id before `next`.
fn last_before(next: u32) -> u32 {
    if next <= FIRST_NORMAL_XID { u32::MAX } else { next - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(next_xid: u64) -> Counters {
        Counters::new(CheckPoint { next_xid, ..CheckPoint::default() }, false)
    }

    #[test]
    fn next_xid_is_never_too_low_and_rarely_changes() {
        let mut counters = counters(740);
        let mut changes = 0;
        for xid in 740..5000 {
            let before = counters.checkpoint().next_xid;
            counters.see_xid(xid);
            changes += u32::from(counters.checkpoint().next_xid != before);
            let next = counters.checkpoint().next_xid;
            assert!(next > u64::from(xid) && next <= u64::from(xid) + XID_STEP);
            counters.see_xid(xid / 2);
            assert_eq!(counters.checkpoint().next_xid, next);
        }
        assert_eq!(changes, 5);
    }

    #[test]
    fn next_xid_moves_to_the_next_epoch() {
        let mut counters = counters(0x1_FFFF_FC00);
        counters.see_xid(u32::MAX - 5);
        assert_eq!(counters.checkpoint().next_xid, 0x2_0000_0003);
        counters.see_xid(u32::MAX);
        assert_eq!(counters.checkpoint().next_xid, 0x2_0000_0003);
        counters.see_xid(3);
        assert_eq!(counters.checkpoint().next_xid, 0x2_0000_0400);
        counters.see_xid(2);
        assert_eq!(counters.checkpoint().next_xid, 0x2_0000_0400);
    }

    #[test]
    fn online_checkpoints_do_not_turn_counters_back() {
        let mut counters = counters(5000);
        counters.create_multi(10, 100, 3);
        let old = CheckPoint { next_xid: 4000, next_multi: 7, next_oid: 9, ..CheckPoint::default() };
        counters.online(&old);
        let now = counters.checkpoint();
        assert_eq!((now.next_xid, now.next_multi, now.next_multi_offset, now.next_oid), (5000, 11, 103, 9));
        counters.shut_down(&CheckPoint { next_xid: 4001, ..old });
        assert_eq!(counters.checkpoint().next_xid, 4001);
    }
}
