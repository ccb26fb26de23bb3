//! A layer of a timeline, on this disk, in the bucket, or both; opened when it is first read.
//!
//! Its reader may be replaced at any time: after eviction the layer is read from the bucket, after a download from
//! the disk again. Reads in progress continue with the reader with which they began.

mod access;
mod residency;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use utils::lsn::Lsn;

use self::access::Access;
use crate::context::RequestContext;
use crate::resources::Resources;
use crate::tenant::storage_layer::{
    DeltaLayer, ImageLayer, IndexCursor, LayerFileName, LayerIdentity, PersistentLayerDesc, ReadCosts, ReadPlan,
    ReconstructState, RemoteFile, RemoteObject,
};
use errors::StorageError;

/// How often one read may find the local file unusable: a fresh copy may be damaged as well.
const HEALS_MAX: usize = 2;

/// A layer file: what it covers, where it is, and its reader once it has been opened.
#[derive(Debug)]
pub struct Layer {
    /// What counts of it.
    desc: PersistentLayerDesc,
    /// What its file covers.
    file: PersistentLayerDesc,
    name: LayerFileName,
    identity: LayerIdentity,
    path: Utf8PathBuf,
    resources: Resources,
    /// Its object, if the bucket has it.
    remote: RwLock<Option<RemoteObject>>,
    /// Whether the whole file is at `path`, as far as is known.
    resident: AtomicBool,
    reader: RwLock<Option<Arc<Reader>>>,
    /// Held while the reader is created or replaced.
    changing: tokio::sync::Mutex<()>,
    /// Held while the whole layer is downloaded or evicted.
    downloading: tokio::sync::Mutex<()>,
    /// A task is downloading it, or about to.
    download_wanted: AtomicBool,
    /// Cancelled when nothing more may be written to its directory.
    closed: CancellationToken,
    access: Access,
}

#[derive(Debug)]
enum Reader {
    Delta(DeltaLayer),
    Image(ImageLayer),
}

impl Reader {
    /// The file in the bucket, if that is what this reads.
    fn remote_file(&self) -> Option<&Arc<RemoteFile>> {
        match self {
            Reader::Delta(layer) => layer.remote_file(),
            Reader::Image(layer) => layer.remote_file(),
        }
    }

    async fn collect(
        &self,
        keyspace: &KeySpace,
        lsns: Range<Lsn>,
        state: &mut ReconstructState,
        ctx: &RequestContext,
    ) -> Result<(), StorageError> {
        match self {
            Reader::Delta(layer) => layer.get_values_reconstruct_data(keyspace, lsns, state, ctx).await,
            Reader::Image(layer) => layer.get_values_reconstruct_data(keyspace, lsns, state, ctx).await,
        }
    }
}

impl Layer {
    /// Notes a read.
    pub fn touch(&self) {
        self.access.note();
    }

    /// When it was last read, in milliseconds since 1970; 0 for a layer in the bucket that was not read here.
    pub fn last_access(&self) -> u64 {
        self.access.last()
    }

    /// Number of reads, plus one if the layer was local when this was created.
    pub fn accesses(&self) -> u64 {
        self.access.count()
    }

    /// Restores what an earlier process knew: the layer counts as last read `ahead_ms` milliseconds from now.
    pub(crate) fn restore_access(&self, ahead_ms: u64) {
        self.access.restore(ahead_ms);
    }

    /// The new layer of generation `generation` whose file is in directory `dir`. Does not access the file.
    pub fn new(
        resources: &Resources,
        dir: &Utf8Path,
        desc: PersistentLayerDesc,
        generation: u32,
        identity: LayerIdentity,
    ) -> Self {
        let name = desc.layer_name().file_name(generation, identity.file_id);
        Self::named(resources, dir, desc, name, identity)
    }

    /// The layer whose file `name` is in directory `dir`. Does not access the file.
    pub fn named(
        resources: &Resources,
        dir: &Utf8Path,
        desc: PersistentLayerDesc,
        name: LayerFileName,
        identity: LayerIdentity,
    ) -> Self {
        let layer = Self::make(resources, dir, desc, name, identity, None);
        layer.touch();
        layer
    }

