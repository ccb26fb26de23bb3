//! How opening a timeline deals with files that are missing, damaged, foreign, or left over.

use crate::stack::{IMPORT_LSN, Model, config, context, import, keys, new_timeline, put_record};
use camino::{Utf8Path, Utf8PathBuf};
use camino_tempfile::{Utf8TempDir, tempdir};
use engine::config::PageServerConf;
use engine::tenant::timeline::{NewTimeline, Timeline};
use engine::tenant::{find_single_timeline, list_timelines};
use errors::{ErrorKind, StorageError};
use pageserver_api::key::{CHECKPOINT_KEY, Key};
use pageserver_api::keyspace::KeySpace;
use pageserver_api::value::Value;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

/// A closed timeline with three L0 layers on top of two image layers.
struct Stored {
    _dir: Utf8TempDir,
    conf: &'static PageServerConf,
    new: NewTimeline,
    model: Model,
    path: Utf8PathBuf,
}

const LAST: Lsn = Lsn(IMPORT_LSN.0 + 30 * 8);

async fn stored() -> Stored {
    let dir = tempdir().unwrap();
    let conf = config(dir.path(), 1 << 20);
    let new = new_timeline();
    let (timeline, mut model) = import(conf, new).await.unwrap();
    for record in 1..=30u32 {
        let mut batch = SerializedValueBatch::default();
        let lsn = IMPORT_LSN + 8 * u64::from(record);
        put_record(&mut model, &mut batch, lsn, &[(record as usize, record * 31)]);
        timeline.put_batch(batch, &context()).await.unwrap();
        timeline.finish_write(lsn, lsn - 8);
        if record % 10 == 0 {
            timeline.flush(&context()).await.unwrap();
        }
    }
    let info = timeline.info();
    assert_eq!((info.layers, info.l0_layers, info.disk_consistent_lsn), (5, 3, LAST));
    timeline.shutdown().await;
    let path = conf.timeline_path(&new.tenant_shard_id, &new.timeline_id);
    Stored { _dir: dir, conf, new, model, path }
}

impl Stored {
    async fn open(&self) -> Result<Timeline, StorageError> {
        Timeline::open(self.conf, self.new.tenant_shard_id, self.new.timeline_id, &context()).await
    }

    async fn open_error(&self) -> StorageError {
        self.open().await.map(drop).unwrap_err()
    }

    /// Names in the directory, sorted.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.path.read_dir_utf8().unwrap().map(|e| e.unwrap().file_name().into()).collect();
        names.sort();
        names
    }

    fn layers(&self) -> Vec<Utf8PathBuf> {
        self.names().iter().filter(|name| name.contains("-v2-")).map(|name| self.path.join(name)).collect()
    }

    async fn check(&self, timeline: &Timeline) {
        let found = timeline.get_vectored(&KeySpace::single(Key::MIN..Key::MAX), LAST, &context()).await.unwrap();
        let found: Vec<_> = found.into_iter().map(|(key, value)| (key, value.unwrap())).collect();
        let expected: Vec<_> = self.model.values(&(Key::MIN..Key::MAX), LAST).into_iter().collect();
        assert!(found == expected);
    }
}

#[tokio::test]
async fn everything_flushed_is_there_again() {
    let stored = stored().await;
    let timeline = stored.open().await.unwrap();
    let (info, record) = (timeline.info(), timeline.record_lsn());
    assert_eq!((record.last, record.prev), (LAST, LAST - 8));
    assert_eq!((info.disk_consistent_lsn, info.import_lsn, info.layers), (LAST, IMPORT_LSN, 5));
    assert_eq!((info.pg_version, info.system_identifier), (15, 7));
    stored.check(&timeline).await;
    timeline.shutdown().await;
}

#[tokio::test]
async fn leftovers_are_removed_and_strangers_are_not() {
    let stored = stored().await;
    let before = stored.names();
    let newer = stored.layers()[0].file_name().unwrap().replace("-v2-00000001", "-v2-00000002");
    let beyond =
        format!("{}-{}__{:016X}-{:016X}-v2-00000001-0000000000000007", Key::MIN, Key::MAX, LAST.0 + 1, LAST.0 + 9);
    for name in ["ephemeral-1-7", "x.___temp", "manifest.___temp", &newer, &beyond, "notes.txt"] {
        std::fs::write(stored.path.join(name), b"left").unwrap();
    }
    let timeline = stored.open().await.unwrap();
    stored.check(&timeline).await;
    timeline.shutdown().await;
    let mut expected = before;
    expected.push("notes.txt".to_owned());
    expected.sort();
    assert_eq!(stored.names(), expected);
}

