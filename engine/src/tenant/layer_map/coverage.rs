//! An index of layers by key: a segment tree.
//!
//! The keys at which layers start or end split the key space into intervals, the leaves of a binary tree. A layer is
//! listed, in LSN order, at the few nodes (at most two per level) that together make up its key range. The layers
//! that cover a key are those listed on the path from the root to its leaf, so finding the newest below an LSN takes
//! one binary search per level. Built once and never changed.

use std::ops::Range;
use std::sync::Arc;

use pageserver_api::key::Key;
use utils::lsn::Lsn;

use super::Layer;
use super::select::{Candidates, newest_below};

/// The layers listed at one node, each kind ascending by start LSN.
#[derive(Clone, Debug, Default)]
struct Node {
    deltas: Vec<Arc<Layer>>,
    images: Vec<Arc<Layer>>,
}

/// Layers indexed by key.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    layers: Vec<Arc<Layer>>,
    /// Where leaves begin, ascending; leaf `i` ends where leaf `i + 1` begins, the last one at [`Key::MAX`].
    bounds: Vec<Key>,
    /// A complete binary tree: the root is 1, the children of `i` are `2 * i` and `2 * i + 1`, and the second half of
    /// the vector holds the leaves. Empty if there are no layers.
    nodes: Vec<Node>,
}

/// A search in progress.
struct Visit<'a, 'f> {
    tree: &'a Coverage,
    keys: &'f Range<Key>,
    end_lsn: Lsn,
    found: &'f mut dyn FnMut(Range<Key>, Candidates<'a>),
}

impl Coverage {
    pub(super) fn new(mut layers: Vec<Arc<Layer>>) -> Self {
        if layers.is_empty() {
            return Self::default();
        }
        layers.sort_by_key(|layer| layer.desc().lsn_range.start);
        let ends = layers.iter().flat_map(|layer| [layer.desc().key_range.start, layer.desc().key_range.end]);
        let mut bounds: Vec<Key> = ends.chain([Key::MIN]).filter(|key| *key != Key::MAX).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let leaves = bounds.len().next_power_of_two();
        let mut tree = Self { layers: Vec::new(), bounds, nodes: vec![Node::default(); 2 * leaves] };
        for layer in &layers {
            tree.list(layer);
        }
        tree.layers = layers;
        tree
    }

    pub(super) fn layers(&self) -> &[Arc<Layer>] {
        &self.layers
    }

    /// Lists `layer` at the nodes that make up its key range, from the leaves up.
    fn list(&mut self, layer: &Arc<Layer>) {
        let leaf_of = |key: &Key| self.bounds.partition_point(|bound| bound < key);
        let first_leaf = self.nodes.len() / 2;
        let keys = &layer.desc().key_range;
        let (mut low, mut high) = (first_leaf + leaf_of(&keys.start), first_leaf + leaf_of(&keys.end));
        while low < high {
            if low % 2 == 1 {
                self.nodes[low].add(layer);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.nodes[high].add(layer);
            }
            (low, high) = (low / 2, high / 2);
        }
    }

    /// Calls `found` for each leaf's part of `keys`, in order, with the newest layers below `end_lsn`, including
    /// those in `above`.
    pub(super) fn for_each_part<'a>(
        &'a self,
        keys: &Range<Key>,
        end_lsn: Lsn,
        above: Candidates<'a>,
        found: &mut dyn FnMut(Range<Key>, Candidates<'a>),
    ) {
        if self.nodes.is_empty() && keys.start < keys.end {
            return found(keys.clone(), above);
        }
        let leaves = self.nodes.len() / 2;
        Visit { tree: self, keys, end_lsn, found }.descend(1, 0..leaves, above);
    }

    /// The keys of the node over the leaves `leaves`.
    fn keys_of(&self, leaves: &Range<usize>) -> Range<Key> {
        let bound = |leaf: usize| self.bounds.get(leaf).copied().unwrap_or(Key::MAX);
        bound(leaves.start)..bound(leaves.end)
    }
}

impl Node {
    fn add(&mut self, layer: &Arc<Layer>) {
        let list = if layer.desc().is_delta { &mut self.deltas } else { &mut self.images };
        list.push(Arc::clone(layer));
    }
}

impl<'a> Visit<'a, '_> {
    fn descend(&mut self, node: usize, leaves: Range<usize>, above: Candidates<'a>) {
        let own = self.tree.keys_of(&leaves);
        let part = own.start.max(self.keys.start)..own.end.min(self.keys.end);
        if part.start >= part.end {
            return;
        }
        let Some(Node { deltas, images }) = self.tree.nodes.get(node) else { return };
        let here = Candidates { delta: newest_below(deltas, self.end_lsn), image: newest_below(images, self.end_lsn) };
        let newest = above.newer(here);
        if leaves.len() == 1 {
            return (self.found)(part, newest);
        }
        let middle = leaves.start + leaves.len() / 2;
        self.descend(2 * node, leaves.start..middle, newest);
        self.descend(2 * node + 1, middle..leaves.end, newest);
    }
}
