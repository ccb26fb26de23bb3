//! What a timeline has done since it was opened, and what it is doing: for people and metrics. Nothing depends on it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use utils::lsn::Lsn;

use metrics::{CompactionJob, LabelEnum};

/// Jobs that run one after the other; those of different lanes run side by side: reads and ingest suffer most from L0
/// layers, which must not wait for long jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Sorts of L0 layers.
    Sorts,
    /// All other jobs.
    Others,
}

/// What compaction is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Nothing.
    #[default]
    Nothing,
    /// A job waits for that of another timeline.
    Turn,
    /// A job waits for room on the disk.
    Room,
    /// A job runs.
    Job(CompactionJob),
}

/// An LSN at or below the cutoff that is kept, and what for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pinned {
    /// The LSN.
    pub lsn: Lsn,
    /// What keeps it: the cutoff, a branch, a lease, a hold, a read.
    pub why: String,
    /// Number of layers that are there for this LSN alone.
    pub layers: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// What was found when it was last looked for history that nothing keeps.
#[derive(Clone, Debug)]
pub struct LastLook {
    /// When that was.
    pub at: Instant,
    /// Below this LSN only single ones are kept.
    pub cutoff: Lsn,
    /// What keeps the cutoff from being later.
    pub bound_by: String,
    /// What is kept at the cutoff and below it.
    pub points: Vec<Pinned>,
    /// Files of layers that LSNs below the cutoff need.
    pub(crate) needed: HashSet<u64>,
}

/// What the sorted layers are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SortedSums {
    /// Largest number of delta layers above an image of the same keys.
    pub(crate) height: usize,
    /// Bytes that due merges would read.
    pub(crate) merge: u64,
    /// Bytes of which images are due.
    pub(crate) image: u64,
    /// Bytes of which images at the cutoff are due.
    pub(crate) fold: u64,
    /// Bytes of the newest images.
    pub(crate) images: u64,
}

/// What was found out last, and of what: whoever scrapes asks again and again.
#[derive(Debug)]
pub(crate) struct Remembered<K, V> {
    last: Mutex<Option<(K, V)>>,
}

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self { last: Mutex::new(None) }
    }
}

impl<K: Copy + PartialEq, V: Copy> Remembered<K, V> {
    /// What is true of `key`, which `find` finds out.
    pub(crate) fn get(&self, key: K, find: impl FnOnce() -> V) -> V {
        if let Some((_, value)) = self.last.lock().filter(|(of, _)| *of == key) {
            return value;
        }
        let value = find();
        *self.last.lock() = Some((key, value));
        value
    }
}

/// Of what [`SortedSums`] are: the edition, whether nothing is due in it, how many keys and files are special.
pub(crate) type SortedKey = (u64, bool, usize, usize);
/// Of what it was found out how much history waits: the edition, the cutoff, and [`Looks::count`].
type HistoryKey = (u64, Lsn, u64);

/// The last look for history that nothing keeps.
#[derive(Debug, Default)]
struct Looks {
    /// How often it has changed.
    count: u64,
    last: Option<LastLook>,
}

/// Objects of layers that were replaced or removed: they go after the index part of this submission.
#[derive(Clone, Copy, Debug)]
struct Outdated {
    submission: u64,
    bytes: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Bytes of values taken in.
    taken_in: AtomicU64,
    /// Bytes of layers that flushes wrote.
    flushed: AtomicU64,
    /// By lane.
    doing: Mutex<[Doing; 2]>,
    /// When a job of each kind last ended well.
    ended: Mutex<[Option<Instant>; CompactionJob::ALL.len()]>,
    /// The last job failed for lack of room.
    lacks_room: AtomicBool,
    /// One more than the edition in which nothing was due.
    looked_at: AtomicU64,
    looks: Mutex<Looks>,
    /// When history was last removed.
    removed: Mutex<Option<Instant>>,
    outdated: Mutex<Vec<Outdated>>,
    pub(crate) sorted: Remembered<SortedKey, SortedSums>,
    /// Bytes of history that only wait to be removed.
    history: Remembered<HistoryKey, u64>,
}

