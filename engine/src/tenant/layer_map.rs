//! Finds the layer file to read for a key range below an LSN.
//!
//! A [`LayerMap`] is an immutable snapshot: an update builds a new one that shares what did not change. A flush only
//! adds an L0 layer and costs one copy of the list of L0 layers; anything else rebuilds the index over the keys.

mod coverage;
pub mod debt;
mod graveyard;
mod handle;
pub mod invariants;
pub mod mark;
mod select;
pub mod thin;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use pageserver_api::key::Key;
use utils::lsn::Lsn;

use coverage::Coverage;
pub use graveyard::Graveyard;
pub use handle::Layer;
pub use invariants::Violation;
use select::{Candidates, Choice};

/// A set of layer files, indexed for search.
#[derive(Clone, Debug, Default)]
pub struct LayerMap {
    /// Delta layers over all keys, in LSN order.
    l0: Vec<Arc<Layer>>,
    /// All other layers.
    keyed: Arc<Coverage>,
}

/// A part of the keys searched, and the layer to read for it.
#[derive(Clone, Debug)]
pub struct SearchResult {
    /// The part.
    pub keys: Range<Key>,
    /// The layer to read next.
    pub layer: Arc<Layer>,
    /// Take versions from here (inclusive) up to the LSN searched from `layer`; to find older ones, search below this
    /// LSN. Below an image layer there is nothing to search.
    pub lsn_floor: Lsn,
}

impl LayerMap {
    /// A map of `layers`, in any order.
    pub fn new(layers: Vec<Arc<Layer>>) -> Result<Self, Violation> {
        invariants::check(layers.iter().map(|layer| layer.desc()))?;
        let (mut l0, keyed): (Vec<_>, Vec<_>) = layers.into_iter().partition(|layer| layer.desc().is_l0());
        l0.sort_by_key(|layer| layer.desc().lsn_range.start);
        Ok(Self { l0, keyed: Arc::new(Coverage::new(keyed)) })
    }

    /// The map with one more L0 layer, which must follow all others.
    pub fn with_l0(&self, layer: Arc<Layer>) -> Result<Self, Violation> {
        invariants::check_next_l0(self.l0.last().map(|last| last.desc()), layer.desc())?;
        let begins = layer.desc().lsn_range.start;
        if let Some(end) = self.delta_end().filter(|end| begins < *end) {
            return Err(Violation::Gap { next: layer.desc().layer_name().to_string(), expected: end });
        }
        let mut l0 = Vec::with_capacity(self.l0.len() + 1);
        l0.extend_from_slice(&self.l0);
        l0.push(layer);
        let next = Self { l0, keyed: Arc::clone(&self.keyed) };
        if cfg!(debug_assertions) {
            let descs: Vec<_> = next.iter().map(|layer| layer.desc()).collect();
            assert_eq!(invariants::check(descs.iter().copied()), Ok(()), "with one more L0 layer");
        }
        Ok(next)
    }

    /// The map without the layers `removed`, all of which must be in it, and with those in `added`.
    pub fn replaced(&self, removed: &[Arc<Layer>], added: Vec<Arc<Layer>>) -> Result<Self, Violation> {
        let gone: HashSet<*const Layer> = removed.iter().map(Arc::as_ptr).collect();
        let kept: Vec<_> = self.iter().filter(|layer| !gone.contains(&Arc::as_ptr(layer))).cloned().collect();
        if self.len() - kept.len() != removed.len() {
            let missing = removed.iter().find(|layer| !self.iter().any(|it| Arc::ptr_eq(it, layer)));
            let name = missing.or(removed.first()).map(|layer| layer.desc().layer_name().to_string());
            return Err(Violation::Missing(name.unwrap_or_default()));
        }
        Self::new(kept.into_iter().chain(added).collect())
    }

    /// The layer to read next for each part of `keys` that any layer covers below `end_lsn` (exclusive). Parts are
    /// disjoint and ascending; neighbors differ in layer or floor.
    pub fn search(&self, keys: &Range<Key>, end_lsn: Lsn) -> Vec<SearchResult> {
        let mut results: Vec<SearchResult> = Vec::new();
        let above = Candidates { delta: select::newest_below(&self.l0, end_lsn), image: None };
        self.keyed.for_each_part(keys, end_lsn, above, &mut |part, candidates| {
            let Some(Choice { layer, lsn_floor }) = candidates.choose(end_lsn) else { return };
            match results.last_mut() {
                Some(last) if continues(last, &part, layer, lsn_floor) => last.keys.end = part.end,
                _ => results.push(SearchResult { keys: part, layer: Arc::clone(layer), lsn_floor }),
            }
        });
        results
    }

    /// All layers: L0 layers in LSN order, then the others in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Layer>> {
        self.l0.iter().chain(self.keyed.layers())
    }

    /// L0 layers, oldest first.
    pub fn l0_layers(&self) -> &[Arc<Layer>] {
        &self.l0
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.l0.len() + self.keyed.layers().len()
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the delta layers end: their largest exclusive end LSN.
    pub fn delta_end(&self) -> Option<Lsn> {
        // Nothing is above the last L0 layer.
        if let Some(last) = self.l0.last() {
            return Some(last.desc().lsn_range.end);
        }
        self.iter().filter(|layer| layer.desc().is_delta).map(|layer| layer.desc().lsn_range.end).max()
    }

    /// Up to which LSN (exclusive) everything is in other layers than L0 layers.
    pub fn sorted_to(&self) -> Option<Lsn> {
        match self.l0.first() {
            Some(first) => Some(first.desc().lsn_range.start),
            None => self.delta_end(),
        }
    }

    /// Size of all layer files in bytes.
    pub fn total_size(&self) -> u64 {
        self.iter().map(|layer| layer.desc().file_size).sum()
    }
}

fn continues(last: &SearchResult, part: &Range<Key>, layer: &Arc<Layer>, lsn_floor: Lsn) -> bool {
    last.keys.end == part.start && last.lsn_floor == lsn_floor && Arc::ptr_eq(&last.layer, layer)
}

#[cfg(test)]
mod tests;
