//! A layer file of a timeline, opened when it is first read.

use std::ops::Range;

use camino::{Utf8Path, Utf8PathBuf};
use pageserver_api::keyspace::KeySpace;
use tokio::sync::OnceCell;
use utils::lsn::Lsn;

use crate::context::RequestContext;
use crate::errors::StorageError;
use crate::tenant::storage_layer::{DeltaLayer, ImageLayer, PersistentLayerDesc, ReconstructState};

/// A layer file: what it covers, where it is, and its reader once it has been read.
#[derive(Debug)]
pub struct Layer {
    desc: PersistentLayerDesc,
    generation: u32,
    path: Utf8PathBuf,
    reader: OnceCell<Reader>,
}

#[derive(Debug)]
enum Reader {
    Delta(DeltaLayer),
    Image(ImageLayer),
}

impl Layer {
    /// The layer of generation `generation` in directory `dir`. The file is not touched.
    pub fn new(dir: &Utf8Path, desc: PersistentLayerDesc, generation: u32) -> Self {
        let path = dir.join(desc.layer_name().file_name(generation));
        Self { desc, generation, path, reader: OnceCell::new() }
    }

    /// What it covers.
    pub fn desc(&self) -> &PersistentLayerDesc {
        &self.desc
    }

    /// The generation in its file name.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Its file.
    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Adds to `state` the versions that this layer has of the keys in `keyspace` with LSNs in `lsns`, newest first, of
    /// each key until nothing older is needed.
    pub async fn collect(
        &self,
        keyspace: &KeySpace,
        lsns: Range<Lsn>,
        state: &mut ReconstructState,
        ctx: &RequestContext,
    ) -> Result<(), StorageError> {
        match self.reader.get_or_try_init(|| self.open(ctx)).await? {
            Reader::Delta(layer) => layer.get_values_reconstruct_data(keyspace, lsns, state, ctx).await,
            Reader::Image(layer) => layer.get_values_reconstruct_data(keyspace, lsns, state, ctx).await,
        }
    }

    async fn open(&self, ctx: &RequestContext) -> Result<Reader, StorageError> {
        match self.desc.is_delta {
            true => DeltaLayer::open(&self.path, &self.desc, ctx).await.map(Reader::Delta),
            false => ImageLayer::open(&self.path, &self.desc, ctx).await.map(Reader::Image),
        }
    }
}
