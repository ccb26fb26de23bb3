//! The debt: how many bytes the jobs would read that are due. A pure function over descriptions of layers: it reads no
//! file, so that a scrape of many layers is quick.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::plan::{Below, Known, MERGED, Weights, cells, fold};
use crate::config::CompactionPolicy;
use crate::tenant::layer_map::debt::Stack;
use crate::tenant::layer_map::{Layer, LayerMap};
use crate::tenant::timeline::retention::Retention;
use metrics::{CompactionJob, LabelEnum};
use utils::lsn::Lsn;

/// Bytes that jobs of each kind would read that are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Debt {
    /// L0 layers to be sorted.
    pub sort: u64,
    /// Sorted layers to be merged.
    pub merge: u64,
    /// Layers of which images are to be made.
    pub image: u64,
    /// Layers that images at the cutoff would replace.
    pub fold: u64,
}

impl Debt {
    /// Of one kind.
    pub fn of(&self, kind: CompactionJob) -> u64 {
        match kind {
            CompactionJob::Sort => self.sort,
            CompactionJob::Merge => self.merge,
            CompactionJob::Image => self.image,
            CompactionJob::Fold => self.fold,
            // Found only when nothing else is due, and then done at once.
            CompactionJob::Trim => 0,
        }
    }

    /// Of all jobs.
    pub fn total(&self) -> u64 {
        CompactionJob::ALL.iter().map(|kind| self.of(*kind)).sum()
    }
}

/// The policy by which debt is measured: without compaction, that of its defaults.
pub(in crate::tenant::timeline) fn measure(policy: &CompactionPolicy) -> CompactionPolicy {
    match policy.l0_layers {
        0 => {
            let CompactionPolicy { l0_layers, l0_layers_max, .. } = CompactionPolicy::ON;
            CompactionPolicy { l0_layers, l0_layers_max, ..policy.clone() }
        }
        _ => policy.clone(),
    }
}

/// Bytes of L0 layers that are sorted before fewer than `due` are left.
pub(in crate::tenant::timeline) fn unsorted(l0: &[Arc<Layer>], due: usize, policy: &CompactionPolicy) -> u64 {
    let (mut left, mut bytes) = (l0, 0);
    while left.len() >= due.max(1) {
        let (now, later) = left.split_at(policy.l0_layers_max.clamp(1, left.len()));
        bytes += now.iter().map(|layer| layer.desc().file_size).sum::<u64>();
        left = later;
    }
    bytes
}

/// Bytes of the layers that merges would read, at least: of each stack that is too tall, those of the neighbors with
/// the fewest bytes that have to become one.
pub(in crate::tenant::timeline) fn too_tall(stacks: &[Stack], policy: &CompactionPolicy) -> u64 {
    let mut layers: BTreeMap<u64, u64> = BTreeMap::new();
    for stack in stacks.iter().filter(|stack| stack.height() > policy.height) {
        let count = (stack.height() - policy.height + 1).max(MERGED.start).min(stack.height());
        let bytes = |window: &&[Arc<Layer>]| window.iter().map(|layer| layer.desc().file_size).sum::<u64>();
        let cheapest = stack.deltas.windows(count).min_by_key(bytes).unwrap_or_default();
        layers.extend(cheapest.iter().map(|layer| (layer.identity().file_id, layer.desc().file_size)));
    }
    layers.into_values().sum()
}

/// Bytes of the layers of which images are due.
pub(in crate::tenant::timeline) fn without_image(stacks: &[Stack], known: &Known, policy: &CompactionPolicy) -> u64 {
    let weights = Weights::of_open(stacks);
    let due = cells(stacks, &weights, known).into_iter().filter(|cell| cell.is_due(policy, known));
    due.map(|cell| cell.bytes()).sum()
}

