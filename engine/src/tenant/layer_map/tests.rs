//! Compares the map with a linear scan, and reads through it with the layers that hold what they need.

use std::ops::Range;
use std::sync::Arc;

use camino::Utf8Path;
use pageserver_api::key::Key;
use pageserver_api::shard::TenantShardId;
use proptest::prelude::*;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use super::{Layer, LayerMap, Violation, invariants};
use crate::resources::Resources;
use crate::tenant::storage_layer::{LayerIdentity, PersistentLayerDesc};

const KEYS: u32 = 24;
const LSNS: u64 = 60;

/// The identity of no file.
const IDENTITY: LayerIdentity = LayerIdentity { file_id: 1, tail_offset: 4096, filter_blocks: 0 };

fn key(n: u32) -> Key {
    Key { field6: n, ..Key::MIN }
}

fn ids() -> (TenantShardId, TimelineId) {
    (TenantShardId::unsharded(TenantId::from([1; 16])), TimelineId::from([2; 16]))
}

fn delta(keys: Range<Key>, lsns: Range<u64>) -> PersistentLayerDesc {
    let (tenant, timeline) = ids();
    PersistentLayerDesc::new_delta(tenant, timeline, keys, Lsn(lsns.start)..Lsn(lsns.end), 1)
}

fn image(keys: Range<Key>, lsn: u64) -> PersistentLayerDesc {
    let (tenant, timeline) = ids();
    PersistentLayerDesc::new_image(tenant, timeline, keys, Lsn(lsn), 1)
}

fn layers(descs: &[PersistentLayerDesc]) -> Vec<Arc<Layer>> {
    descs
        .iter()
        .map(|desc| Arc::new(Layer::new(&Resources::default(), Utf8Path::new("/t"), desc.clone(), 1, IDENTITY)))
        .collect()
}

/// Arbitrary layers, from which [`consistent`] drops those that would break the invariants.
fn drawn() -> impl Strategy<Value = Vec<PersistentLayerDesc>> {
    let keys = (0..KEYS, 1..KEYS).prop_map(|(start, len)| key(start)..key(start + len));
    let keyed = (any::<bool>(), keys, 1..LSNS, 1..12u64).prop_map(|(is_delta, keys, lsn, len)| match is_delta {
        true => delta(keys, lsn..lsn + len),
        false => image(keys, lsn),
    });
    let cuts = prop::collection::btree_set(LSNS / 2..LSNS, 0..5);
    (prop::collection::vec(keyed, 0..30), cuts).prop_map(|(mut descs, cuts)| {
        let cuts: Vec<u64> = cuts.into_iter().collect();
        descs.splice(0..0, cuts.windows(2).map(|cut| delta(Key::MIN..Key::MAX, cut[0]..cut[1])));
        descs
    })
}

fn consistent() -> impl Strategy<Value = Vec<PersistentLayerDesc>> {
    drawn().prop_map(|descs| {
        let mut kept: Vec<PersistentLayerDesc> = Vec::new();
        for desc in descs {
            kept.push(desc);
            if invariants::check(kept.iter()).is_err() {
                kept.pop();
            }
        }
        kept
    })
}

/// The map's rule, by linear scan: which layer to read for one key, and down to which LSN.
fn scan(descs: &[PersistentLayerDesc], key: Key, end: Lsn) -> Option<(PersistentLayerDesc, Lsn)> {
    let newest = |is_delta: bool| {
        let covering = descs.iter().filter(|d| d.is_delta == is_delta && d.key_range.contains(&key));
        covering.filter(|d| d.lsn_range.start < end).max_by_key(|d| d.lsn_range.start)
    };
    match (newest(true), newest(false)) {
        (None, None) => None,
        (Some(delta), None) => Some((delta.clone(), delta.lsn_range.start)),
        (None, Some(image)) => Some((image.clone(), image.lsn_range.start)),
        (Some(delta), Some(image)) => {
            let newer_versions = delta.lsn_range.end > image.lsn_range.end && image.lsn_range.end < end;
            match newer_versions {
                true => Some((delta.clone(), delta.lsn_range.start.max(image.lsn_range.end))),
                false => Some((image.clone(), image.lsn_range.start)),
            }
        }
    }
}

