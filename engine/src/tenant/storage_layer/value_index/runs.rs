//! Stores entries in chunks, with sorted runs for readers over all but the newest of them.

use std::sync::Arc;

use parking_lot::Mutex;

use super::entry::{Entry, LOW_BITS};
use super::radix;

const CHUNK_BITS: u32 = 13;
/// Entries per chunk, and the most that are sorted at once.
const CHUNK: usize = 1 << CHUNK_BITS;
/// Fewer entries than this no run covers: a reader looks at each of them.
const STEP: usize = 512;

type Chunk = Box<[Entry]>;

/// Entries in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Runs {
    full: Vec<Chunk>,
    last: Vec<Entry>,
    sorted: Mutex<Sorted>,
}

/// Runs over the oldest entries, longest first, each sorted by (key, arrival).
#[derive(Clone, Debug, Default)]
struct Sorted {
    runs: Vec<Arc<Vec<u32>>>,
    /// So many entries they cover, a multiple of [`STEP`].
    covered: usize,
}

impl Runs {
    #[inline]
    pub(super) fn push(&mut self, entry: Entry) {
        if self.last.len() == self.last.capacity() {
            self.grow();
        }
        self.last.push(entry);
    }

    #[cold]
    fn grow(&mut self) {
        if self.last.len() == CHUNK {
            let full = std::mem::replace(&mut self.last, Vec::with_capacity(CHUNK));
            self.full.push(full.into_boxed_slice());
        } else {
            // The first chunk grows by doubling, so that small layers stay small.
            let more = self.last.len().max(64);
            self.last.reserve_exact(more.min(CHUNK - self.last.len()));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.full.len() * CHUNK + self.last.len()
    }

    pub(super) fn memory(&self) -> usize {
        let runs: usize = self.sorted.lock().runs.iter().map(|run| run.capacity() * size_of::<u32>()).sum();
        self.full.len() * CHUNK * size_of::<Entry>() + self.last.capacity() * size_of::<Entry>() + runs
    }

    #[inline]
    pub(super) fn entry(&self, at: u32) -> &Entry {
        let at = at as usize;
        match self.full.get(at >> CHUNK_BITS) {
            Some(chunk) => &chunk[at & (CHUNK - 1)],
            None => &self.last[at - self.full.len() * CHUNK],
        }
    }

    /// Calls `visit` with all entries whose key is in `low..=high`: per key in order of arrival, keys interleaved.
    pub(super) fn for_each_in(&self, low: u64, high: u64, mut visit: impl FnMut(&Entry)) {
        let Sorted { runs, covered } = self.caught_up();
        for run in runs {
            let from = run.partition_point(|at| self.entry(*at).key < low);
            for at in &run[from..] {
                let entry = self.entry(*at);
                if entry.key > high {
                    break;
                }
                visit(entry);
            }
        }
        self.uncovered(covered).iter().filter(|entry| (low..=high).contains(&entry.key)).for_each(visit);
    }

    /// Calls `visit` with the entries of `key` whose LSN is below `end`, newest first, until it returns false.
    pub(super) fn newest_first(&self, key: u64, end: u64, mut visit: impl FnMut(&Entry) -> bool) {
        let Sorted { runs, covered } = self.caught_up();
        for entry in self.uncovered(covered).iter().rev().filter(|entry| entry.key == key && entry.lsn < end) {
            if !visit(entry) {
                return;
            }
        }
        for run in runs.iter().rev() {
            let to = run.partition_point(|at| {
                let entry = self.entry(*at);
                entry.key < key || entry.key == key && entry.lsn < end
            });
            for at in run[..to].iter().rev() {
                let entry = self.entry(*at);
                if entry.key != key {
                    break;
                }
                if !visit(entry) {
                    return;
                }
            }
        }
    }

    /// The entries that no run covers, all of which are in the last chunk.
    fn uncovered(&self, covered: usize) -> &[Entry] {
        &self.last[covered - self.full.len() * CHUNK..]
    }

    /// The runs, after sorting what has come since the last call.
    fn caught_up(&self) -> Sorted {
        let mut sorted = self.sorted.lock();
        while sorted.covered + STEP <= self.len() {
            let base = sorted.covered;
            let len = sorted_next(base, self.len());
            let keys = (base..base + len).map(|at| self.entry(at as u32).key);
            let mut run: Vec<u32> = radix::order(len, keys).iter().map(|at| base as u32 + at).collect();
            sorted.covered += len;
            // As with the carries of a binary counter, runs of equal length are merged, so that few remain.
            while sorted.runs.last().is_some_and(|last| last.len() <= run.len()) {
                let older = sorted.runs.pop().unwrap_or_default();
                run = self.merge(&older, &run);
            }
            sorted.runs.push(Arc::new(run));
        }
        sorted.clone()
    }

    /// Merges two sorted runs; among equal keys, those of `older` come first.
    fn merge(&self, older: &[u32], newer: &[u32]) -> Vec<u32> {
        let mut out = Vec::with_capacity(older.len() + newer.len());
        let (mut a, mut b) = (older.iter().peekable(), newer.iter().peekable());
        while let (Some(left), Some(right)) = (a.peek(), b.peek()) {
            let take_left = self.entry(**left).key <= self.entry(**right).key;
            out.extend(if take_left { a.next() } else { b.next() });
        }
        out.extend(a.chain(b));
        out
    }

    /// The order of all entries by (rank of prefix, low bits, arrival).
    pub(super) fn sorted(&self, ranks: &[u32]) -> radix::Order {
        let rank = |key: u64| u64::from(ranks[(key >> LOW_BITS) as usize]) << LOW_BITS | key & u64::from(u32::MAX);
        let identity = ranks.iter().enumerate().all(|(number, rank)| number == *rank as usize);
        let keys = self.iter().map(|entry| entry.key);
        if identity { radix::order(self.len(), keys) } else { radix::order(self.len(), keys.map(rank)) }
    }

    /// All entries in order of arrival.
    fn iter(&self) -> impl Iterator<Item = &Entry> + Clone {
        self.full.iter().flat_map(|chunk| chunk.iter()).chain(&self.last)
    }
}

/// How many entries are sorted next, of `len`, if runs cover `covered`: as many as they can be without splitting what a
/// longer run will have, so that runs get shorter and shorter, and much that has come at once is sorted at once.
fn sorted_next(covered: usize, len: usize) -> usize {
    let mut next = CHUNK;
    while next > STEP && (!covered.is_multiple_of(next) || covered + next > len) {
        next /= 2;
    }
    next
}
