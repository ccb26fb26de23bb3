//! Cached state of SLRUs.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pageserver_api::key::{Key, slru_dir_key, slru_segment_size_key};
use pageserver_api::reltag::SlruKind;

use crate::directory::{encode, encode_size};
use crate::listing::Listing;
use crate::store::PageStore;
use errors::StorageError;

/// Segments by kind, with their sizes in pages, including all changes in the open batch.
#[derive(Debug)]
pub(super) struct Slrus {
    segments: BTreeMap<SlruKind, BTreeMap<u32, u32>>,
    /// Kinds whose set of segments the current record changed.
    changed_dirs: BTreeSet<SlruKind>,
    /// Segments that the current record extended.
    changed_sizes: BTreeSet<(SlruKind, u32)>,
}

impl Slrus {
    pub(super) async fn load<S: PageStore>(listing: &Listing<'_, S>) -> Result<Self, StorageError> {
        let mut segments = BTreeMap::new();
        for kind in SlruKind::ALL {
            segments.insert(kind, listing.slru_segments(kind).await?);
        }
        Ok(Self { segments, changed_dirs: BTreeSet::new(), changed_sizes: BTreeSet::new() })
    }

    pub(super) fn size(&self, kind: SlruKind, segment: u32) -> Option<u32> {
        self.segments.get(&kind)?.get(&segment).copied()
    }

    /// Makes a segment at least `pages` long. Returns its previous length.
    pub(super) fn extend(&mut self, kind: SlruKind, segment: u32, pages: u32) -> u32 {
        let before = self.size(kind, segment);
        if before.is_none_or(|before| before < pages) {
            self.segments.entry(kind).or_default().insert(segment, pages);
            self.changed_sizes.insert((kind, segment));
        }
        if before.is_none() {
            self.changed_dirs.insert(kind);
        }
        before.unwrap_or(0)
    }

    /// Removes the segments for which `goes` returns true.
    pub fn remove(&mut self, kind: SlruKind, goes: impl Fn(u32) -> bool) {
        let segments = self.segments.entry(kind).or_default();
        let before = segments.len();
        segments.retain(|segment, _| !goes(*segment));
        if segments.len() != before {
            self.changed_dirs.insert(kind);
        }
    }

    /// Whether the current record changed anything here.
    pub(super) fn has_changes(&self) -> bool {
        !self.changed_sizes.is_empty() || !self.changed_dirs.is_empty()
    }

    /// The record's changes as keys and values.
    pub(super) fn take_changes(&mut self) -> Vec<(Key, Bytes)> {
        let mut values = Vec::new();
        for (kind, segment) in std::mem::take(&mut self.changed_sizes) {
            let size = self.size(kind, segment);
            values.extend(size.map(|pages| (slru_segment_size_key(kind, segment), encode_size(pages))));
        }
        for kind in std::mem::take(&mut self.changed_dirs) {
            let dir: BTreeSet<u32> = self.segments.get(&kind).into_iter().flat_map(|s| s.keys().copied()).collect();
            values.push((slru_dir_key(kind), encode(&dir)));
        }
        values
    }
}
