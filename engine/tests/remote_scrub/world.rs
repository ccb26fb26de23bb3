//! A timeline of several layers, on disk and in a bucket, for tests to damage.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use camino::Utf8PathBuf;
use camino_tempfile::Utf8TempDir;
use engine::config::{CompactionPolicy, PageServerConf};
use engine::tenant::scrub::{self, Options, Progress, Report, Subject};
use engine::tenant::storage_layer::RemoteObject;
use engine::tenant::timeline::{Manifest, Timeline};
use pageserver_api::key::Key;
use pageserver_api::shard::TenantShardId;
use remote_storage::{RemoteOptions, RemotePath, RemoteStorage, RemoteUrl, RequestClass, StoreSettings};
use utils::id::TimelineId;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::remote_support::{TestStore, test_store};
use crate::stack::{self, IMPORT_LSN, Model};

/// Layers that contain the history, besides two of the import.
pub const DELTAS: u64 = 5;
const RECORDS: u64 = 40;
const RECORD_LEN: u64 = 0x80;

pub struct World {
    pub conf: &'static PageServerConf,
    /// The same settings without the bucket.
    alone: &'static PageServerConf,
    pub storage: RemoteStorage,
    pub tenant: TenantShardId,
    pub timeline: TimelineId,
    pub model: Model,
    pub last: Lsn,
    _dir: Utf8TempDir,
    store: TestStore,
}

/// Options that change nothing.
pub fn looking() -> Options {
    Options { grace: Duration::ZERO, ..Options::default() }
}

/// Options that repair and remove everything possible.
pub fn repairing() -> Options {
    Options { repair: true, repair_bucket: true, delete_orphans: true, grace: Duration::ZERO }
}

/// The content of a generation's object.
pub fn generation() -> Vec<u8> {
    br#"{"owner": "test", "created": 1, "deleted": false, "void_through": 0}"#.to_vec()
}

impl World {
    /// The world with its bucket opened as a directory, as a server does; `None` if the bucket is not a directory.
    pub async fn in_directory(mut self) -> Option<(Self, Utf8PathBuf)> {
        let path = self.store.dir()?.to_owned();
        let settings = StoreSettings {
            url: RemoteUrl::Directory(path.clone()),
            name: format!("file://{path}"),
            endpoint: None,
            region: None,
            path_style: true,
            allow_http: false,
            sign_payload: true,
            credentials_file: None,
            scratch: None,
            options: RemoteOptions::default(),
        };
        let remote_storage = RemoteStorage::open(&settings).await.expect("opened");
        self.conf = Box::leak(Box::new(PageServerConf { remote_storage, ..self.conf.clone() }));
        Some((self, path))
    }

    /// A timeline that is not open anywhere, with everything in the bucket under generation 1.
    pub async fn new() -> Self {
        let dir = camino_tempfile::tempdir().expect("a directory");
        let store = test_store().await;
        let storage = store.storage.clone();
        let conf = PageServerConf::dummy_conf(dir.path().to_owned());
        let new = stack::new_timeline();
        let alone: &'static PageServerConf = Box::leak(Box::new(conf.clone()));
        let (timeline, mut model) = stack::import(alone, new).await.expect("imported");
        let (ctx, mut last) = (stack::context(), IMPORT_LSN);
        for layer in 0..DELTAS {
            let mut batch = SerializedValueBatch::default();
            for record in 0..RECORDS {
                let (lsn, seed) = (last + RECORD_LEN * (record + 1), (layer * RECORDS + record) as u32);
                let changes = [(record as usize, seed * 7919), (record as usize + 5, seed * 31 + 4)];
                stack::put_record(&mut model, &mut batch, lsn, &changes);
            }
            timeline.put_batch(batch, &ctx).await.expect("taken in");
            let end = last + RECORD_LEN * RECORDS;
            timeline.finish_write(end, end - RECORD_LEN);
            last = end;
            timeline.flush(&ctx).await.expect("flushed");
        }
        timeline.shutdown().await;
        let conf: &'static PageServerConf =
            Box::leak(Box::new(PageServerConf { remote_storage: Some(storage.clone()), ..conf }));
        let (tenant, timeline) = (new.tenant_shard_id, new.timeline_id);
        let world = Self { conf, alone, storage, tenant, timeline, model, last, _dir: dir, store };
        world.publish().await;
        world
    }

    /// What the disk has is in the bucket.
    pub async fn publish(&self) {
        let manifest = self.manifest().await;
        let manifest = Manifest { generation: 1, in_bucket: true, ..manifest };
        manifest.store(&self.dir()).await.expect("stored");
        self.put(&RemotePath::generation(&self.tenant, 1), &generation()).await;
        for name in self.layer_names().await {
            let bytes = std::fs::read(self.dir().join(&name)).expect("read");
            self.put(&self.object(&name), &bytes).await;
        }
        let index = manifest.encode().expect("encoded");
        self.put(&RemotePath::index_part(&self.tenant, &self.timeline, 1), &index).await;
    }

