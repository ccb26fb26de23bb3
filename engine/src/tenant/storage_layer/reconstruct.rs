//! What a read has found so far for the pages that it rebuilds.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::{KeySpace, KeySpaceBuilder};
use pageserver_api::record::WalRecord;
use pageserver_api::value::Value;
use smallvec::SmallVec;
use utils::lsn::Lsn;

use super::read_costs::{ReadCosts, Searched, SearchedByKey};
use super::read_trace::{Sums, Visited};
use crate::context::Pace;
use crate::page_cache::CachedTimeline;

/// The versions of one key that a read needs, gathered from new to old.
#[derive(Debug, Default)]
pub struct KeyHistory {
    /// The newest whole image at or below the LSN read, once found.
    pub image: Option<(Lsn, Bytes)>,
    /// Changes after the image, or from a change that needs no earlier version on, newest first.
    pub records: Vec<(Lsn, WalRecord)>,
    /// Whether the cache already has the value to be rebuilt.
    pub(crate) cached: bool,
    /// Older versions, from this LSN down, are needed but were left out, as together they would take too much memory.
    pub(crate) rest: Option<Lsn>,
    /// Stored bytes of the versions admitted so far.
    pub(crate) bytes: u64,
}

impl KeyHistory {
    /// Whether no older version is needed, or wanted.
    pub fn is_complete(&self) -> bool {
        self.rest.is_some() || self.image.is_some() || self.records.last().is_some_and(|(_, record)| record.will_init())
    }

    /// The LSN of the newest version found.
    pub(crate) fn newest(&self) -> Option<Lsn> {
        self.records.first().map(|(lsn, _)| *lsn).or(self.image.as_ref().map(|(lsn, _)| *lsn))
    }

    /// Adds the next older version.
    pub fn push(&mut self, lsn: Lsn, value: Value) {
        debug_assert!(!self.is_complete(), "versions below a complete history are not read");
        debug_assert!(self.records.last().is_none_or(|(newer, _)| *newer > lsn), "versions come from new to old");
        match value {
            Value::Image(image) => self.image = Some((lsn, image)),
            Value::WalRecord(record) => self.records.push((lsn, record)),
        }
    }
}

/// The histories of all keys of a vectored read.
#[derive(Debug, Default)]
pub struct ReconstructState {
    keys: BTreeMap<Key, KeyHistory>,
    /// Data reads issued so far (not counting index pages).
    pub data_reads: u64,
    /// Layers searched so far: in memory, or files whose filters did not end the search at once.
    pub(crate) layers_searched: u32,
    /// What else the read has cost so far.
    pub costs: ReadCosts,
    /// What was searched for each key, where that is not the same as for all of them.
    by_key: Option<SearchedByKey>,
    /// Ids of the files visited.
    files: SmallVec<[u64; 16]>,
    /// Where to look up rebuilt pages.
    cache: Option<CachedTimeline>,
    /// Maximum bytes of records gathered for one key, if limited.
    limit: Option<u64>,
    /// The layers visited, if the read is to be explained.
    trace: Option<Vec<Visited>>,
    /// Of the reads of values.
    pub(crate) pace: Pace,
}

impl ReconstructState {
    /// Nothing found yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing found yet; looks up rebuilt pages in the cache, and gathers at most `limit` bytes of records for one
    /// key, unless its newest record alone is larger.
    pub(crate) fn with_cache(cache: Option<CachedTimeline>, limit: u64) -> Self {
        Self { cache, limit: Some(limit), ..Self::default() }
    }

    /// Nothing found yet; remembers the layers visited, and gathers as much as [`ReconstructState::with_cache`].
    pub(crate) fn traced(limit: u64) -> Self {
        Self { trace: Some(Vec::new()), limit: Some(limit), ..Self::default() }
    }

    /// Before a visit of a read that is to be explained: what was found so far.
    pub(crate) fn sums(&self) -> Option<Sums> {
        self.trace.as_ref()?;
        let histories = || self.keys.values();
        Some(Sums {
            searched: self.layers_searched,
            filters: self.costs.filters,
            records: histories().map(|history| history.records.len()).sum(),
            images: histories().filter(|history| history.image.is_some()).count(),
            bytes: histories().map(|history| history.bytes).sum(),
        })
    }

    /// From now on tells apart what is searched for each key of `wanted`, if these are several but not very many.
    pub(crate) fn count_by_key(&mut self, wanted: &KeySpace) {
        self.by_key = SearchedByKey::new(wanted);
    }

