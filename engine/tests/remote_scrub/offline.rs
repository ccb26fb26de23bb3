//! Scrubs of a directory that no server uses, with its bucket.

use engine::tenant::scrub::{Kind, Options, Place, Report};
use engine::tenant::warm::HotList;
use errors::ErrorKind;
use remote_storage::RemotePath;
use utils::lsn::Lsn;

use crate::world::{DELTAS, World, generation, looking, repairing};

/// Place and kind of all findings, sorted.
pub fn found(report: &Report) -> Vec<(Place, Kind)> {
    let mut found: Vec<(Place, Kind)> = report.findings.iter().map(|it| (it.place, it.kind)).collect();
    found.sort();
    found
}

/// Checks that a scrub finds exactly `expected`, that a repairing one fixes it, and that nothing is left to find.
pub async fn found_and_repaired(world: &World, what: &str, expected: &[(Place, Kind)]) {
    let report = world.scrub(looking()).await;
    assert_eq!(found(&report), expected, "{what}: {report:?}");
    assert_eq!(report.fixed(), 0, "{what}: nothing is changed unasked");
    assert!(!report.is_sound() || expected.iter().all(|(_, kind)| *kind == Kind::Orphan), "{what}");
    let repaired = world.scrub(repairing()).await;
    assert_eq!(found(&repaired), expected, "{what}");
    assert_eq!(repaired.fixed(), expected.len(), "{what}: {repaired:?}");
    assert!(repaired.is_sound() && repaired.lost.is_empty(), "{what}: {repaired:?}");
    let after = world.scrub(looking()).await;
    assert_eq!(found(&after), [], "{what}: {after:?}");
    println!("{what}: found {expected:?}, repaired");
}

#[tokio::test]
async fn a_sound_store_has_nothing_to_find() {
    let world = World::new().await;
    let report = world.scrub(looking()).await;
    assert!(report.is_sound() && report.findings.is_empty(), "{report:?}");
    let layers = DELTAS + 2;
    assert_eq!((report.timelines, report.files, report.objects), (1, layers, layers));
    let bytes: u64 = world.manifest().await.layers.iter().map(|layer| layer.file_size).sum();
    assert_eq!(report.bytes, 2 * bytes);
}

#[tokio::test]
async fn local_damage_of_every_kind_is_repaired_from_the_bucket() {
    let world = World::new().await;
    let names = world.layer_names().await;
    let (image, delta) = (&names[0], &names[3]);
    for (name, at) in [(image, 40), (image, 5000), (delta, 17), (delta, 4096 * 3 + 9), (delta, usize::MAX)] {
        world.flip_file(name, at);
        found_and_repaired(&world, "a flipped bit of a layer", &[(Place::Local, Kind::Damaged)]).await;
    }
    for len in [0, 1000, 4096, 8192] {
        std::fs::write(world.dir().join(delta), vec![0; len]).unwrap();
        found_and_repaired(&world, "a layer cut short", &[(Place::Local, Kind::Damaged)]).await;
    }
    std::fs::copy(world.dir().join(&names[4]), world.dir().join(delta)).unwrap();
    found_and_repaired(&world, "another layer's file", &[(Place::Local, Kind::Damaged)]).await;
    for at in [0, 9, 70, usize::MAX] {
        world.flip_file("manifest", at);
        found_and_repaired(&world, "a flipped bit of the manifest", &[(Place::Local, Kind::Damaged)]).await;
    }
    let timeline = world.open().await;
    world.compare(&timeline, world.last).await;
    timeline.shutdown().await;
}

#[tokio::test]
async fn a_layer_that_is_only_in_the_bucket_is_no_damage() {
    let world = World::new().await;
    std::fs::remove_file(world.dir().join(&world.layer_names().await[2])).unwrap();
    let report = world.scrub(looking()).await;
    assert!(report.findings.is_empty() && report.files == DELTAS + 1, "{report:?}");
}

