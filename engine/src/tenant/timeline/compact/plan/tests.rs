use camino::Utf8Path;
use layer_format::index::{IndexEntry, IndexPageBuilder};
use pageserver_api::shard::TenantShardId;
use utils::id::{TenantId, TimelineId};

use super::*;
use crate::resources::Resources;
use crate::tenant::storage_layer::{LayerIdentity, PersistentLayerDesc};

const MIB: u64 = 1 << 20;

fn policy() -> CompactionPolicy {
    CompactionPolicy { file_bytes: 8 * MIB, job_bytes: 128 * MIB, ..CompactionPolicy::ON }
}

fn key(n: u32) -> Key {
    Key { field6: n, ..Key::MIN }
}

/// A layer of keys, LSNs and a number of MiB; with one LSN it is an image.
fn layer(id: u64, keys: Range<u32>, lsns: Range<u64>, mib: u64) -> Arc<Layer> {
    let (tenant, timeline) = (TenantShardId::unsharded(TenantId::from([1; 16])), TimelineId::from([2; 16]));
    let keys = key(keys.start)..key(keys.end);
    let desc = match lsns.end - lsns.start {
        1 => PersistentLayerDesc::new_image(tenant, timeline, keys, Lsn(lsns.start), mib * MIB),
        _ => PersistentLayerDesc::new_delta(tenant, timeline, keys, Lsn(lsns.start)..Lsn(lsns.end), mib * MIB),
    };
    Arc::new(Layer::new(&Resources::default(), Utf8Path::new("/t"), desc, 1, indexed_by(id, mib * MIB, 1)))
}

/// A file of so many bytes with so many index pages, of which each takes two blocks; fences and the footer take two
/// more.
fn indexed_by(file_id: u64, bytes: u64, pages: u64) -> LayerIdentity {
    LayerIdentity { file_id, tail_offset: bytes - 4096 * (2 * pages + 2), filter_blocks: 0 }
}

/// What is due at cutoff 100 of two cells of 10 MiB with as many MiB of versions below the cutoff, the first of which
/// are in file 3, and those of the second in file 4.
fn folded(mib: [u64; 2], history: u64, pinned: &[u64], known: &Known) -> Option<Due> {
    let layers = [
        layer(1, 0..10, 10..11, 10),
        layer(2, 10..20, 10..11, 10),
        layer(3, 0..10, 11..101, mib[0]),
        layer(4, 10..20, 11..101, mib[1]),
        // It goes on above the cutoff, and stays.
        layer(5, 10..20, 101..300, 50),
    ];
    let stacks = stacks(layers.iter().filter(|layer| layer.desc().lsn_range.start <= Lsn(100)));
    let pinned = pinned.iter().copied().collect();
    let below = Below { stacks, cutoff: Lsn(100), pinned, history: history * MIB };
    fold(&below, &Weights::default(), known, &policy())
}

#[test]
fn images_at_the_cutoff_are_due_where_that_gives_back_much() {
    let keys = |due: Option<Due>| due.map(|due| (due.keys.start.field6, due.keys.end.field6));
    let good = Known::default();
    assert_eq!(keys(folded([3, 2], 0, &[], &good)), None, "5 of 20 MiB are not worth it yet");
    assert_eq!(keys(folded([4, 2], 0, &[], &good)), Some((0, 20)));
    assert_eq!(keys(folded([4, 2], 20, &[], &good)), None, "there is much history that stays anyway");
    assert_eq!(keys(folded([20, 1], 0, &[], &good)), Some((0, 10)), "the second gives back less than an eighth");
    assert_eq!(keys(folded([2, 20], 0, &[], &good)), Some((10, 20)), "the one that gives back most comes first");
    assert_eq!(keys(folded([20, 20], 0, &[3], &good)), Some((10, 20)), "a branch needs the first");
    assert_eq!(keys(folded([20, 20], 0, &[3, 4], &good)), None);
}