    /// Notes what was searched for `keys`. The sums are counted apart, as a layer is searched for many keys at once.
    pub(crate) fn note_searched(&mut self, keys: &Range<Key>, searched: Searched) {
        if let Some(by_key) = &mut self.by_key {
            by_key.note(keys, searched);
        }
    }

    /// What was searched for each key apart, if that was counted.
    pub(crate) fn searched_by_key(&self) -> Option<&SearchedByKey> {
        self.by_key.as_ref()
    }

    /// The histories of all keys of which something was found.
    pub(crate) fn histories(&self) -> impl Iterator<Item = (&Key, &KeyHistory)> {
        self.keys.iter()
    }

    /// Counts reads of values.
    pub(crate) fn note_data_reads(&mut self, costs: ReadCosts) {
        self.data_reads += costs.reads;
        self.costs += costs;
    }

    /// Remembers that a file was visited.
    pub(crate) fn note_file(&mut self, file_id: u64) {
        self.files.push(file_id);
    }

    /// Ids of the files visited.
    pub(crate) fn visited_files(&self) -> &[u64] {
        &self.files
    }

    /// Remembers a visit.
    pub(crate) fn note_visit(&mut self, visited: Visited) {
        self.trace.get_or_insert_default().push(visited);
    }

    /// The layers visited.
    pub(crate) fn take_trace(&mut self) -> Vec<Visited> {
        self.trace.take().unwrap_or_default()
    }

    /// How many of the next older versions of `key`, given their lengths in bytes, are within the limit.
    pub(crate) fn admit(&mut self, key: Key, lens: impl Iterator<Item = u32>) -> usize {
        let Some(limit) = self.limit else { return usize::MAX };
        let history = self.keys.entry(key).or_default();
        let mut admitted = 0;
        for len in lens {
            let bytes = history.bytes + u64::from(len);
            if bytes > limit && (admitted > 0 || !history.records.is_empty()) {
                break;
            }
            history.bytes = bytes;
            admitted += 1;
        }
        admitted
    }

    /// Notes that the versions of `key` from the one at `lsn` down are left out.
    pub(crate) fn leave_rest(&mut self, key: Key, lsn: Lsn) {
        self.keys.entry(key).or_default().rest = Some(lsn);
    }

    /// The value of `key` with all changes up to the version at `lsn`, if it is in the cache.
    pub(crate) fn cached(&self, key: &Key, lsn: Lsn) -> Option<Bytes> {
        self.cache.as_ref()?.get(key, lsn)
    }

    /// Adds a value returned by [`ReconstructState::cached`] as the next older version.
    pub(crate) fn push_cached(&mut self, key: Key, lsn: Lsn, value: Bytes) {
        let history = self.keys.entry(key).or_default();
        history.cached = history.records.is_empty();
        history.push(lsn, Value::Image(value));
    }

    /// Adds the next older version of `key`. Returns whether the key is now complete.
    pub fn push(&mut self, key: Key, lsn: Lsn, value: Value) -> bool {
        let history = self.keys.entry(key).or_default();
        history.push(lsn, value);
        history.is_complete()
    }

    /// Removes what was added below `end` for the keys in `keyspace`, so that the layer can be visited again. Its
    /// bytes still count toward the limit.
    pub(crate) fn forget_below(&mut self, keyspace: &KeySpace, end: Lsn) {
        for range in keyspace.ranges() {
            for (_, history) in self.keys.range_mut(range.clone()) {
                history.records.retain(|(lsn, _)| *lsn >= end);
                history.rest = history.rest.filter(|rest| *rest >= end);
                if history.image.as_ref().is_some_and(|(lsn, _)| *lsn < end) {
                    history.image = None;
                    history.cached = false;
                }
            }
        }
    }

    /// Whether `key` needs no older versions.
    pub fn is_complete(&self, key: &Key) -> bool {
        self.keys.get(key).is_some_and(KeyHistory::is_complete)
    }

    /// All keys that need no older versions.
    pub fn completed(&self) -> KeySpace {
        let mut builder = KeySpaceBuilder::default();
        self.keys.iter().filter(|(_, history)| history.is_complete()).for_each(|(key, _)| builder.add_key(*key));
        builder.build()
    }

    /// What was found, by key.
    pub fn into_histories(self) -> BTreeMap<Key, KeyHistory> {
        self.keys
    }
}