#[tokio::test]
async fn a_missing_layer_is_named() {
    for number in 0..5 {
        let stored = stored().await;
        let layer = stored.layers()[number].clone();
        std::fs::remove_file(&layer).unwrap();
        let error = stored.open_error().await;
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(layer.as_str()) && error.to_string().contains("missing"), "{error}");
    }
}

#[tokio::test]
async fn a_layer_of_the_wrong_size_is_named() {
    let stored = stored().await;
    let layer = stored.layers()[0].clone();
    let bytes = std::fs::read(&layer).unwrap();
    for len in [0, 1, bytes.len() - 4096, bytes.len() - 1] {
        std::fs::write(&layer, &bytes[..len]).unwrap();
        let error = stored.open_error().await;
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(layer.as_str()), "{error}");
    }
    std::fs::write(&layer, [&bytes, [0; 4096].as_slice()].concat()).unwrap();
    assert_eq!(stored.open_error().await.kind(), ErrorKind::Corrupt);
    std::fs::write(&layer, &bytes).unwrap();
    stored.open().await.unwrap().shutdown().await;
}

#[tokio::test]
async fn a_damaged_layer_is_never_read_as_data() {
    let stored = stored().await;
    let mut noticed = 0;
    for layer in stored.layers() {
        let bytes = std::fs::read(&layer).unwrap();
        for at in (0..bytes.len()).step_by(509) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            std::fs::write(&layer, &damaged).unwrap();
            noticed += u32::from(stored.read_damaged(&layer, at).await);
        }
        std::fs::write(&layer, &bytes).unwrap();
    }
    println!("{noticed} of the flips were met by a read, and reported");
    assert!(noticed > 50);
}

impl Stored {
    /// Reads every key while byte `at` of `layer` is damaged: each value must be correct, or an error that names the
    /// file.
    async fn read_damaged(&self, layer: &Utf8Path, at: usize) -> bool {
        let check = |error: StorageError| {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{layer} byte {at}: {error}");
            assert!(error.to_string().contains(layer.as_str()), "{error}");
            true
        };
        // Opening reads the keys that redo depends on.
        let timeline = match self.open().await {
            Ok(timeline) => timeline,
            Err(error) => return check(error),
        };
        let mut noticed = false;
        for key in keys() {
            match timeline.get(key, LAST, &context()).await {
                Ok(value) => assert_eq!(Some(value), self.model.value(&key, LAST), "{layer} byte {at}"),
                Err(StorageError::MissingKey { .. }) => assert_eq!(self.model.value(&key, LAST), None),
                Err(error) => noticed = check(error),
            }
        }
        timeline.shutdown().await;
        noticed
    }
}

#[tokio::test]
async fn a_damaged_or_foreign_manifest_is_refused_and_nothing_is_removed() {
    let stored = stored().await;
    let manifest = stored.path.join("manifest");
    let bytes = std::fs::read(&manifest).unwrap();
    let before = stored.names();
    let mut damaged = bytes.clone();
    damaged[40] ^= 1;
    for content in [&damaged[..], &[], &bytes[..bytes.len() / 2]] {
        std::fs::write(&manifest, content).unwrap();
        let error = stored.open_error().await;
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(manifest.as_str()), "{error}");
    }
    let other = self::stored().await;
    std::fs::copy(other.path.join("manifest"), &manifest).unwrap();
    assert!(stored.open_error().await.to_string().contains("belongs to"));
    assert_eq!(stored.names(), before);
    std::fs::remove_file(&manifest).unwrap();
    assert_eq!(stored.open_error().await.kind(), ErrorKind::Gone);
}

#[tokio::test]
async fn a_timeline_is_open_once() {
    let stored = stored().await;
    let timeline = stored.open().await.unwrap();
    let error = stored.open_error().await;
    assert!(matches!(&error, StorageError::Invalid(_)) && error.to_string().contains(stored.path.as_str()), "{error}");
    timeline.shutdown().await;
    stored.open().await.unwrap().shutdown().await;
}

