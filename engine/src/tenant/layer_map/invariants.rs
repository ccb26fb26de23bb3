//! What must hold of any set of layers, as pure predicates.

use std::collections::{BTreeMap, HashSet};

use pageserver_api::key::Key;
use utils::lsn::Lsn;

use crate::tenant::storage_layer::PersistentLayerDesc;

/// A set of layers that must not exist: reads of it could return wrong results.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A layer covers no keys or no LSNs.
    #[error("layer {0} covers nothing")]
    Empty(String),
    /// Two layers have the same name.
    #[error("layer {0} is there twice")]
    Duplicate(String),
    /// Two layers of one kind share keys and LSNs, so a version could be applied twice.
    #[error("layers {one} and {other} overlap")]
    Overlap {
        /// One of them.
        one: String,
        /// The other.
        other: String,
    },
    /// L0 layers have a gap or overlap, or begin below what is sorted already.
    #[error("L0 layer {next} does not begin at {expected}, where what is before it ends")]
    Gap {
        /// The later layer.
        next: String,
        /// End of the earlier layer.
        expected: Lsn,
    },
    /// A layer is to be replaced that is not there, or no longer.
    #[error("layer {0} is to go, but it is not there")]
    Missing(String),
    /// Versions of a layer that is to go would be in no other.
    #[error("layer {0} is to go, but no new layer has all that it covers")]
    Lost(String),
    /// A layer has content above the LSN up to which layers are complete.
    #[error("layer {name} reaches beyond the consistent LSN {limit}")]
    BeyondConsistent {
        /// The layer.
        name: String,
        /// The LSN up to which everything is in layers.
        limit: Lsn,
    },
}

fn name_of(desc: &PersistentLayerDesc) -> String {
    desc.layer_name().to_string()
}

/// Everything that must hold of a set of layers by itself.
pub fn check<'a>(layers: impl Iterator<Item = &'a PersistentLayerDesc> + Clone) -> Result<(), Violation> {
    not_empty(layers.clone())?;
    unique_names(layers.clone())?;
    disjoint(layers.clone())?;
    l0_above_others(layers.clone())?;
    l0_contiguous(layers)
}

/// L0 layers are what has not been sorted yet: no other delta layer reaches above the first of them.
fn l0_above_others<'a>(layers: impl Iterator<Item = &'a PersistentLayerDesc> + Clone) -> Result<(), Violation> {
    let others = layers.clone().filter(|desc| desc.is_delta && !desc.is_l0());
    let Some(end) = others.map(|desc| desc.lsn_range.end).max() else { return Ok(()) };
    match layers.filter(|desc| desc.is_l0()).find(|desc| desc.lsn_range.start < end) {
        Some(desc) => Err(Violation::Gap { next: name_of(desc), expected: end }),
        None => Ok(()),
    }
}

/// Every layer covers at least one key and one LSN.
pub fn not_empty<'a>(mut layers: impl Iterator<Item = &'a PersistentLayerDesc>) -> Result<(), Violation> {
    let is_empty = |desc: &PersistentLayerDesc| desc.key_range.is_empty() || desc.lsn_range.is_empty();
    layers.find(|desc| is_empty(desc)).map_or(Ok(()), |desc| Err(Violation::Empty(name_of(desc))))
}

/// No two layers have the same name.
pub fn unique_names<'a>(mut layers: impl Iterator<Item = &'a PersistentLayerDesc>) -> Result<(), Violation> {
    let mut names = HashSet::new();
    layers.find(|desc| !names.insert(desc.layer_name())).map_or(Ok(()), |desc| Err(Violation::Duplicate(name_of(desc))))
}

/// No two delta layers, and no two image layers, have a key and an LSN in common.
pub fn disjoint<'a>(layers: impl Iterator<Item = &'a PersistentLayerDesc>) -> Result<(), Violation> {
    let (deltas, images): (Vec<_>, Vec<_>) = layers.partition(|desc| desc.is_delta);
    disjoint_of_one_kind(&deltas)?;
    disjoint_of_one_kind(&images)
}

