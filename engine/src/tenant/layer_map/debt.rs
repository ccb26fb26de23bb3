//! How far a set of layers is from one that is quick to read: pure functions over descriptions of layers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use pageserver_api::key::Key;
use utils::lsn::Lsn;

use super::Layer;

/// The delta layers, other than L0 layers, above the newest image of some keys.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The keys.
    pub keys: Range<Key>,
    /// LSN of their newest image, if they have one.
    pub image: Option<Arc<Layer>>,
    /// The delta layers, oldest first.
    pub deltas: Vec<Arc<Layer>>,
}

impl Stack {
    /// Number of delta layers that a read of these keys may have to search.
    pub fn height(&self) -> usize {
        self.deltas.len()
    }
}

/// Layers that begin or end at some key.
#[derive(Default)]
struct Edge<'a> {
    ends: Vec<&'a Arc<Layer>>,
    starts: Vec<&'a Arc<Layer>>,
}

/// All parts of the key space with their stacks, in key order. L0 layers are left out: they cover all keys.
pub fn stacks<'a>(layers: impl Iterator<Item = &'a Arc<Layer>>) -> Vec<Stack> {
    let mut edges: BTreeMap<Key, Edge<'_>> = BTreeMap::new();
    for layer in layers.filter(|layer| !layer.desc().is_l0()) {
        let keys = &layer.desc().key_range;
        edges.entry(keys.start).or_default().starts.push(layer);
        edges.entry(keys.end).or_default().ends.push(layer);
    }
    let mut deltas: BTreeMap<Lsn, &Arc<Layer>> = BTreeMap::new();
    let mut images: BTreeMap<Lsn, &Arc<Layer>> = BTreeMap::new();
    let mut stacks: Vec<Stack> = Vec::new();
    let mut from = Key::MIN;
    for (key, edge) in edges {
        if from < key && !(deltas.is_empty() && images.is_empty()) {
            let image = images.last_key_value().map(|(_, layer)| Arc::clone(layer));
            let above = image.as_ref().map_or(Lsn(0), |image| image.desc().image_lsn() + 1);
            let newer = deltas.values().filter(|layer| layer.desc().lsn_range.end > above);
            stacks.push(Stack { keys: from..key, image, deltas: newer.map(|layer| Arc::clone(layer)).collect() });
        }
        let of = |layer: &Arc<Layer>| layer.desc().lsn_range.start;
        for layer in edge.ends {
            if layer.desc().is_delta {
                deltas.remove(&of(layer))
            } else {
                images.remove(&of(layer))
            };
        }
        for layer in edge.starts {
            if layer.desc().is_delta {
                deltas.insert(of(layer), layer)
            } else {
                images.insert(of(layer), layer)
            };
        }
        from = key;
    }
    stacks
}
