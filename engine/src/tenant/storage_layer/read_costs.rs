//! What a read costs: counted where it arises, and divided among the pages that were read.

use std::ops::{AddAssign, Range};
use std::time::Duration;

use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;

/// Of reads of more keys it is not known what was searched for each.
const KEYS_MAX: usize = 1024;

/// What a read has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCosts {
    /// Reads of the local disk, and requests to the bucket.
    pub reads: u64,
    /// Bytes read from the local disk.
    pub local_bytes: u64,
    /// Requests to the bucket made for this read.
    pub requests: u64,
    /// Bytes fetched by these.
    pub fetched_bytes: u64,
    /// Key filters asked.
    pub filters: u32,
    /// How long the read waited for the disk and the bucket.
    pub fetching: Duration,
    /// How long it waited for WAL that had not arrived, and for its turn.
    pub waiting: Duration,
}

impl AddAssign for ReadCosts {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.local_bytes += other.local_bytes;
        self.requests += other.requests;
        self.fetched_bytes += other.fetched_bytes;
        self.filters += other.filters;
        self.fetching += other.fetching;
        self.waiting += other.waiting;
    }
}

/// What was searched for one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Searched {
    /// Layers, as in [`ReconstructState::layers_searched`](super::ReconstructState).
    pub(crate) layers: u32,
    /// Key filters asked.
    pub(crate) filters: u32,
}

/// What was searched for each key of a read of several keys.
#[derive(Debug)]
pub(crate) struct SearchedByKey {
    /// Ascending.
    keys: Vec<(Key, Searched)>,
}

impl SearchedByKey {
    /// Of a read of `wanted`; `None` if that is one key, for which the sums are its own, or very many.
    pub(crate) fn new(wanted: &KeySpace) -> Option<Self> {
        let mut keys = Vec::new();
        for range in wanted.ranges() {
            let mut key = range.start;
            while key < range.end {
                if keys.len() == KEYS_MAX {
                    return None;
                }
                keys.push((key, Searched::default()));
                key = key.next();
            }
        }
        (keys.len() > 1).then_some(Self { keys })
    }

    /// Counts a layer in which `keys` were looked for: whether it was searched, and how many filters were asked.
    pub(crate) fn note(&mut self, keys: &Range<Key>, more: Searched) {
        let first = self.keys.partition_point(|(key, _)| *key < keys.start);
        let within = self.keys.iter_mut().skip(first).take_while(|(key, _)| *key < keys.end);
        for (_, searched) in within {
            searched.layers += more.layers;
            searched.filters += more.filters;
        }
    }

    /// What was searched for `key`.
    pub(crate) fn of(&self, key: &Key) -> Searched {
        let at = self.keys.binary_search_by_key(key, |(known, _)| *known);
        at.ok().and_then(|at| self.keys.get(at)).map_or_else(Searched::default, |(_, searched)| *searched)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> Key {
        Key { field6: number, ..Key::MIN }
    }

    #[test]
    fn each_key_has_what_was_searched_for_it() {
        let wanted = KeySpace::from_ranges(vec![key(3)..key(6), key(9)..key(10)]);
        let mut by_key = SearchedByKey::new(&wanted).unwrap();
        by_key.note(&(key(0)..key(5)), Searched { layers: 1, filters: 0 });
        by_key.note(&(key(4)..key(5)), Searched { layers: 0, filters: 1 });
        by_key.note(&(Key::MIN..Key::MAX), Searched { layers: 1, filters: 0 });
        by_key.note(&(key(7)..key(9)), Searched { layers: 7, filters: 7 });
        let of = |number| by_key.of(&key(number));
        assert_eq!([of(3).layers, of(4).layers, of(5).layers, of(9).layers, of(8).layers], [2, 2, 1, 1, 0]);
        assert_eq!([of(3).filters, of(4).filters, of(9).filters], [0, 1, 0]);
    }

    #[test]
    fn one_key_needs_no_list_and_very_many_have_none() {
        assert!(SearchedByKey::new(&KeySpace::single(key(1)..key(2))).is_none());
        assert!(SearchedByKey::new(&KeySpace::single(key(0)..key(KEYS_MAX as u32))).is_some());
        assert!(SearchedByKey::new(&KeySpace::single(Key::MIN..Key::MAX)).is_none());
    }
}