/// The layers that a read of `key` below `end` visits, each with the LSNs taken from it.
fn walk(map: &LayerMap, key: Key, mut end: Lsn) -> Vec<(PersistentLayerDesc, Range<Lsn>)> {
    let mut visits = Vec::new();
    while let Some(result) = map.search(&(key..key.next()), end).pop() {
        visits.push((result.layer.desc().clone(), result.lsn_floor..end));
        if !result.layer.desc().is_delta {
            break;
        }
        end = result.lsn_floor;
    }
    visits
}

proptest! {
    #[test]
    fn search_gives_what_a_linear_scan_gives(
        descs in consistent(),
        start in 0..KEYS,
        len in 0..2 * KEYS,
        end in 1..80u64,
    ) {
        let map = LayerMap::new(layers(&descs)).unwrap();
        prop_assert_eq!(map.len(), descs.len());
        let keys = key(start)..key(start + len);
        let results = map.search(&keys, Lsn(end));
        for pair in results.windows(2) {
            prop_assert!(pair[0].keys.end <= pair[1].keys.start);
        }
        let inside = |part: &Range<Key>| part.start >= keys.start && part.end <= keys.end && !part.is_empty();
        prop_assert!(results.iter().all(|result| inside(&result.keys)));
        for n in start..start + len {
            let found = results.iter().find(|result| result.keys.contains(&key(n)));
            let found = found.map(|result| (result.layer.desc().clone(), result.lsn_floor));
            prop_assert_eq!(found, scan(&descs, key(n), Lsn(end)), "key {}", n);
        }
    }

    #[test]
    fn a_walk_takes_every_version_once_down_to_the_newest_image(descs in consistent(), n in 0..KEYS, end in 1..80u64) {
        let map = LayerMap::new(layers(&descs)).unwrap();
        let visits = walk(&map, key(n), Lsn(end));
        let covering = || descs.iter().filter(|d| d.key_range.contains(&key(n)));
        let image = covering().filter(|d| !d.is_delta && d.lsn_range.start < Lsn(end)).map(|d| d.lsn_range.start).max();
        for lsn in (0..end).map(Lsn).filter(|lsn| image.is_none_or(|image| *lsn > image)) {
            let holder = covering().find(|d| d.is_delta && d.lsn_range.contains(&lsn));
            let takes = |d: &PersistentLayerDesc, lsns: &Range<Lsn>| {
                d.is_delta && lsns.contains(&lsn) && d.lsn_range.contains(&lsn)
            };
            let taken: Vec<_> = visits.iter().filter(|(d, lsns)| takes(d, lsns)).collect();
            prop_assert_eq!(taken.len(), usize::from(holder.is_some()), "LSN {}", lsn);
            prop_assert_eq!(taken.first().map(|(d, _)| d), holder);
        }
        let read_image = visits.iter().find(|(d, _)| !d.is_delta).map(|(d, _)| d.lsn_range.start);
        prop_assert_eq!(read_image, image);
        prop_assert!(visits.iter().all(|(d, lsns)| !d.is_delta || image.is_none_or(|image| lsns.start > image)));
    }

    #[test]
    fn updates_give_the_map_built_anew(
        descs in consistent(),
        removed in prop::collection::vec(any::<bool>(), 40),
        end in 1..80u64,
    ) {
        let all = layers(&descs);
        let numbered = all.iter().cloned().enumerate();
        let (gone, kept): (Vec<_>, Vec<_>) = numbered.partition(|(at, layer)| removed[*at] && !layer.desc().is_l0());
        let gone: Vec<_> = gone.into_iter().map(|(_, layer)| layer).collect();
        let full = LayerMap::new(all).unwrap();
        let fewer = full.replaced(&gone, Vec::new()).unwrap();
        if let Some(layer) = gone.first() {
            let again = fewer.replaced(std::slice::from_ref(layer), Vec::new()).unwrap_err();
            prop_assert_eq!(again, Violation::Missing(layer.desc().layer_name().to_string()));
        }
        let anew = LayerMap::new(kept.into_iter().map(|(_, layer)| layer).collect()).unwrap();
        let again = fewer.replaced(&[], gone).unwrap();
        let answer = |map: &LayerMap| format!("{:?}", map.search(&(Key::MIN..Key::MAX), Lsn(end)));
        prop_assert_eq!(answer(&fewer), answer(&anew));
        prop_assert_eq!(answer(&again), answer(&full));
    }

    #[test]
    fn adding_l0_layers_one_by_one_gives_the_map_built_at_once(descs in consistent(), end in 1..80u64) {
        // Layers record when they were created.
        env::clock::freeze_thread();
        let (l0, keyed): (Vec<_>, Vec<_>) = layers(&descs).into_iter().partition(|layer| layer.desc().is_l0());
        let mut grown = LayerMap::new(keyed).unwrap();
        for layer in l0 {
            grown = grown.with_l0(layer).unwrap();
        }
        let at_once = LayerMap::new(layers(&descs)).unwrap();
        let answer = |map: &LayerMap| format!("{:?}", map.search(&(Key::MIN..Key::MAX), Lsn(end)));
        prop_assert_eq!(answer(&grown), answer(&at_once));
        prop_assert_eq!(grown.delta_end(), descs.iter().filter(|d| d.is_delta).map(|d| d.lsn_range.end).max());
    }

    #[test]
    fn overlaps_are_found_as_by_comparing_all_pairs(descs in drawn()) {
        let overlap = |a: &PersistentLayerDesc, b: &PersistentLayerDesc| {
            a.is_delta == b.is_delta
                && a.key_range.start < b.key_range.end && b.key_range.start < a.key_range.end
                && a.lsn_range.start < b.lsn_range.end && b.lsn_range.start < a.lsn_range.end
        };
        let pairs = descs.iter().enumerate().any(|(at, a)| descs[..at].iter().any(|b| overlap(a, b)));
        prop_assert_eq!(invariants::disjoint(descs.iter()).is_err(), pairs);
    }
}