/// Says what compaction is doing, and at its end that it does nothing.
pub(crate) struct Busy<'a> {
    work: &'a Work,
    lane: Lane,
}

impl Busy<'_> {
    /// Says what it is doing now.
    pub(crate) fn now(&self, doing: Doing) {
        let [sorts, others] = &mut *self.work.doing.lock();
        *match self.lane {
            Lane::Sorts => sorts,
            Lane::Others => others,
        } = doing;
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.now(Doing::Nothing);
    }
}

impl Work {
    /// Counts values taken in.
    pub(crate) fn note_taken_in(&self, bytes: u64) {
        self.taken_in.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a layer that a flush wrote.
    pub(crate) fn note_flushed(&self, bytes: u64) {
        self.flushed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of values taken in, and of layers that flushes wrote.
    pub(crate) fn volumes(&self) -> (u64, u64) {
        (self.taken_in.load(Ordering::Relaxed), self.flushed.load(Ordering::Relaxed))
    }

    /// Begins jobs of `lane`, of which one at a time runs.
    pub(crate) fn begin(&self, lane: Lane) -> Busy<'_> {
        Busy { work: self, lane }
    }

    /// What compaction is doing: a job rather than waiting.
    pub(crate) fn doing(&self) -> Doing {
        let doing = *self.doing.lock();
        let find = |is: fn(&Doing) -> bool| doing.into_iter().find(is);
        let busy = find(|doing| matches!(doing, Doing::Job(_))).or_else(|| find(|doing| *doing != Doing::Nothing));
        busy.unwrap_or_default()
    }

    /// Notes that a job has ended well.
    pub(crate) fn note_job(&self, kind: CompactionJob) {
        if let Some(ended) = self.ended.lock().get_mut(kind.number()) {
            *ended = Some(env::clock::now());
        }
    }

    /// How long ago a job of this kind last ended well.
    pub(crate) fn since_job(&self, kind: CompactionJob) -> Option<Duration> {
        ago(self.ended.lock().get(kind.number()).copied().flatten())
    }

    /// Notes why a job failed: for lack of room, or not.
    pub(crate) fn note_failure(&self, lacks_room: bool) {
        self.lacks_room.store(lacks_room, Ordering::Relaxed);
    }

    /// Whether the last job that failed did so for lack of room.
    pub(crate) fn lacks_room(&self) -> bool {
        self.lacks_room.load(Ordering::Relaxed)
    }

    /// Notes that nothing but L0 layers could be due in `edition`.
    pub(crate) fn note_nothing_due(&self, edition: u64) {
        self.looked_at.store(edition + 1, Ordering::Relaxed);
    }

    /// Whether that was found out of `edition`.
    pub(crate) fn nothing_due(&self, edition: u64) -> bool {
        self.looked_at.load(Ordering::Relaxed) == edition + 1
    }

    /// Notes what was found when it was looked for history that nothing keeps, and whether some was removed.
    pub(crate) fn note_look(&self, look: LastLook, has_removed: bool) {
        if has_removed {
            *self.removed.lock() = Some(look.at);
        }
        let mut looks = self.looks.lock();
        *looks = Looks { count: looks.count + 1, last: Some(look) };
    }

    /// Notes that `added` are in the place of `removed`: what was needed of these is in those.
    pub(crate) fn note_replaced(&self, removed: &[u64], added: &[u64]) {
        let mut looks = self.looks.lock();
        let Some(last) = &mut looks.last else { return };
        if removed.iter().any(|file| last.needed.contains(file)) {
            last.needed.extend(added);
            looks.count += 1;
        }
    }

    /// What was found when it was last looked for history that nothing keeps.
    pub(crate) fn look(&self) -> Option<LastLook> {
        self.looks.lock().last.clone()
    }

    /// Bytes of history that only wait to be removed below `cutoff` from the layers of `edition`: what `find` makes of
    /// the files that other LSNs need.
    pub(crate) fn history(&self, edition: u64, cutoff: Lsn, find: impl FnOnce(&HashSet<u64>) -> u64) -> u64 {
        let (count, needed) = {
            let looks = self.looks.lock();
            (looks.count, looks.last.as_ref().map_or_else(HashSet::new, |look| look.needed.clone()))
        };
        self.history.get((edition, cutoff, count), || find(&needed))
    }

    /// How long ago history was last removed.
    pub(crate) fn since_removal(&self) -> Option<Duration> {
        ago(*self.removed.lock())
    }

    /// Notes that objects of `bytes` go once the index part of `submission` is confirmed.
    pub(crate) fn note_outdated(&self, submission: u64, bytes: u64) {
        if bytes > 0 {
            self.outdated.lock().push(Outdated { submission, bytes });
        }
    }

    /// Bytes of objects that go once an index part after that of submission `confirmed` is confirmed.
    pub(crate) fn outdated(&self, confirmed: u64) -> u64 {
        let mut outdated = self.outdated.lock();
        outdated.retain(|it| it.submission > confirmed);
        outdated.iter().map(|it| it.bytes).sum()
    }
}

/// How long ago something happened, if it did.
fn ago(at: Option<Instant>) -> Option<Duration> {
    at.map(|at| env::clock::now().saturating_duration_since(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_wait_for_the_index_part_that_no_longer_names_them() {
        let work = Work::default();
        work.note_outdated(3, 100);
        work.note_outdated(4, 20);
        work.note_outdated(5, 0);
        assert_eq!([2, 3, 3, 4, 9].map(|confirmed| work.outdated(confirmed)), [120, 20, 20, 0, 0]);
    }

    #[test]
    fn what_is_known_is_not_found_out_again() {
        let remembered = Remembered::default();
        let asked = std::cell::Cell::new(0);
        let get = |key| {
            remembered.get(key, || {
                asked.set(asked.get() + 1);
                key * 10
            })
        };
        assert_eq!(([get(1), get(1), get(2), get(2), get(1)], asked.get()), ([10, 10, 20, 20, 10], 3));
    }

    #[test]
    fn history_is_found_out_again_after_each_look() {
        let work = Work::default();
        let look = |needed: [u64; 2]| LastLook {
            at: env::clock::now(),
            cutoff: Lsn(8),
            bound_by: String::new(),
            points: Vec::new(),
            needed: HashSet::from(needed),
        };
        let sum = |needed: &HashSet<u64>| needed.iter().sum();
        assert_eq!(work.history(1, Lsn(8), sum), 0);
        work.note_look(look([1, 2]), false);
        assert_eq!(work.history(1, Lsn(8), sum), 3);
        // As many files as before, but other ones.
        work.note_look(look([1, 3]), false);
        assert_eq!(work.history(1, Lsn(8), sum), 4);
        // What is trimmed is needed as before, what was written of others is not.
        work.note_replaced(&[7, 8], &[9]);
        assert_eq!(work.history(1, Lsn(8), |_| unreachable!("nothing has changed")), 4);
        work.note_replaced(&[3, 7], &[10]);
        assert_eq!(work.history(1, Lsn(8), sum), 14);
    }

    #[test]
    fn what_was_done_and_when_is_known() {
        env::clock::freeze_thread();
        let work = Work::default();
        {
            let busy = work.begin(Lane::Others);
            busy.now(Doing::Job(CompactionJob::Merge));
            assert_eq!(work.doing(), Doing::Job(CompactionJob::Merge));
        }
        assert_eq!(work.doing(), Doing::Nothing);
        work.note_job(CompactionJob::Merge);
        env::clock::advance_thread(Duration::from_secs(7));
        assert_eq!(work.since_job(CompactionJob::Merge), Some(Duration::from_secs(7)));
        assert_eq!((work.since_job(CompactionJob::Sort), work.since_removal()), (None, None));
        assert!(!work.nothing_due(0));
        work.note_nothing_due(0);
        assert!(work.nothing_due(0) && !work.nothing_due(1));
        env::clock::thaw_thread();
    }
}
