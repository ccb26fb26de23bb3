//! A bucket from which index parts or generations were removed, or in which they were replaced.

use std::time::Duration;

use engine::tenant::scrub::{Kind, Options, Place, Report};
use engine::tenant::timeline::Manifest;
use remote_storage::RemotePath;

use crate::offline::{found, found_and_repaired};
use crate::world::{World, generation, looking, repairing};

/// Buckets report times in whole seconds.
const LATER: Duration = Duration::from_millis(2100);

/// Scrubs as the server that holds the generation but could not open the timeline.
async fn as_owner(world: &World, options: Options) -> Report {
    world.scrub_holding(options, Some(1), Vec::new()).await.expect("scrubbed")
}

/// Checks that the index part has its former contents and that all its layers exist.
async fn is_as_before(world: &World, before: &Manifest) {
    let after = world.index().await;
    let sorted = |manifest: &Manifest| {
        let mut layers = manifest.layers.clone();
        layers.sort_by_key(|layer| (layer.lsns, layer.keys));
        layers
    };
    assert_eq!(sorted(&after), sorted(before));
    assert_eq!((after.origin, after.disk_consistent_lsn), (before.origin, before.disk_consistent_lsn));
    assert_eq!(after.wal_log_hints_changes, before.wal_log_hints_changes);
    assert!(as_owner(world, looking()).await.findings.is_empty());
}

#[tokio::test]
async fn an_index_part_that_was_removed_is_written_anew_from_the_manifest_on_disk() {
    let world = World::new().await;
    let before = world.index().await;
    world.storage.delete(&[world.index_part()]).await.unwrap();
    found_and_repaired(&world, "an index part removed", &[(Place::Bucket, Kind::Missing)]).await;
    is_as_before(&world, &before).await;
}

#[tokio::test]
async fn an_index_part_that_was_removed_is_written_anew_from_layers_alone() {
    for whats_wrong in ["removed", "damaged"] {
        let world = World::new().await;
        let before = world.index().await;
        world.write_origin().await;
        match whats_wrong {
            "removed" => world.storage.delete(&[world.index_part()]).await.unwrap(),
            _ => world.flip_object(&world.index_part(), 77).await,
        }
        world.lose_disk();
        let report = world.scrub(repairing()).await;
        assert!(!report.is_sound() && report.fixed() == 0, "nobody here owns the tenant: {report:?}");
        assert!(report.findings[0].reason.contains("--running"), "{report:?}");
        let report = as_owner(&world, repairing()).await;
        let kind = if whats_wrong == "removed" { Kind::Missing } else { Kind::Damaged };
        assert_eq!((found(&report), report.fixed()), (vec![(Place::Bucket, kind)], 1), "{report:?}");
        assert!(report.findings[0].reason.contains("7 layers up to LSN"), "{report:?}");
        is_as_before(&world, &before).await;
    }
}

#[tokio::test]
async fn what_cannot_be_known_is_not_guessed() {
    let world = World::new().await;
    world.storage.delete(&[world.index_part()]).await.unwrap();
    world.lose_disk();
    let report = as_owner(&world, repairing()).await;
    assert_eq!((found(&report), report.fixed()), (vec![(Place::Bucket, Kind::Missing)], 0));
    assert!(report.findings[0].reason.contains("not written down"), "{report:?}");
    // One of the layers is gone, too.
    let world = World::new().await;
    world.write_origin().await;
    let names = world.layer_names().await;
    world.storage.delete(&[world.index_part(), world.object(&names[4])]).await.unwrap();
    world.lose_disk();
    let report = as_owner(&world, repairing()).await;
    assert_eq!((found(&report), report.fixed()), (vec![(Place::Bucket, Kind::Missing)], 0));
    assert!(report.findings[0].reason.contains("what is before it is missing"), "{report:?}");
}

