//! Image layers written one after the other, each cut when it is large enough.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;
use utils::lsn::Lsn;

pub(super) use super::room::FinishedLayer;
use super::room::Room;
use engine::config::PageServerConf;
use engine::context::RequestContext;
use engine::tenant::storage_layer::{EncodedImages, ImageEncoding, ImageLayerWriter};
use errors::StorageError;

/// Destination of the layers.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) conf: &'static PageServerConf,
    pub(super) tenant_shard_id: TenantShardId,
    pub(super) timeline_id: TimelineId,
    /// LSN of the images.
    pub(super) lsn: Lsn,
    /// Size at which a layer is finished.
    pub(super) layer_bytes: u64,
    /// Where room for them is reserved.
    pub(super) room: Arc<Room>,
    pub(super) ctx: RequestContext,
}

/// Takes images in key order; its layers cover a key range without gaps.
pub(super) struct ImageSink {
    target: Target,
    /// The keys that no finished layer covers yet.
    rest: Range<Key>,
    /// What is not written yet.
    encoding: ImageEncoding,
    writer: Option<ImageLayerWriter>,
    /// Room reserved for the current layer.
    taken: u64,
    finished: Vec<FinishedLayer>,
}

impl ImageSink {
    /// A sink for images of `keys`.
    pub(super) fn new(target: Target, keys: Range<Key>) -> Self {
        Self { target, rest: keys, encoding: ImageEncoding::default(), writer: None, taken: 0, finished: Vec::new() }
    }

    /// Appends an image. Keys must ascend.
    pub(super) async fn put(&mut self, key: Key, image: &[u8]) -> Result<(), StorageError> {
        self.put_bytes(key, Bytes::copy_from_slice(image)).await
    }

    /// Appends an image, without copying it. Keys must ascend.
    pub(super) async fn put_bytes(&mut self, key: Key, image: Bytes) -> Result<(), StorageError> {
        self.encoding.push(key, image)?;
        if self.encoding.is_full()
            && let Some(images) = self.encoding.next().await?
        {
            self.write(&images).await?;
        }
        Ok(())
    }

    /// Writes all that has been appended.
    async fn write_all(&mut self) -> Result<(), StorageError> {
        self.encoding.start_batch()?;
        while let Some(images) = self.encoding.next().await? {
            self.write(&images).await?;
        }
        Ok(())
    }

    async fn write(&mut self, images: &EncodedImages) -> Result<(), StorageError> {
        for image in images.iter() {
            let is_full = |full: &ImageLayerWriter| !full.is_empty() && full.stored_bytes() >= self.target.layer_bytes;
            if self.writer.as_ref().is_some_and(is_full) {
                self.cut(image.key).await?;
            }
            self.target.room.take(image.stored_bytes()).await?;
            self.taken += image.stored_bytes();
            self.writer().await?.put_encoded(image).await?;
        }
        Ok(())
    }

    /// Inserts layers that were written elsewhere. They must cover a key range without gaps, which comes next.
    pub(super) async fn splice(&mut self, layers: Vec<FinishedLayer>) -> Result<(), StorageError> {
        let (Some((first, _)), Some((last, _))) = (layers.first(), layers.last()) else { return Ok(()) };
        let (start, end) = (first.key_range.start, last.key_range.end);
        self.write_all().await?;
        if start > self.rest.start {
            self.cut(start).await?;
        }
        self.rest.start = end;
        self.finished.extend(layers);
        Ok(())
    }

    /// Layers finished so far.
    pub(super) fn layers(&self) -> u64 {
        self.finished.len() as u64
    }

    /// Finishes the last layer and returns all layers.
    pub(super) async fn finish(mut self) -> Result<Vec<FinishedLayer>, StorageError> {
        self.write_all().await?;
        if !self.rest.is_empty() {
            self.cut(self.rest.end).await?;
        }
        Ok(self.finished)
    }

    /// Ends the current layer at `end`.
    async fn cut(&mut self, end: Key) -> Result<(), StorageError> {
        self.writer().await?;
        if let Some(full) = self.writer.take() {
            let layer = full.finish_at(end, &self.target.ctx).await?;
            // Checksums and the index come on top of what was reserved.
            self.target.room.add(layer.0.file_size.saturating_sub(std::mem::take(&mut self.taken)));
            self.target.room.finished(layer.clone());
            self.finished.push(layer);
        }
        self.rest.start = end;
        Ok(())
    }

    async fn writer(&mut self) -> Result<&mut ImageLayerWriter, StorageError> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                let Target { conf, tenant_shard_id, timeline_id, lsn, ref ctx, .. } = self.target;
                ImageLayerWriter::create(conf, timeline_id, tenant_shard_id, self.rest.clone(), lsn, ctx).await?
            }
        };
        Ok(self.writer.insert(writer))
    }
}
