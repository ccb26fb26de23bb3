//! A copy of a whole index in order of (key, LSN), for sealing the layer.

use super::super::memory_pool::{MemoryPool, make_room};
use super::entry::{Entry, Version, key_of};
use super::radix::Order;
use super::runs::Runs;

pub(super) static ENTRIES: MemoryPool<Vec<Entry>> = MemoryPool::new();

/// All versions of an index by (key, LSN).
#[derive(Debug)]
pub(in super::super) struct Sorted {
    entries: Vec<Entry>,
    order: Order,
    prefixes: Vec<i128>,
}

impl Drop for Sorted {
    fn drop(&mut self) {
        ENTRIES.give(std::mem::take(&mut self.entries));
    }
}

impl Sorted {
    /// `order` must be that of the entries of `runs`.
    pub(super) fn new(order: Order, runs: &Runs, prefixes: Vec<i128>) -> Self {
        let mut entries = ENTRIES.take();
        make_room(&mut entries, runs.len());
        entries.extend(order.iter().map(|number| *runs.entry(number)));
        Self { entries, order, prefixes }
    }

    /// Number of places. Not every place holds a version that counts: see [`Sorted::is_replaced`].
    pub(in super::super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the next version replaces the one at `at`: of versions with equal key and LSN, the last one pushed
    /// counts.
    pub(in super::super) fn is_replaced(&self, at: usize) -> bool {
        let is_same = |a: &Entry, b: &Entry| a.key == b.key && a.lsn == b.lsn;
        match fault::planted(fault::Bug::ForgetNewerOfEquals) {
            false => self.entries.get(at + 1).is_some_and(|next| is_same(&self.entries[at], next)),
            true => at > 0 && is_same(&self.entries[at - 1], &self.entries[at]),
        }
    }

    /// The version at `at`.
    pub(in super::super) fn version(&self, at: usize) -> Version {
        let entry = &self.entries[at];
        entry.version(key_of(&self.prefixes, entry.key))
    }

    /// Whether the versions at `at` and at the place before it have the same key.
    pub(in super::super) fn continues_key(&self, at: usize) -> bool {
        at > 0 && self.entries[at - 1].key == self.entries[at].key
    }

    /// Arrival number of the version at `at`.
    pub(in super::super) fn number(&self, at: usize) -> usize {
        self.order.number(at) as usize
    }

    /// Records that the value of the version at `at` is at `position`.
    pub(in super::super) fn set_position(&mut self, at: usize, position: u64) {
        let entry = &mut self.entries[at];
        entry.place = Entry::place_of(position, entry.extent().len, entry.will_init());
    }

    /// The versions that count.
    pub(in super::super) fn iter(&self) -> impl Iterator<Item = Version> + '_ {
        (0..self.len()).filter(|at| !self.is_replaced(*at)).map(|at| self.version(at))
    }
}
