//! Layers with pages that are easy to tell apart, on disk and in a bucket.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use camino::Utf8PathBuf;
use camino_tempfile::Utf8TempDir;
use pageserver::block_cache;
use pageserver::config::PageServerConf;
use pageserver::context::{DownloadBehavior, RequestContext};
use pageserver::errors::StorageError;
use pageserver::remote_storage::{RemotePath, RequestClass};
use pageserver::task_mgr::TaskKind;
use pageserver::tenant::layer_map::Layer;
use pageserver::tenant::storage_layer::inspect::LayerInspector;
use pageserver::tenant::storage_layer::{
    ImageLayerWriter, LayerIdentity, PersistentLayerDesc, ReconstructState, RemoteObject,
};
use pageserver::tenant::timeline::Timeline;
use pageserver::virtual_file::fs;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use crate::store::Bucket;

pub const LSN: Lsn = Lsn(0x1000);
pub const PAGE: usize = 8192;

pub fn context() -> RequestContext {
    RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Download)
}

pub fn key(layer: u32, page: u32) -> Key {
    Key { field2: 1663, field3: 5, field4: 16384 + layer, field6: page, ..Key::MIN }
}

/// A page that does not compress.
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

/// Tests that change what the whole process has run alone.
static ALONE: LazyLock<Arc<RwLock<()>>> = LazyLock::new(Arc::default);

/// While it lives, no other test reads layers, and the limits are other than usual.
pub struct Exclusive {
    _guard: OwnedRwLockWriteGuard<()>,
    usual: &'static PageServerConf,
}

impl Exclusive {
    /// With other limits, and nothing cached in memory.
    pub async fn with(world: &World, change: impl FnOnce(&mut PageServerConf)) -> Self {
        *world.shared.lock() = None;
        let _guard = Arc::clone(&ALONE).write_owned().await;
        let mut conf = world.conf.clone();
        change(&mut conf);
        block_cache::configure(&conf);
        block_cache::clear_memory();
        block_cache::set_disk_used(0);
        Self { _guard, usual: world.conf }
    }

    /// With nothing cached in memory.
    pub async fn fresh_memory(world: &World) -> Self {
        Self::with(world, |_| ()).await
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        block_cache::configure(self.usual);
        block_cache::set_disk_used(0);
    }
}

/// A directory, a bucket, and a timeline's name.
pub struct World {
    _dir: Utf8TempDir,
    pub conf: &'static PageServerConf,
    pub bucket: Bucket,
    tenant: TenantShardId,
    timeline: TimelineId,
    shared: Mutex<Option<OwnedRwLockReadGuard<()>>>,
}

/// What a layer is made of.
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
        // Whole layers are fetched where a test says so.
        let conf = PageServerConf { prefetch_whole_after: 101, ..PageServerConf::dummy_conf(dir.path().to_owned()) };
        let shared = Mutex::new(Some(Arc::clone(&ALONE).read_owned().await));
        block_cache::configure(&conf);
        let world = Self {
            _dir: dir,
            conf: Box::leak(Box::new(conf)),
            bucket: Bucket::default(),
            tenant: TenantShardId::unsharded(TenantId::generate()),
            timeline: TimelineId::generate(),
            shared,
        };
        Timeline::prepare(world.conf, world.tenant, world.timeline).await.expect("a directory");
        world
    }

    pub fn timeline_dir(&self) -> Utf8PathBuf {
        self.conf.timeline_path(&self.tenant, &self.timeline)
    }

    /// Writes a layer of `pages` pages, and puts it into the bucket. The file is there under its own name.
    pub async fn make(&self, number: u32, pages: u32) -> Result<Made, StorageError> {
        let ctx = context();
        let keys = key(number, 0)..key(number + 1, 0);
        let mut writer = ImageLayerWriter::create(self.conf, self.timeline, self.tenant, keys, LSN, &ctx).await?;
        for at in 0..pages {
            writer.put_image(key(number, at), &page(number, at)).await?;
        }
        let (desc, temp) = writer.finish(&ctx).await?;
        let inspector = LayerInspector::open(&temp).await?;
        let identity =
            LayerIdentity { file_id: inspector.header().file_id.0, tail_offset: inspector.footer().index_block * 4096 };
        let name = desc.layer_name().file_name(1);
        let path = RemotePath::layer(&self.tenant, &self.timeline, &name);
        let storage = self.bucket.storage();
        storage.put_file(RequestClass::Upload, &path, &temp).await?;
        fs::rename(&temp, &self.timeline_dir().join(name)).await?;
        Ok(Made { number, pages, desc, identity, object: RemoteObject { storage, path } })
    }

    /// The layer with its local file, which the bucket has too.
    pub fn local(&self, made: &Made) -> Arc<Layer> {
        let layer = Layer::new(&self.timeline_dir(), made.desc.clone(), 1, made.identity);
        layer.set_remote(made.object.clone());
        Arc::new(layer)
    }

    /// The layer in the bucket only: its local file is removed.
    pub async fn cold(&self, made: &Made) -> Arc<Layer> {
        let layer = Layer::cold(&self.timeline_dir(), made.desc.clone(), 1, made.identity, made.object.clone());
        fs::unlink(layer.path()).await.expect("removed");
        Arc::new(layer)
    }

    /// The same pages in a layer of another file, which is here.
    pub async fn made_again(&self, made: &Made) -> Arc<Layer> {
        let dir = self.timeline_dir().join("again");
        fs::create_dir_all(&dir).await.expect("made");
        let layer = Layer::cold(&dir, made.desc.clone(), 1, made.identity, made.object.clone());
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

/// Reads some pages at once and compares them.
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