#[tokio::test]
async fn timelines_are_found() {
    let empty = tempdir().unwrap();
    let error = find_single_timeline(config(empty.path(), 1)).await.unwrap_err();
    assert!(error.to_string().contains("no timeline"), "{error}");

    let stored = stored().await;
    let ids = (stored.new.tenant_shard_id, stored.new.timeline_id);
    assert_eq!(find_single_timeline(stored.conf).await.unwrap(), ids);
    // An unfinished import is not a timeline.
    Timeline::prepare(stored.conf, ids.0, TimelineId::generate()).await.unwrap();
    std::fs::write(stored.conf.tenants_path().join("README"), b"").unwrap();
    assert_eq!(find_single_timeline(stored.conf).await.unwrap(), ids);
    let (second, _) = import(stored.conf, new_timeline()).await.unwrap();
    second.shutdown().await;
    assert_eq!(list_timelines(stored.conf).await.unwrap().len(), 2);
    let error = find_single_timeline(stored.conf).await.unwrap_err();
    assert!(error.to_string().contains("2 timelines"), "{error}");
}

#[tokio::test]
async fn an_import_is_refused_where_it_makes_no_sense() {
    let stored = stored().await;
    let again = Timeline::create(stored.conf, stored.new, Vec::new(), &context()).await;
    assert!(again.unwrap_err().to_string().contains("exists already"));

    let dir = tempdir().unwrap();
    let conf = config(dir.path(), 1);
    let new = new_timeline();
    Timeline::prepare(conf, new.tenant_shard_id, new.timeline_id).await.unwrap();
    let layer = |timeline_id, lsn| {
        use engine::tenant::storage_layer::PersistentLayerDesc;
        let desc = PersistentLayerDesc::new_image(new.tenant_shard_id, timeline_id, Key::MIN..Key::MAX, lsn, 1);
        vec![(desc, Utf8Path::new("/nowhere").to_owned())]
    };
    let foreign = Timeline::create(conf, new, layer(TimelineId::generate(), IMPORT_LSN), &context()).await;
    assert!(foreign.unwrap_err().to_string().contains("another timeline"));
    let late = Timeline::create(conf, new, layer(new.timeline_id, IMPORT_LSN + 1), &context()).await;
    assert!(late.unwrap_err().to_string().contains("beyond"));
}

#[tokio::test]
async fn writes_out_of_order_are_refused() {
    let stored = stored().await;
    let timeline = stored.open().await.unwrap();
    let put = |lsn| {
        let mut batch = SerializedValueBatch::default();
        batch.put_key(&CHECKPOINT_KEY, lsn, &Value::Image(bytes::Bytes::from_static(b"x"))).unwrap();
        batch
    };
    let error = timeline.put_batch(put(LAST), &context()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    timeline.put_batch(put(LAST + 8), &context()).await.unwrap();
    let error = timeline.flush(&context()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "values whose record has not ended: {error}");
    timeline.finish_write(LAST + 8, LAST);
    timeline.flush(&context()).await.unwrap();
    assert_eq!(timeline.get(CHECKPOINT_KEY, LAST + 8, &context()).await.unwrap(), "x");
    timeline.shutdown().await;
}

#[tokio::test]
async fn waiting_for_an_lsn_ends_with_it_or_with_the_timeline() {
    let stored = stored().await;
    let timeline = stored.open().await.unwrap();
    timeline.wait_for_lsn(LAST).await.unwrap();
    let waiter = |lsn| {
        let timeline = timeline.clone();
        tokio::spawn(async move { timeline.wait_for_lsn(lsn).await })
    };
    let (soon, never) = (waiter(LAST + 8), waiter(LAST + 16));
    tokio::task::yield_now().await;
    assert!(!soon.is_finished());
    timeline.finish_write(LAST + 8, LAST);
    soon.await.unwrap().unwrap();
    timeline.clone().shutdown().await;
    assert_eq!(never.await.unwrap().unwrap_err().kind(), ErrorKind::Shutdown);
    assert_eq!(timeline.get(Key::MIN, LAST, &context()).await.unwrap_err().kind(), ErrorKind::Shutdown);
}
