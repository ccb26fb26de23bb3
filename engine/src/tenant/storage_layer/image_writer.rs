//! Writes image layer files from pages given in key order.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use layer_format::header::LayerKind;
use layer_format::index::IndexEntry;
use pageserver_api::key::Key;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utils::shard::TenantShardId;
use zstd::bulk::Decompressor;

use super::block_writer::BlockWriter;
use super::layer_writer::{IndexBuilder, Owner, new_file_id};
use super::{LayerName, PersistentLayerDesc};
use crate::config::PageServerConf;
use crate::context::RequestContext;
use errors::StorageError;
use virtual_file::{OpenMode, VirtualFile};

/// Images shorter than this, in bytes, are not worth compressing.
const COMPRESS_LEN_MIN: usize = 128;
const ZSTD_LEVEL: i32 = 1;
/// After this many images in a row that do not compress, only one in `TRY_EVERY` is tried: trying is not cheap.
const TRIES_MAX: u32 = 8;
const TRY_EVERY: u32 = 16;

/// An image layer file being written under a temporary name.
pub struct ImageLayerWriter {
    owner: Owner,
    key_range: Range<Key>,
    lsn: Lsn,
    path: Utf8PathBuf,
    writer: BlockWriter,
    index: IndexBuilder,
    compressor: zstd::bulk::Compressor<'static>,
    compressed: Vec<u8>,
    /// Images in a row that were not compressed.
    uncompressed: u32,
}

impl ImageLayerWriter {
    /// Starts a layer with the given keys (end exclusive) at `lsn`. The timeline's directory must exist.
    pub async fn create(
        conf: &'static PageServerConf,
        timeline_id: TimelineId,
        tenant_shard_id: TenantShardId,
        key_range: Range<Key>,
        lsn: Lsn,
        _ctx: &RequestContext,
    ) -> Result<Self, StorageError> {
        let owner = Owner { conf, tenant_shard_id, timeline_id };
        let path = owner.temp_path(&LayerName::Image { key_range: key_range.clone(), lsn });
        let file = Arc::new(VirtualFile::open(&path, OpenMode::CreateNew).await?);
        let writer = BlockWriter::new(file, new_file_id());
        let compressor =
            zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(|error| StorageError::Internal(error.to_string()))?;
        let (index, compressed, uncompressed) = Default::default();
        Ok(Self { owner, key_range, lsn, path, writer, index, compressor, compressed, uncompressed })
    }

    /// If asked to, makes its writes small, so that reads of others do not wait for them. For jobs that nobody waits
    /// for.
    pub(crate) fn giving_way(mut self, gives_way: bool) -> Self {
        if gives_way {
            self.writer.give_way();
        }
        self
    }

    /// Appends an image, compressed if that saves at least an eighth and is not known to be vain. Keys must ascend.
    pub async fn put_image(&mut self, key: Key, image: &[u8]) -> Result<(), StorageError> {
        debug_assert!(self.key_range.contains(&key), "key {key} is outside the layer");
        let is_tried = self.uncompressed < TRIES_MAX || self.uncompressed.is_multiple_of(TRY_EVERY);
        let compressed = is_tried && self.compress(image);
        self.uncompressed = if compressed { 0 } else { self.uncompressed.wrapping_add(1) };
        let stored = if compressed { self.compressed.as_slice() } else { image };
        self.writer.reserve(stored.len()).await?;
        let position = self.writer.position();
        self.writer.push(stored);
        let len = stored.len() as u32;
        self.index.push(IndexEntry { key: key.to_compact(), lsn: self.lsn, position, len, flag: compressed });
        Ok(())
    }

    /// Compresses into `self.compressed`, prefixed with the raw length. Returns whether that is worth it.
    fn compress(&mut self, image: &[u8]) -> bool {
        if image.len() < COMPRESS_LEN_MIN {
            return false;
        }
        let limit = image.len() - image.len() / 8;
        self.compressed.clear();
        self.compressed.extend_from_slice(&(image.len() as u32).to_le_bytes());
        self.compressed.resize(limit, 0);
        let body = self.compressed.get_mut(4..).unwrap_or_default();
        match self.compressor.compress_to_buffer(image, body) {
            Ok(len) => {
                self.compressed.truncate(4 + len);
                true
            }
            // The only way the compressor can fail here is that the result does not fit.
            Err(_) => false,
        }
    }

    /// The temporary name.
    pub(crate) fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Number of images so far.
    pub fn len(&self) -> u64 {
        self.index.entries()
    }

    /// Whether there are no images yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of stored images so far, plus the room left for the header.
    pub fn stored_bytes(&self) -> u64 {
        self.writer.position()
    }

    /// Makes the file durable under its temporary name, and returns that name.
    pub async fn finish(self, ctx: &RequestContext) -> Result<(PersistentLayerDesc, Utf8PathBuf), StorageError> {
        let end = self.key_range.end;
        self.finish_at(end, ctx).await
    }

    /// Like [`ImageLayerWriter::finish`], with keys ending at `end` (exclusive), if that was not known at the start.
    pub async fn finish_at(
        mut self,
        end: Key,
        _ctx: &RequestContext,
    ) -> Result<(PersistentLayerDesc, Utf8PathBuf), StorageError> {
        let keys = self.key_range.start..end;
        let lsns = self.lsn..self.lsn + 1;
        let header = self.owner.header(LayerKind::Image, self.writer.file_id(), keys.clone(), lsns);
        let size = self.index.finish(&mut self.writer, &header).await?;
        let Owner { tenant_shard_id, timeline_id, .. } = self.owner;
        Ok((PersistentLayerDesc::new_image(tenant_shard_id, timeline_id, keys, self.lsn, size), self.path))
    }
}

impl std::fmt::Debug for ImageLayerWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageLayerWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

thread_local! {
    /// Creating one costs more than decompressing a page.
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = RefCell::new(Decompressor::new().ok());
}

/// The raw form of a stored image; `compressed` is the flag of its index entry. `None` if it does not decompress.
pub(super) fn decompress(stored: bytes::Bytes, compressed: bool) -> Option<bytes::Bytes> {
    if !compressed {
        return Some(stored);
    }
    let (len, body) = stored.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    // No value is longer than this; limits what damaged input makes us allocate.
    let len = Some(len).filter(|len| *len <= super::value_index::VALUE_LEN_MAX)?;
    let raw = DECOMPRESSOR.with_borrow_mut(|decompressor| decompressor.as_mut()?.decompress(body, len).ok())?;
    (raw.len() == len).then(|| raw.into())
}