#[tokio::test]
async fn objects_are_verified_and_repaired_from_good_files() {
    let world = World::new().await;
    let names = world.layer_names().await;
    for (number, name) in names.iter().enumerate() {
        world.flip_object(&world.object(name), 4096 * (number % 3) + 11).await;
        found_and_repaired(&world, "a flipped bit of an object", &[(Place::Bucket, Kind::Damaged)]).await;
    }
    let (one, other) = (world.object(&names[3]), world.object(&names[4]));
    let (bytes, others) = (world.get(&one).await, world.get(&other).await);
    world.put(&one, &others).await;
    world.put(&other, &bytes).await;
    found_and_repaired(&world, "two objects swapped", &[(Place::Bucket, Kind::Damaged); 2]).await;
    world.put(&one, &bytes[..8192]).await;
    found_and_repaired(&world, "an object cut short", &[(Place::Bucket, Kind::Damaged)]).await;
    world.storage.delete(&[other]).await.unwrap();
    found_and_repaired(&world, "an object removed", &[(Place::Bucket, Kind::Missing)]).await;
}

#[tokio::test]
async fn orphans_are_removed_only_if_nobody_may_need_them() {
    let world = World::new().await;
    let delta = world.layer_names().await[3].clone();
    let bytes = world.get(&world.object(&delta)).await;
    // Copies of the layer under an older generation, and under one that was not given out yet.
    let (old, newer) = (delta.replace("-v2-00000001", "-v2-00000000"), delta.replace("-v2-00000001", "-v2-00000007"));
    world.put(&world.object(&old), &bytes).await;
    std::fs::write(world.dir().join(&old), &bytes[..]).unwrap();
    std::fs::write(world.dir().join("x.___temp"), b"").unwrap();
    let grace = Options { grace: std::time::Duration::from_secs(3600), ..repairing() };
    assert_eq!(found(&world.scrub(Options { delete_orphans: false, ..grace }).await).len(), 2, "the young one is none");
    let orphan = [(Place::Local, Kind::Orphan), (Place::Local, Kind::Orphan), (Place::Bucket, Kind::Orphan)];
    world.put(&world.object(&newer), &bytes).await;
    // The newer one reveals missing generations: then nothing is touched, because whoever holds them may need it.
    let report = world.scrub(repairing()).await;
    assert_eq!((report.count(Kind::Missing), report.count(Kind::Orphan), report.fixed()), (6, 3, 0), "{report:?}");
    world.get(&world.object(&newer)).await;
    world.get(&world.object(&old)).await;
    world.storage.delete(&[world.object(&newer)]).await.unwrap();
    found_and_repaired(&world, "files and an object that nothing names", &orphan).await;
    // An index part superseded by a newer one.
    let index = world.get(&RemotePath::index_part(&world.tenant, &world.timeline, 1)).await;
    world.put(&RemotePath::index_part(&world.tenant, &world.timeline, 0), &index).await;
    found_and_repaired(&world, "an index part of an older generation", &[(Place::Bucket, Kind::Orphan)]).await;
}

#[tokio::test]
async fn writes_that_a_killed_process_had_begun_are_removed_once_they_are_old() {
    let Some((world, root)) = World::new().await.in_directory().await else { return };
    let hour = std::time::Duration::from_secs(3600);
    let object = root.join(world.object(&world.layer_names().await[3]).to_string());
    let generation = root.join(RemotePath::generation(&world.tenant, 1).to_string());
    let old = [&object, &generation].map(|path| camino::Utf8PathBuf::from(format!("{path}#1")));
    let (young, other) = (format!("{object}#2"), format!("{object}#draft"));
    let modified = std::time::SystemTime::now() - 2 * hour;
    for path in old.iter().map(|path| path.as_str()).chain([young.as_str(), other.as_str()]) {
        std::fs::write(path, b"a part").unwrap();
        let file = std::fs::File::options().write(true).open(path).unwrap();
        if path != young {
            file.set_modified(modified).unwrap();
        }
    }
    let there = || old.iter().filter(|path| path.exists()).count();
    let grace = Options { grace: hour, ..looking() };
    assert_eq!(found(&world.scrub(grace).await), [(Place::Bucket, Kind::Orphan); 2]);
    assert_eq!(there(), 2, "nobody wanted them removed");
    let report = world.scrub(Options { delete_orphans: true, ..grace }).await;
    assert!(report.findings.len() == 2 && report.findings.iter().all(|it| it.fixed && it.bytes == 6), "{report:?}");
    assert_eq!(there(), 0);
    assert!(std::fs::exists(&young).unwrap(), "somebody may be writing it");
    assert!(std::fs::exists(&other).unwrap() && object.exists() && generation.exists(), "these are no such writes");
    assert_eq!(found(&world.scrub(grace).await), []);
}