    pub fn dir(&self) -> Utf8PathBuf {
        self.conf.timeline_path(&self.tenant, &self.timeline)
    }

    pub async fn manifest(&self) -> Manifest {
        Manifest::load(&self.dir(), self.tenant, self.timeline).await.expect("a manifest")
    }

    /// Names of all layers, images first.
    pub async fn layer_names(&self) -> Vec<String> {
        let manifest = self.manifest().await;
        let layers = manifest
            .layers
            .iter()
            .map(|entry| entry.to_layer(&self.conf.resources, &self.dir(), self.tenant, self.timeline));
        let mut names: Vec<String> = layers.map(|layer| layer.path().file_name().expect("a name").to_owned()).collect();
        names.sort_by_key(|name| (name.contains('-') && name.matches('-').count() > 3, name.clone()));
        names
    }

    pub fn object(&self, layer: &str) -> RemotePath {
        RemotePath::layer(&self.tenant, &self.timeline, layer)
    }

    pub async fn put(&self, path: &RemotePath, bytes: &[u8]) {
        let bytes = Bytes::copy_from_slice(bytes);
        self.storage.put(RequestClass::Upload, path, bytes).await.expect("put");
    }

    pub async fn get(&self, path: &RemotePath) -> Bytes {
        self.storage.get(RequestClass::Read, path, u64::MAX).await.expect("got")
    }

    /// Flips a bit of an object.
    pub async fn flip_object(&self, path: &RemotePath, at: usize) {
        let mut bytes = self.get(path).await.to_vec();
        let at = at % bytes.len();
        bytes[at] ^= 0x10;
        self.put(path, &bytes).await;
    }

    /// Flips a bit of a file.
    pub fn flip_file(&self, name: &str, at: usize) {
        let path = self.dir().join(name);
        let mut bytes = std::fs::read(&path).expect("read");
        let at = at % bytes.len();
        bytes[at] ^= 0x10;
        std::fs::write(&path, bytes).expect("written");
    }

    /// Each request takes so long from now on.
    pub fn slow_down(&self, latency: Duration) {
        self.store.faults.set_latency(latency);
    }

    pub async fn scrub(&self, options: Options) -> Report {
        self.scrub_holding(options, None, Vec::new()).await.expect("scrubbed")
    }

    pub async fn scrub_holding(
        &self,
        options: Options,
        generation: Option<u32>,
        open: Vec<Timeline>,
    ) -> Result<Report, errors::StorageError> {
        let subject = Subject { conf: self.conf, tenant: self.tenant, exclusive: open.is_empty(), open, generation };
        scrub::scrub(&subject, options, &Arc::new(Progress::default())).await
    }

    /// Writes the timeline's origin, as its owner does after the first publication.
    pub async fn write_origin(&self) {
        let manifest = self.manifest().await;
        let origin = Manifest {
            wal_log_hints_changes: Vec::new(),
            disk_consistent_lsn: manifest.origin.import_lsn,
            prev_record_lsn: Lsn::INVALID,
            layers: Vec::new(),
            ..manifest
        };
        let bytes = origin.encode().expect("encoded");
        self.put(&RemotePath::origin(&self.tenant, &self.timeline, 1), &bytes).await;
    }

    pub fn index_part(&self) -> RemotePath {
        RemotePath::index_part(&self.tenant, &self.timeline, 1)
    }

    /// Removes the local disk's contents.
    pub fn lose_disk(&self) {
        std::fs::remove_dir_all(self.conf.tenant_path(&self.tenant)).expect("removed");
    }

    /// The contents of the index part.
    pub async fn index(&self) -> Manifest {
        Manifest::decode("index".into(), &self.get(&self.index_part()).await).expect("whole")
    }

    /// Opens the timeline as a server that has uploaded everything: every layer may be read from the bucket.
    pub async fn open(&self) -> Timeline {
        self.open_with(self.alone).await
    }

    /// The same, with layers that are sorted as soon as there are two.
    pub async fn open_to_compact(&self) -> Timeline {
        let compaction = CompactionPolicy { l0_layers: 2, ..CompactionPolicy::ON };
        self.open_with(Box::leak(Box::new(PageServerConf { compaction, ..self.alone.clone() }))).await
    }

    async fn open_with(&self, conf: &'static PageServerConf) -> Timeline {
        let timeline = Timeline::open(conf, self.tenant, self.timeline, &stack::context()).await.expect("opened");
        for layer in timeline.layer_files() {
            let path = self.object(layer.path().file_name().expect("a name"));
            layer.set_remote(RemoteObject { storage: self.storage.clone(), path });
        }
        timeline
    }

    /// Checks that all values as of `lsn` match the model.
    pub async fn compare(&self, timeline: &Timeline, lsn: Lsn) {
        let all = Key::MIN..Key::MAX;
        let expected: BTreeMap<Key, Bytes> = self.model.values(&all, lsn);
        for (key, value) in expected {
            let found = timeline.get(key, lsn, &stack::context()).await.expect("read");
            assert!(found == value, "key {key} at {lsn} differs");
        }
    }
}