fn disjoint_of_one_kind(layers: &[&PersistentLayerDesc]) -> Result<(), Violation> {
    // Sweeps over the keys; where one layer ends and another starts, the end comes first.
    let edges = |desc| [(desc, true), (desc, false)];
    let mut events: Vec<(&PersistentLayerDesc, bool)> = layers.iter().copied().flat_map(edges).collect();
    events.sort_by_key(|(desc, starts)| (if *starts { desc.key_range.start } else { desc.key_range.end }, *starts));
    let mut active: BTreeMap<Lsn, &PersistentLayerDesc> = BTreeMap::new();
    for (desc, starts) in events {
        if !starts {
            active.remove(&desc.lsn_range.start);
            continue;
        }
        // Active layers are disjoint, so only the last one that begins before this one ends can overlap it.
        if let Some((_, other)) = active.range(..desc.lsn_range.end).next_back()
            && other.lsn_range.end > desc.lsn_range.start
        {
            return Err(Violation::Overlap { one: name_of(other), other: name_of(desc) });
        }
        active.insert(desc.lsn_range.start, desc);
    }
    Ok(())
}

/// Each L0 layer begins where the one before it ends.
pub fn l0_contiguous<'a>(layers: impl Iterator<Item = &'a PersistentLayerDesc>) -> Result<(), Violation> {
    let mut l0: Vec<_> = layers.filter(|desc| desc.is_l0()).collect();
    l0.sort_by_key(|desc| desc.lsn_range.start);
    l0.windows(2).try_for_each(|pair| match pair {
        [before, next] => follows(before, next),
        _ => Ok(()),
    })
}

/// Whether `layer` may follow the L0 layers of which `last` is the newest.
pub fn check_next_l0(last: Option<&PersistentLayerDesc>, layer: &PersistentLayerDesc) -> Result<(), Violation> {
    not_empty(std::iter::once(layer))?;
    last.map_or(Ok(()), |last| follows(last, layer))
}

fn follows(before: &PersistentLayerDesc, next: &PersistentLayerDesc) -> Result<(), Violation> {
    let expected = before.lsn_range.end;
    if next.lsn_range.start == expected {
        return Ok(());
    }
    Err(Violation::Gap { next: name_of(next), expected })
}

/// Where the keys end that can be stored: no key from here to [`Key::MAX`] has a compact form. A layer of all keys that
/// ends here is not an L0 layer.
pub const STORED_KEYS_END: Key = Key { field1: 0x80, ..Key::MIN };

/// Whether each of `removed`, delta layers, is covered by `added` as far as it can have contents.
pub fn replaces<'a>(
    removed: impl Iterator<Item = &'a PersistentLayerDesc>,
    added: &[&PersistentLayerDesc],
) -> Result<(), Violation> {
    for desc in removed {
        let mut covers: Vec<_> = added
            .iter()
            .filter(|new| new.is_delta && new.lsn_range.start <= desc.lsn_range.start)
            .filter(|new| desc.lsn_range.end <= new.lsn_range.end)
            .collect();
        covers.sort_by_key(|new| new.key_range.start);
        let mut next = desc.key_range.start;
        for new in covers {
            if new.key_range.start <= next {
                next = next.max(new.key_range.end);
            }
        }
        if next < desc.key_range.end.min(STORED_KEYS_END) || !desc.is_delta {
            return Err(Violation::Lost(name_of(desc)));
        }
    }
    Ok(())
}

/// No layer has content above `limit`, the LSN up to which everything is in layers.
pub fn within_consistent<'a>(
    mut layers: impl Iterator<Item = &'a PersistentLayerDesc>,
    limit: Lsn,
) -> Result<(), Violation> {
    let beyond = |desc: &PersistentLayerDesc| desc.lsn_range.end.0 > limit.0.saturating_add(1);
    match layers.find(|desc| beyond(desc)) {
        Some(desc) => Err(Violation::BeyondConsistent { name: name_of(desc), limit }),
        None => Ok(()),
    }
}
