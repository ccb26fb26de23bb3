//! Cached state of relations.

use std::collections::HashMap;

use bytes::Bytes;
use pageserver_api::key::{DBDIR_KEY, Key, rel_entry_key, rel_size_key};
use pageserver_api::reltag::RelTag;

use crate::directory::{DbDir, EXISTS, encode, encode_size};
use crate::listing::Listing;
use crate::store::PageStore;
use errors::StorageError;

/// Maximum number of sizes kept in memory between batches.
const MAX_CACHED: usize = 1 << 20;

/// Cached state of relations, including all changes in the open batch.
#[derive(Debug)]
pub(super) struct Relations {
    databases: DbDir,
    databases_changed: bool,
    /// Sizes in blocks; `None` for forks known not to exist.
    pub(super) sizes: HashMap<RelTag, Option<u32>, foldhash::fast::RandomState>,
    /// Forks that the current record created, resized or dropped; true if the entry changes as well.
    changed: HashMap<RelTag, bool>,
}

impl Relations {
    pub(super) async fn load<S: PageStore>(listing: &Listing<'_, S>) -> Result<Self, StorageError> {
        let databases = listing.databases().await?;
        Ok(Self { databases, databases_changed: false, sizes: HashMap::default(), changed: HashMap::new() })
    }

    pub(super) fn databases(&self) -> &DbDir {
        &self.databases
    }

    /// The size of a fork in blocks, if it is known and the fork exists.
    pub(super) fn known_size(&self, rel: RelTag) -> Option<u32> {
        self.sizes.get(&rel).copied().flatten()
    }

    /// Whether the current record changed anything here.
    pub(super) fn has_changes(&self) -> bool {
        self.databases_changed || !self.changed.is_empty()
    }

    /// Adds a database directory; `has_relmap` never goes back to false.
    pub(super) fn add_database(&mut self, spcnode: u32, dbnode: u32, has_relmap: bool) {
        let known = self.databases.get(&(spcnode, dbnode)).copied();
        if known.is_none_or(|had| has_relmap && !had) {
            self.databases.insert((spcnode, dbnode), has_relmap);
            self.databases_changed = true;
        }
    }

    pub(super) fn remove_database(&mut self, spcnode: u32, dbnode: u32) {
        self.databases_changed |= self.databases.remove(&(spcnode, dbnode)).is_some();
    }

    /// Creates a fork of this size; it must not exist.
    pub(super) fn create(&mut self, rel: RelTag, blocks: u32) {
        self.add_database(rel.spcnode, rel.dbnode, false);
        self.sizes.insert(rel, Some(blocks));
        self.changed.insert(rel, true);
    }

    /// Sets the size of a fork that exists.
    pub(super) fn resize(&mut self, rel: RelTag, blocks: u32) {
        self.sizes.insert(rel, Some(blocks));
        self.changed.entry(rel).or_insert(false);
    }

    /// Removes a fork that exists.
    pub fn remove(&mut self, rel: RelTag) {
        self.sizes.insert(rel, None);
        self.changed.insert(rel, true);
    }

    /// The record's changes as keys and values, in a fixed order.
    pub(super) fn take_changes(&mut self) -> Vec<(Key, Bytes)> {
        let mut values = Vec::with_capacity(2 * self.changed.len() + 1);
        for (rel, entry_changed) in self.changed.drain() {
            let size = self.sizes.get(&rel).copied().flatten();
            values.extend(size.map(|blocks| (rel_size_key(rel), encode_size(blocks))));
            if entry_changed {
                let entry = Bytes::from_static(if size.is_some() { EXISTS } else { &[] });
                values.push((rel_entry_key(rel), entry));
            }
        }
        values.sort_by_key(|(key, _)| *key);
        if std::mem::take(&mut self.databases_changed) {
            values.push((DBDIR_KEY, encode(&self.databases)));
        }
        values
    }

    /// Bounds the memory. Only valid when everything outside `changed` is committed, since it will be read from the
    /// store again.
    pub(super) fn forget_some(&mut self) {
        if self.sizes.len() > MAX_CACHED {
            self.sizes.retain(|rel, _| self.changed.contains_key(rel));
        }
    }
}