    /// The same layer, of which only `desc` counts, a part of what its file covers.
    pub fn showing(self, desc: PersistentLayerDesc) -> Self {
        Self { desc, ..self }
    }

    /// The layer `name` that is only in the bucket. Its blocks may be cached in directory `dir`.
    pub fn cold(
        resources: &Resources,
        dir: &Utf8Path,
        desc: PersistentLayerDesc,
        name: LayerFileName,
        identity: LayerIdentity,
        remote: RemoteObject,
    ) -> Self {
        Self::make(resources, dir, desc, name, identity, Some(remote))
    }

    /// The same layer, of which only the bucket has the file.
    pub fn in_bucket_only(&self, dir: &Utf8Path, remote: RemoteObject) -> Self {
        let (file, name) = (self.file.clone(), self.name.clone());
        Self::cold(&self.resources, dir, file, name, self.identity, remote).showing(self.desc.clone())
    }

    fn make(
        resources: &Resources,
        dir: &Utf8Path,
        desc: PersistentLayerDesc,
        name: LayerFileName,
        identity: LayerIdentity,
        remote: Option<RemoteObject>,
    ) -> Self {
        let path = dir.join(name.to_string());
        let resident = AtomicBool::new(remote.is_none());
        let (reader, changing, downloading, download_wanted, closed, access) = Default::default();
        Self {
            file: desc.clone(),
            desc,
            name,
            identity,
            path,
            resources: resources.clone(),
            remote: RwLock::new(remote),
            resident,
            reader,
            changing,
            downloading,
            download_wanted,
            closed,
            access,
        }
    }

    /// What it covers.
    pub fn desc(&self) -> &PersistentLayerDesc {
        &self.desc
    }

    /// What its file covers, of which the layer may be a part.
    pub fn file_desc(&self) -> &PersistentLayerDesc {
        &self.file
    }

    /// The name of its file.
    pub fn file_name(&self) -> &LayerFileName {
        &self.name
    }

    /// The generation in its file name.
    pub fn generation(&self) -> u32 {
        self.name.generation
    }

    /// The part of `lsns` that counts.
    fn clamp(&self, lsns: &Range<Lsn>) -> Range<Lsn> {
        let counts = &self.desc.lsn_range;
        lsns.start.max(counts.start)..lsns.end.min(counts.end)
    }

    /// Distinguishes its file from any other.
    pub fn identity(&self) -> LayerIdentity {
        self.identity
    }

    /// The path of its file, whether or not that is on this disk.
    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Notes that the bucket has it: from now on it can be evicted and healed.
    pub fn set_remote(&self, remote: RemoteObject) {
        *self.remote.write() = Some(remote);
    }

    /// Its object, if the bucket has it.
    pub fn remote(&self) -> Option<RemoteObject> {
        self.remote.read().clone()
    }

    /// Whether the bucket has it.
    pub fn is_remote(&self) -> bool {
        self.remote.read().is_some()
    }

    /// Whether the whole file is on this disk.
    pub fn is_local(&self) -> bool {
        self.resident.load(Ordering::Acquire)
    }

    /// Adds to `state` this layer's versions of the keys in `keyspace` with LSNs in `lsns`: for each key, newest
    /// first, until nothing older is needed.
    ///
    /// If the local file is damaged or missing and the bucket has the layer, reads it from there, now and until it
    /// has been downloaded again.
    pub async fn collect(
        self: &Arc<Self>,
        keyspace: &KeySpace,
        lsns: Range<Lsn>,
        state: &mut ReconstructState,
        ctx: &RequestContext,
    ) -> Result<(), StorageError> {
        if ctx.shows_interest() {
            self.touch();
        }
        let lsns = self.clamp(&lsns);
        for _ in 0..HEALS_MAX {
            let (reader, error) = match self.reader_timed(&mut state.costs, ctx).await {
                Ok(reader) => match reader.collect(keyspace, lsns.clone(), state, ctx).await {
                    Err(error) if reader.remote_file().is_none() => (Some(reader), error),
                    done => {
                        if reader.remote_file().is_some_and(|remote| remote.is_worth_all()) {
                            self.download_soon();
                        }
                        return done;
                    }
                },
                Err(error) => (None, error),
            };
            if !self.set_aside(reader.as_ref(), &error).await {
                return Err(error);
            }
            state.forget_below(keyspace, lsns.end);
        }
        self.reader_timed(&mut state.costs, ctx).await?.collect(keyspace, lsns, state, ctx).await
    }