/// Bytes of the layers that the next images at the cutoff would be made of.
pub(in crate::tenant::timeline) fn below_cutoff(
    map: &LayerMap,
    retention: &Retention,
    known: &Known,
    policy: &CompactionPolicy,
) -> u64 {
    if retention.cutoff == Lsn::INVALID {
        return 0;
    }
    let below = Below::of(map, retention);
    fold(&below, &Weights::of_open(&below.stacks), known, policy).map_or(0, |due| due.bytes)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use camino::Utf8Path;
    use pageserver_api::key::Key;
    use pageserver_api::shard::TenantShardId;
    use utils::id::{TenantId, TimelineId};
    use utils::lsn::Lsn;

    use super::*;
    use crate::resources::Resources;
    use crate::tenant::layer_map::debt::stacks;
    use crate::tenant::storage_layer::{LayerIdentity, PersistentLayerDesc};

    const MIB: u64 = 1 << 20;
    const POLICY: CompactionPolicy = CompactionPolicy { height: 3, file_bytes: 16 * MIB, ..CompactionPolicy::ON };

    fn key(n: u32) -> Key {
        Key { field6: n, ..Key::MIN }
    }

    fn layer(desc: PersistentLayerDesc, file_id: u64) -> Arc<Layer> {
        let identity = LayerIdentity { file_id, tail_offset: desc.file_size - 4 * 4096, filter_blocks: 0 };
        Arc::new(Layer::new(&Resources::default(), Utf8Path::new("/t"), desc, 1, identity))
    }

    fn delta(keys: Range<Key>, lsns: Range<u64>, bytes: u64, file_id: u64) -> Arc<Layer> {
        let (tenant, timeline) = (TenantShardId::unsharded(TenantId::from([1; 16])), TimelineId::from([2; 16]));
        let lsns = Lsn(lsns.start)..Lsn(lsns.end);
        layer(PersistentLayerDesc::new_delta(tenant, timeline, keys, lsns, bytes), file_id)
    }

    fn image(keys: Range<Key>, lsn: u64, bytes: u64, file_id: u64) -> Arc<Layer> {
        let (tenant, timeline) = (TenantShardId::unsharded(TenantId::from([1; 16])), TimelineId::from([2; 16]));
        layer(PersistentLayerDesc::new_image(tenant, timeline, keys, Lsn(lsn), bytes), file_id)
    }

    #[test]
    fn l0_layers_are_owed_from_the_threshold_on() {
        let policy = CompactionPolicy { l0_layers: 4, l0_layers_max: 8, ..POLICY };
        let l0 = |count: u64| -> Vec<Arc<Layer>> {
            (0..count).map(|n| delta(Key::MIN..Key::MAX, 10 * n + 1..10 * n + 11, MIB, n)).collect()
        };
        // After the jobs fewer than four are left.
        let owed = [0, 3, 4, 8, 11, 12, 20].map(|count| unsorted(&l0(count), policy.l0_layers, &policy) / MIB);
        assert_eq!(owed, [0, 0, 4, 8, 8, 12, 20]);
        assert_eq!(measure(&CompactionPolicy::OFF).l0_layers, CompactionPolicy::ON.l0_layers);
        assert_eq!(measure(&policy), policy);
    }

    #[test]
    fn of_stacks_that_are_too_tall_the_cheapest_neighbors_are_owed() {
        let sizes = [9, 2, 1, 3, 9];
        let tall = |count: usize| -> Vec<Arc<Layer>> {
            let lsns = |n: u64| 10 * n + 1..10 * n + 11;
            let layers = sizes.iter().take(count).enumerate();
            layers.map(|(n, size)| delta(key(0)..key(10), lsns(n as u64), size * MIB, n as u64)).collect()
        };
        let owed = [3, 4, 5].map(|count| too_tall(&stacks(tall(count).iter()), &POLICY) / MIB);
        assert_eq!(owed, [0, 6, 6]);
        // A layer that is in several stacks is owed once.
        let mut layers = tall(5);
        layers.push(image(key(0)..key(4), 1, MIB, 90));
        layers.push(image(key(4)..key(10), 1, MIB, 91));
        assert_eq!(too_tall(&stacks(layers.iter()), &POLICY), 6 * MIB);
    }

    #[test]
    fn images_are_owed_where_as_much_has_changed() {
        let known = Known::default();
        let owed = |layers: &[Arc<Layer>]| without_image(&stacks(layers.iter()), &known, &POLICY);
        let base = image(key(0)..key(10), 10, 8 * MIB, 1);
        let other = image(key(10)..key(30), 10, 64 * MIB, 2);
        let few = delta(key(0)..key(10), 11..20, 3 * MIB, 3);
        assert_eq!(owed(&[base.clone(), other.clone(), few.clone()]), 0);
        let many = delta(key(0)..key(10), 20..30, 6 * MIB, 4);
        assert_eq!(owed(&[base.clone(), other.clone(), few.clone(), many]), 17 * MIB);
        // What reaches over several is taken to be spread evenly, as long as it is not open.
        let wide = delta(key(0)..key(30), 20..30, 12 * MIB, 5);
        assert_eq!(owed(&[base.clone(), other, few, wide]), 17 * MIB);
        let quarantined = Known { quarantined: vec![key(3)], ..Known::default() };
        let all = [base, delta(key(0)..key(10), 11..20, 9 * MIB, 6)];
        assert_eq!(without_image(&stacks(all.iter()), &known, &POLICY), 17 * MIB);
        assert_eq!(without_image(&stacks(all.iter()), &quarantined, &POLICY), 0);
    }
}
