//! Finds images within the history that only make old reads short, and could go.

use std::collections::HashSet;
use std::sync::Arc;

use pageserver_api::keyspace::KeySpace;
use utils::lsn::Lsn;

use super::debt::stacks;
use super::mark::{Marked, mark};
use super::{Layer, LayerMap};

/// Images above `cutoff` that are not the newest ones of any of their keys, and without which reads find an older image
/// of each key. All of them can go at once: every version above the cutoff is in delta layers, and a read that passes
/// the cutoff goes on as one as of the cutoff does, which finds all that it needs.
pub fn thin(map: &LayerMap, cutoff: Lsn) -> Vec<Arc<Layer>> {
    let newest = stacks(map.iter()).into_iter().filter_map(|stack| stack.image);
    let newest: HashSet<u64> = newest.map(|image| image.identity().file_id).collect();
    let is_candidate = |layer: &&Arc<Layer>| {
        let desc = layer.desc();
        !desc.is_delta && desc.image_lsn() > cutoff && !newest.contains(&layer.identity().file_id)
    };
    let candidates: Vec<Arc<Layer>> = map.iter().filter(is_candidate).cloned().collect();
    let Some(without) = (!candidates.is_empty()).then(|| map.replaced(&candidates, Vec::new()).ok()).flatten() else {
        return Vec::new();
    };
    let has_older = |image: &Arc<Layer>| {
        let desc = image.desc();
        let keys = KeySpace::single(desc.key_range.clone());
        mark(&without, &keys, desc.image_lsn() + 1, &mut Marked::new()).is_empty()
    };
    candidates.into_iter().filter(has_older).collect()
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;
    use pageserver_api::key::Key;
    use pageserver_api::shard::TenantShardId;
    use utils::id::{TenantId, TimelineId};

    use super::*;
    use crate::resources::Resources;
    use crate::tenant::storage_layer::{LayerIdentity, PersistentLayerDesc};

    fn key(n: u32) -> Key {
        Key { field6: n, ..Key::MIN }
    }

    /// A map of delta layers (keys, LSNs) and images (keys, LSN), whose files are numbered in this order.
    fn map(deltas: &[(u32, u32, u64, u64)], images: &[(u32, u32, u64)]) -> LayerMap {
        let tenant = TenantShardId::unsharded(TenantId::from([1; 16]));
        let timeline = TimelineId::from([2; 16]);
        let deltas = deltas.iter().map(|(from, to, start, end)| {
            PersistentLayerDesc::new_delta(tenant, timeline, key(*from)..key(*to), Lsn(*start)..Lsn(*end), 1)
        });
        let images = images.iter().map(|(from, to, lsn)| {
            PersistentLayerDesc::new_image(tenant, timeline, key(*from)..key(*to), Lsn(*lsn), 1)
        });
        let layers = deltas.chain(images).enumerate().map(|(number, desc)| {
            let identity = LayerIdentity { file_id: number as u64, tail_offset: 4096, filter_blocks: 0 };
            Arc::new(Layer::new(&Resources::default(), Utf8Path::new("/t"), desc, 1, identity))
        });
        LayerMap::new(layers.collect()).unwrap()
    }

    fn lsns(images: &[Arc<Layer>]) -> Vec<u64> {
        let mut lsns: Vec<u64> = images.iter().map(|image| image.desc().image_lsn().0).collect();
        lsns.sort_unstable();
        lsns
    }

    #[test]
    fn only_images_between_the_oldest_and_the_newest_go() {
        let map = map(&[(0, 10, 11, 61)], &[(0, 10, 10), (0, 10, 20), (0, 5, 30), (5, 10, 40), (0, 10, 60)]);
        assert_eq!(lsns(&thin(&map, Lsn(10))), [20, 30, 40]);
        assert_eq!(lsns(&thin(&map, Lsn(25))), [30, 40], "what a read as of the cutoff ends at stays");
        assert_eq!(lsns(&thin(&map, Lsn(60))), [0; 0]);
    }

    #[test]
    fn an_image_stays_while_one_of_its_keys_has_no_other() {
        let part = map(&[(0, 10, 11, 61)], &[(0, 10, 10), (0, 10, 20), (0, 6, 60)]);
        assert_eq!(lsns(&thin(&part, Lsn(10))), [0; 0], "it is the newest of some keys");
        let part = map(&[(0, 10, 11, 61)], &[(0, 5, 10), (0, 10, 20), (0, 10, 60)]);
        assert_eq!(lsns(&thin(&part, Lsn(5))), [10; 0], "it is the oldest of some keys");
        let oldest = map(&[(0, 10, 11, 61)], &[(0, 10, 10), (0, 10, 60)]);
        assert_eq!(lsns(&thin(&oldest, Lsn(5))), [0; 0], "it is the oldest, and above the cutoff");
    }
}
