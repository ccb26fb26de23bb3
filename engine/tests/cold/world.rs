//! Layers with easily distinguishable pages, on disk and in a bucket.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use camino::Utf8PathBuf;
use camino_tempfile::Utf8TempDir;
use engine::block_cache::BlockCache;
use engine::config::PageServerConf;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::layer_map::Layer;
use engine::tenant::storage_layer::inspect::LayerInspector;
use engine::tenant::storage_layer::{
    ImageLayerWriter, LayerIdentity, PersistentLayerDesc, ReconstructState, RemoteObject,
};
use engine::tenant::timeline::Timeline;
use errors::StorageError;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::shard::TenantShardId;
use remote_storage::{RemotePath, RequestClass};
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use virtual_file::fs;

use crate::store::Bucket;

pub const LSN: Lsn = Lsn(0x1000);
pub const PAGE: usize = 8192;

pub fn context() -> RequestContext {
    RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Download)
}

pub fn key(layer: u32, page: u32) -> Key {
    Key { field2: 1663, field3: 5, field4: 16384 + layer, field6: page, ..Key::MIN }
}

/// An incompressible page.
pub fn page(layer: u32, number: u32) -> Vec<u8> {
    let mut word = u64::from(layer) << 32 | u64::from(number) | 1 << 63;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    };
    (0..PAGE / 8).flat_map(|_| next().to_le_bytes()).collect()
}

/// A directory, a bucket, and the id of a timeline.
pub struct World {
    _dir: Utf8TempDir,
    pub conf: &'static PageServerConf,
    pub bucket: Bucket,
    pub tenant: TenantShardId,
    pub timeline: TimelineId,
}

/// A layer and what it was made from.
#[derive(Clone)]
pub struct Made {
    pub number: u32,
    pub pages: u32,
    pub desc: PersistentLayerDesc,
    pub identity: LayerIdentity,
    pub object: RemoteObject,
}

impl World {
    pub async fn new() -> Self {
        let dir = camino_tempfile::tempdir().expect("a directory");
        // Whole layers are downloaded only where a test asks for it.
        let conf = PageServerConf { prefetch_whole_after: 101, ..PageServerConf::dummy_conf(dir.path().to_owned()) };
        conf.configure_caches();
        let world = Self {
            _dir: dir,
            conf: Box::leak(Box::new(conf)),
            bucket: Bucket::default(),
            tenant: TenantShardId::unsharded(TenantId::generate()),
            timeline: TimelineId::generate(),
        };
        Timeline::prepare(world.conf, world.tenant, world.timeline).await.expect("a directory");
        world
    }

    /// Changes the limits, and drops everything cached in memory.
    pub fn limit(&self, change: impl FnOnce(&mut PageServerConf)) {
        let mut conf = self.conf.clone();
        change(&mut conf);
        conf.configure_caches();
        self.forget();
    }

    /// Drops everything cached in memory.
    pub fn forget(&self) {
        self.blocks().clear_memory();
    }

    pub fn blocks(&self) -> &BlockCache {
        &self.conf.resources.blocks
    }

    pub fn timeline_dir(&self) -> Utf8PathBuf {
        self.conf.timeline_path(&self.tenant, &self.timeline)
    }

    /// Writes a layer of `pages` pages and uploads it. The file is also kept under its own name.
    pub async fn make(&self, number: u32, pages: u32) -> Result<Made, StorageError> {
        let ctx = context();
        let keys = key(number, 0)..key(number + 1, 0);
        let mut writer = ImageLayerWriter::create(self.conf, self.timeline, self.tenant, keys, LSN, &ctx).await?;
        for at in 0..pages {
            writer.put_image(key(number, at), &page(number, at)).await?;
        }
        let (desc, temp) = writer.finish(&ctx).await?;
        let inspector = LayerInspector::open(&temp).await?;
        let identity = inspector.identity();
        let name = desc.layer_name().file_name(1, identity.file_id).to_string();
        let path = RemotePath::layer(&self.tenant, &self.timeline, &name);
        let storage = self.bucket.storage();
        storage.put_file(RequestClass::Upload, &path, &temp).await?;
        fs::rename(&temp, &self.timeline_dir().join(name)).await?;
        Ok(Made { number, pages, desc, identity, object: RemoteObject { storage, path } })
    }

    /// The layer with its local file; the bucket has it too.
    pub fn local(&self, made: &Made) -> Arc<Layer> {
        let layer = Layer::new(&self.conf.resources, &self.timeline_dir(), made.desc.clone(), 1, made.identity);
        layer.set_remote(made.object.clone());
        Arc::new(layer)
    }

    /// The layer in the bucket only; removes its local file.
    pub async fn cold(&self, made: &Made) -> Arc<Layer> {
        let layer = Layer::cold(
            &self.conf.resources,
            &self.timeline_dir(),
            made.desc.clone(),
            made.desc.layer_name().file_name(1, made.identity.file_id),
            made.identity,
            made.object.clone(),
        );
        fs::unlink(layer.path()).await.expect("removed");
        Arc::new(layer)
    }

    /// A resident layer with the same pages, in another file.
    pub async fn made_again(&self, made: &Made) -> Arc<Layer> {
        let dir = self.timeline_dir().join("again");
        fs::create_dir_all(&dir).await.expect("made");
        let name = made.desc.layer_name().file_name(1, made.identity.file_id);
        let layer =
            Layer::cold(&self.conf.resources, &dir, made.desc.clone(), name, made.identity, made.object.clone());
        layer.download(&context()).await.expect("fetched");
        Arc::new(layer)
    }
}

/// Reads pages `first..end` of a layer and compares them with what was written.
pub async fn check(layer: &Arc<Layer>, made: &Made, first: u32, end: u32) -> Result<(), StorageError> {
    let found = read(layer, KeySpace::single(key(made.number, first)..key(made.number, end))).await?;
    let expected: BTreeMap<Key, Bytes> =
        (first..end.min(made.pages)).map(|at| (key(made.number, at), page(made.number, at).into())).collect();
    assert!(found == expected, "pages {first}..{end} of layer {} differ: {} found", made.number, found.len());
    Ok(())
}

/// Reads some pages at once and compares them with what was written.
pub async fn check_pages(layer: &Arc<Layer>, made: &Made, pages: &[u32]) -> Result<(), StorageError> {
    let keys = pages.iter().map(|at| key(made.number, *at)..key(made.number, at + 1)).collect();
    let found = read(layer, KeySpace::from_ranges(keys)).await?;
    let expected: BTreeMap<Key, Bytes> =
        pages.iter().map(|at| (key(made.number, *at), page(made.number, *at).into())).collect();
    assert!(found == expected, "pages {pages:?} of layer {} differ: {} found", made.number, found.len());
    Ok(())
}

async fn read(layer: &Arc<Layer>, keys: KeySpace) -> Result<BTreeMap<Key, Bytes>, StorageError> {
    let mut state = ReconstructState::new();
    layer.collect(&keys, LSN..LSN + 1, &mut state, &context()).await?;
    let histories = state.into_histories().into_iter();
    Ok(histories.map(|(key, history)| (key, history.image.expect("an image").1)).collect())
}