#[tokio::test]
async fn a_damaged_index_part_is_found() {
    let world = World::new().await;
    for at in [0, 13, 100, usize::MAX] {
        let path = RemotePath::index_part(&world.tenant, &world.timeline, 1);
        let good = world.get(&path).await;
        world.flip_object(&path, at).await;
        found_and_repaired(&world, "a flipped bit of an index part", &[(Place::Bucket, Kind::Damaged)]).await;
        assert!(world.get(&path).await == good);
    }
    world.put(&RemotePath::generation(&world.tenant, 1), b"\0\0").await;
    let report = world.scrub(looking()).await;
    assert_eq!(found(&report), [(Place::Bucket, Kind::Damaged)]);
    assert!(report.findings[0].name.ends_with("generations/00000001"));
}

#[tokio::test]
async fn what_has_no_good_copy_is_told_with_its_lsn() {
    let world = World::new().await;
    let delta = world.layer_names().await[5].clone();
    world.flip_file(&delta, 5000);
    world.flip_object(&world.object(&delta), 9000).await;
    let report = world.scrub(repairing()).await;
    assert_eq!(found(&report), [(Place::Local, Kind::Damaged), (Place::Bucket, Kind::Damaged)]);
    assert!(!report.is_sound() && report.fixed() == 0);
    let start = delta.split("__").nth(1).and_then(|lsns| u64::from_str_radix(lsns.split('-').next()?, 16).ok());
    assert_eq!(report.lost.len(), 1);
    assert_eq!((report.lost[0].from_lsn, &report.lost[0].layer), (Lsn(start.unwrap()), &delta));
}

#[tokio::test]
async fn nothing_of_a_newer_owner_is_changed() {
    let world = World::new().await;
    let delta = world.layer_names().await[3].clone();
    world.flip_object(&world.object(&delta), 5000).await;
    world.put(&RemotePath::generation(&world.tenant, 2), &generation()).await;
    let refused = world.scrub_holding(repairing(), Some(1), Vec::new()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    let report = world.scrub(looking()).await;
    assert_eq!(found(&report), [(Place::Bucket, Kind::Damaged)], "still as it was");
}

#[tokio::test]
async fn a_damaged_list_of_hot_layers_is_removed() {
    let world = World::new().await;
    let mut list = HotList::default();
    list.note((world.timeline, world.layer_names().await[3].clone()), 5);
    let bytes = list.encode().unwrap();
    let (file, object) =
        (world.conf.tenant_path(&world.tenant).join("hot-layers"), RemotePath::hot_layers(&world.tenant));
    std::fs::write(&file, &bytes).unwrap();
    world.put(&object, &bytes).await;
    assert!(world.scrub(looking()).await.findings.is_empty());
    std::fs::write(&file, &bytes[1..]).unwrap();
    found_and_repaired(&world, "a damaged list of hot layers", &[(Place::Local, Kind::Damaged)]).await;
    world.flip_object(&object, 30).await;
    found_and_repaired(&world, "a damaged list in the bucket", &[(Place::Bucket, Kind::Damaged)]).await;
}
