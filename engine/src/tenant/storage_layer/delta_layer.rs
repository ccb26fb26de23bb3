//! Reads delta layers.

use std::ops::Range;
use std::sync::Arc;

use camino::Utf8Path;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use utils::lsn::Lsn;

use super::layer_file::LayerFile;
use super::read_costs::{ReadCosts, Searched};
use super::remote_file::RemoteFile;
use super::visit::{KeyVersions, collect_versions, read_versions};
use super::{LayerIdentity, PersistentLayerDesc, ReconstructState};
use crate::context::RequestContext;
use crate::page_cache::PageCache;
use errors::StorageError;

/// An open delta layer.
#[derive(Debug)]
pub struct DeltaLayer {
    file: LayerFile,
}

impl DeltaLayer {
    /// Opens the file at `path`, which must be the layer `desc`. Its index pages are kept in `pages`.
    pub async fn open(
        path: &Utf8Path,
        desc: &PersistentLayerDesc,
        pages: &Arc<PageCache>,
        _ctx: &RequestContext,
    ) -> Result<Self, StorageError> {
        debug_assert!(desc.is_delta);
        Ok(Self { file: LayerFile::open_as(path, desc, pages).await? })
    }

    /// Opens the layer `desc` in the bucket.
    pub(crate) async fn open_remote(
        remote: Arc<RemoteFile>,
        desc: &PersistentLayerDesc,
        identity: LayerIdentity,
        generation: u32,
    ) -> Result<Self, StorageError> {
        debug_assert!(desc.is_delta);
        Ok(Self { file: LayerFile::open_remote(remote, desc, identity, generation).await? })
    }

    pub(super) fn file(&self) -> &LayerFile {
        &self.file
    }

    /// The file in the bucket, if that is what this reads.
    pub(crate) fn remote_file(&self) -> Option<&Arc<RemoteFile>> {
        self.file.source().remote_file()
    }

    /// Adds to `state` the versions of the keys in `keyspace` with LSNs in `lsn_range`: for each key, newest first,
    /// until nothing older is needed.
    pub async fn get_values_reconstruct_data(
        &self,
        keyspace: &KeySpace,
        lsn_range: Range<Lsn>,
        state: &mut ReconstructState,
        _ctx: &RequestContext,
    ) -> Result<(), StorageError> {
        let mut wanted: Vec<KeyVersions> = Vec::new();
        let mut is_searched = false;
        state.costs += self.file.take_opening();
        for range in keyspace.ranges() {
            let filters = state.costs.filters;
            let found = self.file.search(range, &mut state.costs).await?;
            let searched = Searched { layers: u32::from(found.is_some()), filters: state.costs.filters - filters };
            state.note_searched(range, searched);
            if let Some(entries) = found {
                is_searched = true;
                collect_versions(entries.into_iter(), &lsn_range, state, &mut wanted);
            }
        }
        state.layers_searched += u32::from(is_searched);
        read_versions(self.file.source(), wanted, state).await
    }

    /// All keys and LSNs of the layer in order, with the stored length and whether no earlier version is needed.
    pub async fn versions(&self) -> Result<Vec<(Key, Lsn, u32, bool)>, StorageError> {
        let entries = self.file.entries(&(Key::MIN..Key::MAX), &mut ReadCosts::default()).await?;
        Ok(entries.iter().map(|entry| (Key::from_compact(entry.key), entry.lsn, entry.len, entry.flag)).collect())
    }
}
