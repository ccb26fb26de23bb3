//! A layer of a timeline, on this disk, in the bucket, or both; opened when it is first read.
//!
//! Its reader may be replaced at any time: the file is evicted and read from the bucket from then on, or fetched and
//! read from the disk again. Reads that are under way go on with the reader that they began with.

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
    DeltaLayer, ImageLayer, LayerIdentity, PersistentLayerDesc, ReadPlan, ReconstructState, RemoteFile, RemoteObject,
};
use errors::StorageError;

/// How often one read may find a local file of no use: a fresh copy may be damaged as well.
const HEALS_MAX: usize = 2;

/// A layer file: what it covers, where it is, and its reader once it has been read.
#[derive(Debug)]
pub struct Layer {
    desc: PersistentLayerDesc,
    generation: u32,
    identity: LayerIdentity,
    path: Utf8PathBuf,
    resources: Resources,
    /// Where the bucket has it, if so.
    remote: RwLock<Option<RemoteObject>>,
    /// Whether the whole file is at `path`, as far as is known.
    resident: AtomicBool,
    reader: RwLock<Option<Arc<Reader>>>,
    /// Held while the reader is made or replaced.
    changing: tokio::sync::Mutex<()>,
    /// Held while the whole layer is fetched.
    downloading: tokio::sync::Mutex<()>,
    /// A task is to fetch it.
    download_wanted: AtomicBool,
    /// Nothing more is written to its directory.
    closed: CancellationToken,
    access: Access,
}

#[derive(Debug)]
enum Reader {
    Delta(DeltaLayer),
    Image(ImageLayer),
}

impl Reader {
    /// The file in the bucket, if that is what is read.
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

    /// When it was read last, in milliseconds since 1970; 0 for a layer in the bucket that was not read here.
    pub fn last_access(&self) -> u64 {
        self.access.last()
    }

    /// How often it was read.
    pub fn accesses(&self) -> u64 {
        self.access.count()
    }

    /// Takes over what an earlier process knew: it counts as read, by `ahead_ms` milliseconds later than now.
    pub(crate) fn restore_access(&self, ahead_ms: u64) {
        self.access.restore(ahead_ms);
    }

    /// The layer of generation `generation` whose file is in directory `dir`. The file is not touched.
    pub fn new(
        resources: &Resources,
        dir: &Utf8Path,
        desc: PersistentLayerDesc,
        generation: u32,
        identity: LayerIdentity,
    ) -> Self {
        let layer = Self::make(resources, dir, desc, generation, identity, None);
        layer.touch();
        layer
    }

    /// The layer of generation `generation` that is in the bucket only. Blocks of it may be cached in directory `dir`.
    pub fn cold(
        resources: &Resources,
        dir: &Utf8Path,
        desc: PersistentLayerDesc,
        generation: u32,
        identity: LayerIdentity,
        remote: RemoteObject,
    ) -> Self {
        Self::make(resources, dir, desc, generation, identity, Some(remote))
    }

    fn make(
        resources: &Resources,
        dir: &Utf8Path,
        desc: PersistentLayerDesc,
        generation: u32,
        identity: LayerIdentity,
        remote: Option<RemoteObject>,
    ) -> Self {
        let path = dir.join(desc.layer_name().file_name(generation));
        let resident = AtomicBool::new(remote.is_none());
        let (reader, changing, downloading, download_wanted, closed, access) = Default::default();
        Self {
            desc,
            generation,
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

    /// The generation in its file name.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// What tells its file from any other.
    pub fn identity(&self) -> LayerIdentity {
        self.identity
    }

    /// Its file, where it is if it is on this disk.
    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Notes that the bucket has it: it may be evicted and healed from now on.
    pub fn set_remote(&self, remote: RemoteObject) {
        *self.remote.write() = Some(remote);
    }

    /// Where the bucket has it.
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

    /// Adds to `state` the versions that this layer has of the keys in `keyspace` with LSNs in `lsns`, newest first, of
    /// each key until nothing older is needed.
    ///
    /// If the local file is damaged or gone and the bucket has it, that is where it is read from, this time and until
    /// it was fetched again.
    pub async fn collect(
        self: &Arc<Self>,
        keyspace: &KeySpace,
        lsns: Range<Lsn>,
        state: &mut ReconstructState,
        ctx: &RequestContext,
    ) -> Result<(), StorageError> {
        self.touch();
        for _ in 0..HEALS_MAX {
            let (reader, error) = match self.reader(ctx).await {
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
        self.reader(ctx).await?.collect(keyspace, lsns, state, ctx).await
    }

    /// All versions of a delta layer: key, LSN, stored length, and whether no earlier version is needed.
    pub(crate) async fn versions(&self, ctx: &RequestContext) -> Result<Vec<(Key, Lsn, u32, bool)>, StorageError> {
        match &*self.reader(ctx).await? {
            Reader::Delta(layer) => layer.versions().await,
            Reader::Image(_) => Err(StorageError::Internal(format!("{} is no delta layer", self.path))),
        }
    }

    /// What [`Layer::collect`] would read, as the index tells.
    pub(crate) async fn plan_read(
        &self,
        keyspace: &KeySpace,
        lsns: &Range<Lsn>,
        state: &ReconstructState,
        ctx: &RequestContext,
    ) -> Result<ReadPlan, StorageError> {
        match &*self.reader(ctx).await? {
            Reader::Delta(layer) => layer.plan_read(keyspace, lsns, state).await,
            Reader::Image(layer) => layer.plan_read(keyspace, lsns, state).await,
        }
    }

    /// Has what `plan` tells of cached, if the layer is read from the bucket.
    pub(crate) async fn prefetch(&self, plan: ReadPlan, ctx: &RequestContext) -> Result<(), StorageError> {
        match &*self.reader(ctx).await? {
            Reader::Delta(layer) => layer.prefetch(plan).await,
            Reader::Image(layer) => layer.prefetch(plan).await,
        }
    }
}
