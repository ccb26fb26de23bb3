//! Reads image layers.

use std::ops::Range;
use std::sync::Arc;

use camino::Utf8Path;
use layer_format::index::IndexEntry;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::value::Value;
use utils::lsn::Lsn;

use super::block_source::Extent;
use super::image_writer::decompress;
use super::layer_file::LayerFile;
use super::read_costs::Searched;
use super::remote_file::RemoteFile;
use super::{LayerIdentity, PersistentLayerDesc, ReconstructState};
use crate::context::RequestContext;
use crate::page_cache::PageCache;
use errors::StorageError;

/// Maximum number of images read in one round.
const ROUND_IMAGES_MAX: usize = 2048;

/// An open image layer.
#[derive(Debug)]
pub struct ImageLayer {
    file: LayerFile,
}

impl ImageLayer {
    /// Opens the file at `path`, which must be the layer `desc`. Its index pages are kept in `pages`.
    pub async fn open(
        path: &Utf8Path,
        desc: &PersistentLayerDesc,
        pages: &Arc<PageCache>,
        _ctx: &RequestContext,
    ) -> Result<Self, StorageError> {
        debug_assert!(!desc.is_delta);
        Ok(Self { file: LayerFile::open_as(path, desc, pages).await? })
    }

    /// Opens the layer `desc` in the bucket.
    pub(crate) async fn open_remote(
        remote: Arc<RemoteFile>,
        desc: &PersistentLayerDesc,
        identity: LayerIdentity,
        generation: u32,
    ) -> Result<Self, StorageError> {
        debug_assert!(!desc.is_delta);
        Ok(Self { file: LayerFile::open_remote(remote, desc, identity, generation).await? })
    }

    /// The LSN of all its images.
    pub(super) fn lsn(&self) -> Lsn {
        self.file.header().lsn_range.start
    }

    pub(super) fn file(&self) -> &LayerFile {
        &self.file
    }

    /// The file in the bucket, if that is what this reads.
    pub(crate) fn remote_file(&self) -> Option<&Arc<RemoteFile>> {
        self.file.source().remote_file()
    }

    /// Adds to `state` the images of the keys in `keyspace` that need one, if the layer's LSN is in `lsn_range`.
    pub async fn get_values_reconstruct_data(
        &self,
        keyspace: &KeySpace,
        lsn_range: Range<Lsn>,
        state: &mut ReconstructState,
        _ctx: &RequestContext,
    ) -> Result<(), StorageError> {
        let lsn = self.lsn();
        if !lsn_range.contains(&lsn) {
            return Ok(());
        }
        state.costs += self.file.take_opening();
        state.layers_searched += 1;
        let mut wanted = Vec::new();
        for range in keyspace.ranges() {
            state.note_searched(range, Searched { layers: 1, filters: 0 });
            let entries = self.file.entries(range, &mut state.costs).await?;
            for entry in entries {
                let key = Key::from_compact(entry.key);
                match state.cached(&key, lsn) {
                    _ if state.is_complete(&key) => {}
                    Some(image) => state.push_cached(key, lsn, image),
                    None => wanted.push(entry),
                }
            }
        }
        for round in wanted.chunks(ROUND_IMAGES_MAX) {
            self.read_round(round, lsn, state).await?;
        }
        Ok(())
    }

    async fn read_round(
        &self,
        round: &[IndexEntry],
        lsn: Lsn,
        state: &mut ReconstructState,
    ) -> Result<(), StorageError> {
        let extents: Vec<Extent> =
            round.iter().map(|entry| Extent { position: entry.position, len: entry.len }).collect();
        let (stored, costs) = self.file.source().read_values_at(&extents, state.pace).await?;
        state.note_data_reads(costs);
        for (entry, stored) in round.iter().zip(stored) {
            let key = Key::from_compact(entry.key);
            let image = decompress(stored, entry.flag).ok_or_else(|| {
                let block = layer_format::block::block_of(entry.position);
                self.file.source().corrupt(block, format!("the image of key {key} does not decompress"))
            })?;
            state.push(key, lsn, Value::Image(image));
        }
        Ok(())
    }
}