    /// All versions of a delta layer: key, LSN, stored length, and whether no earlier version is needed.
    pub(crate) async fn versions(&self, ctx: &RequestContext) -> Result<Vec<(Key, Lsn, u32, bool)>, StorageError> {
        let mut versions = match &*self.reader(ctx).await? {
            Reader::Delta(layer) => layer.versions().await?,
            Reader::Image(_) => return Err(StorageError::Internal(format!("{} is no delta layer", self.path))),
        };
        let PersistentLayerDesc { key_range, lsn_range, .. } = &self.desc;
        versions.retain(|(key, lsn, ..)| key_range.contains(key) && lsn_range.contains(lsn));
        Ok(versions)
    }

    /// Reads its index in order, as far as it is about `keys`.
    pub(crate) async fn cursor(&self, keys: &Range<Key>, ctx: &RequestContext) -> Result<IndexCursor, StorageError> {
        self.cursor_below(keys, Lsn::MAX, ctx).await
    }

    /// The same for versions below `end`.
    pub(crate) async fn cursor_below(
        &self,
        keys: &Range<Key>,
        end: Lsn,
        ctx: &RequestContext,
    ) -> Result<IndexCursor, StorageError> {
        let PersistentLayerDesc { key_range, lsn_range, .. } = &self.desc;
        let keys = keys.start.max(key_range.start)..keys.end.min(key_range.end);
        Ok(match &*self.reader(ctx).await? {
            Reader::Delta(layer) => layer.cursor(&keys, lsn_range.start..lsn_range.end.min(end)),
            Reader::Image(layer) => layer.cursor(&keys),
        })
    }

    /// Up to `count` keys of a delta layer's file, ascending, with about equally many entries between them.
    pub(crate) async fn sample_keys(&self, count: usize, ctx: &RequestContext) -> Result<Vec<Key>, StorageError> {
        Ok(match &*self.reader(ctx).await? {
            Reader::Delta(layer) => layer.sample_keys(count),
            Reader::Image(layer) => layer.sample_keys(count),
        })
    }

    /// As [`Layer::sample_keys`], if the layer is open.
    pub(crate) fn sample_open_keys(&self, count: usize) -> Option<Vec<Key>> {
        match &**self.reader.read().as_ref()? {
            Reader::Delta(layer) => Some(layer.sample_keys(count)),
            Reader::Image(layer) => Some(layer.sample_keys(count)),
        }
    }

    /// What [`Layer::collect`] would read, according to the index.
    pub(crate) async fn plan_read(
        &self,
        keyspace: &KeySpace,
        lsns: &Range<Lsn>,
        state: &ReconstructState,
        ctx: &RequestContext,
    ) -> Result<ReadPlan, StorageError> {
        let lsns = &self.clamp(lsns);
        match &*self.reader(ctx).await? {
            Reader::Delta(layer) => layer.plan_read(keyspace, lsns, state).await,
            Reader::Image(layer) => layer.plan_read(keyspace, lsns, state).await,
        }
    }

    /// Caches what `plan` lists, if the layer is read from the bucket. Returns what that took.
    pub(crate) async fn prefetch(&self, plan: ReadPlan, ctx: &RequestContext) -> Result<ReadCosts, StorageError> {
        match &*self.reader(ctx).await? {
            Reader::Delta(layer) => layer.prefetch(plan).await,
            Reader::Image(layer) => layer.prefetch(plan).await,
        }
    }
}
