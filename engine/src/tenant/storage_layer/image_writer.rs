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
use super::image_encoder::{EncodedImage, ImageEncoder, Stored};
use super::layer_writer::{IndexBuilder, Owner, new_file_id};
use super::{LayerName, PersistentLayerDesc};
use crate::config::PageServerConf;
use crate::context::{Pace, RequestContext};
use errors::StorageError;
use virtual_file::{OpenMode, VirtualFile};

/// An image layer file being written under a temporary name.
pub struct ImageLayerWriter {
    owner: Owner,
    key_range: Range<Key>,
    lsn: Lsn,
    path: Utf8PathBuf,
    writer: BlockWriter,
    index: IndexBuilder,
    /// Created for the first image that comes as it is.
    encoder: Option<ImageEncoder>,
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
        Ok(Self { owner, key_range, lsn, path, writer, index: IndexBuilder::default(), encoder: None })
    }

    /// Writes at this pace: little at once where it gives way.
    pub(crate) fn at_pace(mut self, pace: Pace) -> Self {
        if pace == Pace::GivesWay {
            self.writer.give_way();
        }
        self
    }

    /// Appends an image, compressed if that is worth it. Keys must ascend.
    pub async fn put_image(&mut self, key: Key, image: &[u8]) -> Result<(), StorageError> {
        let mut encoder = self.encoder.take().map_or_else(ImageEncoder::new, Ok)?;
        let put = self.put(key, encoder.encode(image)).await;
        self.encoder = Some(encoder);
        put
    }

    /// Appends an image that was encoded elsewhere. Keys must ascend.
    pub async fn put_encoded(&mut self, image: EncodedImage<'_>) -> Result<(), StorageError> {
        self.put(image.key, image.stored).await
    }

    async fn put(&mut self, key: Key, Stored { bytes, compressed }: Stored<'_>) -> Result<(), StorageError> {
        debug_assert!(self.key_range.contains(&key), "key {key} is outside the layer");
        self.writer.reserve(bytes.len()).await?;
        let position = self.writer.position();
        self.writer.push(bytes);
        let len = bytes.len() as u32;
        self.index.push(IndexEntry { key: key.to_compact(), lsn: self.lsn, position, len, flag: compressed });
        Ok(())
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
