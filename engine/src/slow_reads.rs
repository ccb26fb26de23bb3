//! How much is said about slow reads: where many are slow, a line each would hide the others. The last of those of
//! which something was said are kept.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use pageserver_api::key::Key;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;
use utils::lsn::Lsn;

/// Distance of lines.
const LINE_PERIOD: Duration = Duration::from_secs(1);
/// Number of slow reads that are kept, of all timelines together.
const KEPT: usize = 256;

/// A read that was slow, and where its time went.
#[derive(Clone, Debug)]
pub struct SlowRead {
    /// Its tenant.
    pub tenant_shard_id: TenantShardId,
    /// Its timeline.
    pub timeline_id: TimelineId,
    /// When it ended.
    pub ended: SystemTime,
    /// How long it took.
    pub took: Duration,
    /// Of that: waits for WAL, for a turn, for memory.
    pub wait: Duration,
    /// Of that: the search of indexes.
    pub plan: Duration,
    /// Of that: reads of the disk and requests to the bucket.
    pub fetch: Duration,
    /// Of that: rebuilding pages from what was found.
    pub redo: Duration,
    /// The first of its keys.
    pub first_key: Key,
    /// How many keys were read.
    pub keys: usize,
    /// What was read was as of this LSN.
    pub lsn: Lsn,
    /// Layers searched.
    pub layers: u32,
    /// Key filters asked.
    pub filters: u32,
    /// Records found.
    pub records: usize,
    /// Bytes of layers read from the local disk.
    pub local_bytes: u64,
    /// Requests to the bucket.
    pub requests: u64,
    /// Bytes that these fetched.
    pub fetched_bytes: u64,
    /// The layers visited, in words.
    pub visited: String,
    /// How many other slow reads, of any timeline, nothing was said of since the one before.
    pub untold: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct SlowReads {
    /// Reads about which nothing was said since the last line.
    untold: AtomicU64,
    last_line: parking_lot::Mutex<Option<Instant>>,
    kept: parking_lot::Mutex<VecDeque<SlowRead>>,
}

impl SlowReads {
    /// Whether there may be a line now; then how many reads had none before.
    pub(crate) fn may_tell(&self) -> Option<u64> {
        let now = env::clock::now();
        let mut last = self.last_line.lock();
        if last.is_some_and(|last| now.saturating_duration_since(last) < LINE_PERIOD) {
            self.untold.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        *last = Some(now);
        Some(self.untold.swap(0, Ordering::Relaxed))
    }

    /// Keeps one of which something was said, in place of the oldest.
    pub(crate) fn keep(&self, read: SlowRead) {
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(read);
    }

    /// Those of a timeline that are kept, the newest first.
    pub(crate) fn of(&self, tenant: TenantShardId, timeline: TimelineId) -> Vec<SlowRead> {
        let kept = self.kept.lock();
        let own = kept.iter().rev().filter(|read| read.tenant_shard_id == tenant && read.timeline_id == timeline);
        own.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_told_is_counted() {
        let reads = SlowReads::default();
        assert_eq!([reads.may_tell(), reads.may_tell(), reads.may_tell()], [Some(0), None, None]);
        let before = env::clock::now().checked_sub(LINE_PERIOD);
        *reads.last_line.lock() = before;
        assert_eq!([reads.may_tell(), reads.may_tell()], [Some(2), None]);
    }

    #[test]
    fn the_last_slow_reads_of_each_timeline_are_kept() {
        let reads = SlowReads::default();
        let tenant = TenantShardId::unsharded(utils::id::TenantId::generate());
        let (one, other) = (TimelineId::generate(), TimelineId::generate());
        for number in 0..KEPT + 4 {
            reads.keep(SlowRead {
                tenant_shard_id: tenant,
                timeline_id: if number % 2 == 0 { one } else { other },
                ended: env::clock::system_now(),
                took: Duration::from_secs(1),
                wait: Duration::ZERO,
                plan: Duration::ZERO,
                fetch: Duration::ZERO,
                redo: Duration::ZERO,
                first_key: Key::MIN,
                keys: number,
                lsn: Lsn(8),
                layers: 0,
                filters: 0,
                records: 0,
                local_bytes: 0,
                requests: 0,
                fetched_bytes: 0,
                visited: String::new(),
                untold: 0,
            });
        }
        let of = |timeline| reads.of(tenant, timeline).iter().map(|read| read.keys).collect::<Vec<_>>();
        let (newest, oldest) = (KEPT + 2, 4);
        assert_eq!((of(one).first(), of(one).last(), of(one).len()), (Some(&newest), Some(&oldest), KEPT / 2));
        assert_eq!(of(other).first(), Some(&(KEPT + 3)));
        assert_eq!(of(TimelineId::generate()), Vec::<usize>::new());
    }
}