#[tokio::test]
async fn an_older_index_part_is_known_by_the_age_of_the_layers_that_it_does_not_name() {
    for has_disk in [true, false] {
        let world = World::new().await;
        let before = world.index().await;
        let mut older = before.clone();
        let last = older.layers.iter().map(|layer| layer.lsns.0).max().unwrap();
        older.layers.retain(|layer| layer.lsns.0 != last);
        older.disk_consistent_lsn = last - 1;
        if !has_disk {
            world.lose_disk();
        }
        tokio::time::sleep(LATER).await;
        world.put(&world.index_part(), &older.encode().unwrap()).await;
        let report = as_owner(&world, looking()).await;
        assert_eq!(found(&report), [(Place::Bucket, Kind::Damaged)], "{report:?}");
        let reason = &report.findings[0].reason;
        let (from, to) = (last - 1, before.disk_consistent_lsn);
        assert!(reason.contains(&from.to_string()) && reason.contains(&to.to_string()), "{reason}");
        // Layers that it does not name are not orphans, which a scrub could remove.
        let report = as_owner(&world, Options { repair_bucket: false, ..repairing() }).await;
        assert_eq!((found(&report), report.fixed()), (vec![(Place::Bucket, Kind::Damaged)], 0), "{report:?}");
        let report = as_owner(&world, repairing()).await;
        assert_eq!((found(&report), report.fixed()), (vec![(Place::Bucket, Kind::Damaged)], 1), "{report:?}");
        is_as_before(&world, &before).await;
    }
}

#[tokio::test]
async fn what_an_upload_left_that_did_not_end_is_not_taken_for_lost() {
    let world = World::new().await;
    let mut older = world.index().await;
    let last = older.layers.iter().map(|layer| layer.lsns.0).max().unwrap();
    older.layers.retain(|layer| layer.lsns.0 != last);
    older.disk_consistent_lsn = last - 1;
    world.put(&world.index_part(), &older.encode().unwrap()).await;
    tokio::time::sleep(LATER).await;
    let left = world.object(world.layer_names().await.last().unwrap());
    let bytes = world.get(&left).await;
    world.put(&left, &bytes).await;
    world.lose_disk();
    assert_eq!(found(&as_owner(&world, looking()).await), [(Place::Bucket, Kind::Orphan)]);
}

#[tokio::test]
async fn generations_that_were_removed_or_overwritten_are_found() {
    let world = World::new().await;
    let path = |number| RemotePath::generation(&world.tenant, number);
    for number in 2..=4 {
        world.put(&path(number), &generation()).await;
    }
    assert!(world.scrub(looking()).await.findings.is_empty());
    // A generation that is not the newest.
    world.storage.delete(&[path(2)]).await.unwrap();
    world.put(&path(3), b"{}").await;
    found_and_repaired(&world, "generations", &[(Place::Bucket, Kind::Damaged), (Place::Bucket, Kind::Missing)]).await;
    // The newest one: the owner of the tenant is unknown.
    for damage in ["{}", "{\"owner\": \"\", \"created\": 1, \"deleted\": false, \"void_through\": 0}", "\0"] {
        world.put(&path(4), damage.as_bytes()).await;
        let report = world.scrub(repairing()).await;
        assert_eq!((found(&report), report.fixed()), (vec![(Place::Bucket, Kind::Damaged)], 0), "{report:?}");
        assert!(report.findings[0].reason.contains("AttachedSingle"), "{report:?}");
    }
    // The server that holds it is certain.
    let report = world.scrub_holding(repairing(), Some(4), Vec::new()).await.unwrap();
    assert_eq!((found(&report), report.fixed()), (vec![(Place::Bucket, Kind::Damaged)], 1), "{report:?}");
    assert!(world.scrub(looking()).await.findings.is_empty());
}

#[tokio::test]
async fn the_newest_generation_is_missed_by_what_was_written_under_it() {
    let world = World::new().await;
    world.storage.delete(&[RemotePath::generation(&world.tenant, 1)]).await.unwrap();
    for told in [world.scrub(repairing()).await, as_owner(&world, repairing()).await] {
        assert_eq!((found(&told), told.fixed()), (vec![(Place::Bucket, Kind::Missing)], 0), "{told:?}");
        let reason = &told.findings[0].reason;
        assert!(reason.contains("under it") && reason.contains("AttachedSingle"), "{reason}");
    }
    world.lose_disk();
    let report = world.scrub(looking()).await;
    assert_eq!(found(&report), [(Place::Bucket, Kind::Missing)], "the bucket alone tells: {report:?}");
}