#[test]
fn violations_are_named() {
    let twice = [image(key(1)..key(2), 5), image(key(1)..key(2), 5)];
    assert!(matches!(LayerMap::new(layers(&twice)), Err(Violation::Duplicate(_))));
    assert!(matches!(LayerMap::new(layers(&[image(key(2)..key(2), 5)])), Err(Violation::Empty(_))));
    assert!(matches!(LayerMap::new(layers(&[delta(key(1)..key(2), 5..5)])), Err(Violation::Empty(_))));
    let all = Key::MIN..Key::MAX;
    let gap = [delta(all.clone(), 5..8), delta(all.clone(), 9..10)];
    assert!(matches!(LayerMap::new(layers(&gap)), Err(Violation::Gap { expected: Lsn(8), .. })));
    let map = LayerMap::new(layers(&gap[..1])).unwrap();
    assert!(matches!(map.with_l0(layers(&gap[1..]).remove(0)), Err(Violation::Gap { .. })));
    assert_eq!(invariants::within_consistent(gap.iter(), Lsn(9)), Ok(()));
    assert!(matches!(invariants::within_consistent(gap.iter(), Lsn(8)), Err(Violation::BeyondConsistent { .. })));
}

#[test]
fn an_empty_map_answers_nothing() {
    let map = LayerMap::default();
    assert!(map.is_empty() && map.search(&(Key::MIN..Key::MAX), Lsn::MAX).is_empty());
}
