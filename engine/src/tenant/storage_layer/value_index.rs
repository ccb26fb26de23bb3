//! Index of an in-memory layer: an append-only array that is sorted on demand.
//!
//! Ingest only appends 24 bytes per value. Readers sort what has arrived since the last read in chunks and keep the
//! sorted runs, so that each value is sorted a bounded number of times and ingest sorts nothing. When the layer is
//! sealed, everything is radix-sorted once.

mod entry;
mod radix;
mod runs;
mod sorted;

use std::collections::HashMap;

use pageserver_api::key::CompactKey;
use utils::lsn::Lsn;

use entry::{Entry, INIT_BIT, LOW_BITS, key_of, number};
pub(super) use entry::{POSITION_MAX, VALUE_LEN_MAX, Version};
pub(super) use sorted::Sorted;

use super::block_source::Extent;

/// See [`gather::release_unused`](super::gather::release_unused).
pub(super) fn release_unused() {
    radix::ITEMS.release_unused();
    sorted::ENTRIES.release_unused();
}

/// The index. The LSNs of each key's entries must not go back.
#[derive(Debug, Default)]
pub(super) struct ValueIndex {
    prefixes: Prefixes,
    runs: runs::Runs,
    has_changes: bool,
}

/// Table of key prefixes in order of first appearance.
#[derive(Debug, Default)]
struct Prefixes {
    list: Vec<i128>,
    numbers: HashMap<i128, u32, foldhash::fast::RandomState>,
    last: Option<(i128, u32)>,
}

impl Prefixes {
    #[inline]
    fn number_of(&mut self, prefix: i128) -> u32 {
        match self.last {
            Some((last, number)) if last == prefix => number,
            _ => self.look_up(prefix),
        }
    }

    fn look_up(&mut self, prefix: i128) -> u32 {
        let next = number(self.list.len());
        let number = *self.numbers.entry(prefix).or_insert(next);
        if number == next {
            self.list.push(prefix);
        }
        self.last = Some((prefix, number));
        number
    }

    fn key_of(&self, packed: u64) -> CompactKey {
        key_of(&self.list, packed)
    }
}

impl ValueIndex {
    /// Adds a version.
    #[inline]
    pub(super) fn push(&mut self, key: CompactKey, lsn: Lsn, position: u64, len: u32, will_init: bool) {
        debug_assert!(position <= POSITION_MAX && len as usize <= VALUE_LEN_MAX);
        self.has_changes |= !will_init;
        let bits = key.to_i128();
        let number = self.prefixes.number_of(bits >> LOW_BITS);
        let place = Entry::place_of(position, len, will_init);
        self.runs.push(Entry { key: u64::from(number) << LOW_BITS | u64::from(bits as u32), lsn: lsn.0, place });
    }

    /// Number of versions.
    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Bytes of memory in use.
    pub(super) fn memory(&self) -> usize {
        self.runs.memory() + self.prefixes.list.len() * 64
    }

    fn version(&self, entry: &Entry) -> Version {
        entry.version(self.prefixes.key_of(entry.key))
    }

    /// All versions with keys in `first..=last`, in order of (key, LSN).
    pub(super) fn range(&self, first: CompactKey, last: CompactKey) -> Vec<Version> {
        let mut found = Vec::new();
        let (first_bits, last_bits) = (first.to_i128(), last.to_i128());
        for (number, prefix) in self.prefixes.list.iter().enumerate() {
            let (start, end) = (prefix << LOW_BITS, prefix << LOW_BITS | i128::from(u32::MAX));
            if end < first_bits || start > last_bits {
                continue;
            }
            let base = (number as u64) << LOW_BITS;
            let low = base | u64::from((first_bits.max(start)) as u32);
            let high = base | u64::from((last_bits.min(end)) as u32);
            self.runs.for_each_in(low, high, |entry| found.push(self.version(entry)));
        }
        found.sort_by_key(|version| (version.key, version.lsn));
        keep_last_of_equals(&mut found);
        found
    }

    /// The versions of `key` below `end` that a read needs, newest first: down to one that needs no older one.
    pub(super) fn needed(&self, key: CompactKey, end: Lsn) -> Vec<Version> {
        let bits = key.to_i128();
        let Some(number) = self.prefixes.numbers.get(&(bits >> LOW_BITS)) else { return Vec::new() };
        let packed = u64::from(*number) << LOW_BITS | u64::from(bits as u32);
        let mut found: Vec<Version> = Vec::new();
        self.runs.newest_first(packed, end.0, |entry| {
            // Of versions with equal LSN, the last one pushed counts, which came first here.
            let is_replaced = found.last().is_some_and(|newer| newer.lsn.0 == entry.lsn);
            if !is_replaced {
                found.push(self.version(entry));
            }
            is_replaced || entry.place & INIT_BIT == 0
        });
        found
    }

    /// Whether all versions are whole images, so that a read needs only one version.
    pub(super) fn only_images(&self) -> bool {
        !self.has_changes
    }

    /// All versions by (key, LSN).
    pub(super) fn sorted(&self) -> Sorted {
        Sorted::new(self.runs.sorted(&self.prefix_ranks()), &self.runs, self.prefixes.list.clone())
    }

    /// Where the version with arrival number `number` lies.
    pub(super) fn extent(&self, number: usize) -> Extent {
        self.runs.entry(number as u32).extent()
    }

    /// The rank in key order of each prefix number.
    fn prefix_ranks(&self) -> Vec<u32> {
        let mut by_key: Vec<u32> = (0..self.prefixes.list.len() as u32).collect();
        by_key.sort_unstable_by_key(|number| self.prefixes.list[*number as usize]);
        let mut ranks = vec![0; by_key.len()];
        for (rank, number) in by_key.into_iter().enumerate() {
            ranks[number as usize] = rank as u32;
        }
        ranks
    }
}

fn keep_last_of_equals(versions: &mut Vec<Version>) {
    versions.reverse();
    versions.dedup_by_key(|version| (version.key, version.lsn));
    versions.reverse();
}

#[cfg(test)]
mod tests;