#[test]
fn images_of_pages_that_compress_well_are_due_later() {
    let (tenant, timeline) = (TenantShardId::unsharded(TenantId::from([1; 16])), TimelineId::from([2; 16]));
    let due = |pages: u64, changed: u64| {
        let desc = PersistentLayerDesc::new_image(tenant, timeline, key(0)..key(10), Lsn(10), 20 * MIB);
        let identity = indexed_by(1, 20 * MIB, pages);
        let base = Arc::new(Layer::new(&Resources::default(), Utf8Path::new("/t"), desc, 1, identity));
        assert_eq!(u64::from(index_pages(base.identity(), 20 * MIB)), pages);
        let layers = [base, layer(2, 0..10, 11..101, changed)];
        image(&stacks(layers.iter()), &Weights::default(), &Known::default(), &policy()).map(|due| due.bytes / MIB)
    };
    // 3,000 pages to 20 MiB: half of that has to change.
    assert_eq!((due(4, 9), due(4, 10)), (None, Some(30)));
    // 40,000 pages to 20 MiB are as much work as 78.
    assert_eq!((due(41, 10), due(41, 38), due(41, 40)), (None, None, Some(60)));
}

#[test]
fn an_index_page_lists_as_many_images_as_is_assumed() {
    for len in [30, 300, 700, 3000, 8192] {
        let mut page = IndexPageBuilder::default();
        let entry = |n: u32| IndexEntry {
            key: key(n).to_compact(),
            lsn: Lsn(8),
            position: 4096 + u64::from(n) * len,
            len: (len - u64::from(n % 7)) as u32,
            flag: true,
        };
        let listed = (0..).take_while(|n| page.push(entry(*n))).count() as u64;
        assert!((IMAGES_PER_INDEX_PAGE..2 * IMAGES_PER_INDEX_PAGE).contains(&listed), "{listed} of {len} bytes");
    }
}

#[test]
fn no_job_is_made_of_what_cannot_be_read() {
    let damaged = |id| Known { damaged: HashSet::from([id]), ..Known::default() };
    let first = |due: Option<Due>| due.map(|due| due.keys.start.field6);
    assert_eq!(first(folded([20, 10], 0, &[], &Known::default())), Some(0));
    assert_eq!(first(folded([20, 10], 0, &[], &damaged(3))), Some(10));
    assert_eq!(first(folded([20, 10], 0, &[], &damaged(1))), Some(10));
    let unbuildable = Known { quarantined: vec![key(5)], ..Known::default() };
    assert_eq!(first(folded([20, 10], 0, &[], &unbuildable)), Some(10));
    let layers: Vec<Arc<Layer>> = (0..8).map(|n| layer(n, 0..10, 11 + 10 * n..21 + 10 * n, 1)).collect();
    let map = LayerMap::new(layers).unwrap();
    let stacks = stacks(map.iter());
    let merged = |known: &Known| match merge(&map, &stacks, known, &policy()) {
        Some(Job::Merge(layers)) => layers.iter().map(|layer| layer.identity().file_id).collect(),
        other => panic!("{other:?}"),
    };
    let all: Vec<u64> = merged(&Known::default());
    assert!(all.contains(&0) || all.contains(&3), "{all:?}");
    let others: Vec<u64> = merged(&damaged(all[1]));
    assert!(!others.is_empty() && !others.contains(&all[1]), "{others:?}");
}

#[test]
fn jobs_are_no_larger_than_a_small_disk_allows() {
    let of_layers = |job: Option<Job>| match job {
        Some(Job::Sort(layers) | Job::Merge(layers)) => Some(layers.len()),
        None => None,
        other => panic!("{other:?}"),
    };
    let small = |mib: u64| policy().within(mib * MIB);
    let l0: Vec<Arc<Layer>> = (0..8).map(|n| layer(n, 0..10, 11 + 10 * n..21 + 10 * n, 4)).collect();
    assert_eq!(of_layers(sort(&l0, 4, &policy().within(u64::MAX))), Some(8));
    assert_eq!(of_layers(sort(&l0, 4, &small(64))), Some(4), "a quarter of the disk");
    assert_eq!(of_layers(sort(&l0, 4, &small(8))), Some(1), "one cannot be divided");

    let map = LayerMap::new(l0).unwrap();
    let (stacks, known) = (stacks(map.iter()), Known::default());
    let merged = |policy: &CompactionPolicy| of_layers(merge(&map, &stacks, &known, policy));
    assert!(merged(&policy()).unwrap() >= MERGED.start);
    assert_eq!(merged(&small(48)), Some(3));
    assert_eq!(merged(&small(47)), None, "three would take more than a quarter of the disk");

    let due = |policy: &CompactionPolicy| image(&stacks, &Weights::default(), &known, policy).unwrap().bytes;
    assert_eq!((due(&policy()), due(&small(64))), (32 * MIB, 16 * MIB));
}
