//! Image layers written one after the other, cut where they are large enough.

use camino::Utf8PathBuf;
use pageserver_api::key::Key;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use crate::config::PageServerConf;
use crate::context::RequestContext;
use crate::errors::StorageError;
use crate::tenant::storage_layer::{ImageLayerWriter, PersistentLayerDesc};

/// A finished layer file under its temporary name.
pub(super) type FinishedLayer = (PersistentLayerDesc, Utf8PathBuf);

/// Takes images in order of key; its layers cover all keys without gaps.
pub(super) struct ImageSink<'a> {
    conf: &'static PageServerConf,
    timeline_id: TimelineId,
    tenant_shard_id: TenantShardId,
    lsn: Lsn,
    layer_bytes: u64,
    ctx: &'a RequestContext,
    writer: ImageLayerWriter,
    finished: Vec<FinishedLayer>,
}

impl<'a> ImageSink<'a> {
    /// `layer_bytes` is the size at which a layer is finished.
    pub(super) async fn create(
        conf: &'static PageServerConf,
        timeline_id: TimelineId,
        tenant_shard_id: TenantShardId,
        lsn: Lsn,
        layer_bytes: u64,
        ctx: &'a RequestContext,
    ) -> Result<Self, StorageError> {
        let writer = ImageLayerWriter::create(conf, timeline_id, tenant_shard_id, Key::MIN..Key::MAX, lsn, ctx).await?;
        Ok(Self { conf, timeline_id, tenant_shard_id, lsn, layer_bytes, ctx, writer, finished: Vec::new() })
    }

    /// Appends an image. Keys ascend.
    pub(super) async fn put(&mut self, key: Key, image: &[u8]) -> Result<(), StorageError> {
        if !self.writer.is_empty() && self.writer.stored_bytes() >= self.layer_bytes {
            self.next_layer(key).await?;
        }
        self.writer.put_image(key, image).await
    }

    async fn next_layer(&mut self, start: Key) -> Result<(), StorageError> {
        let Self { conf, timeline_id, tenant_shard_id, lsn, ctx, .. } = *self;
        let next = ImageLayerWriter::create(conf, timeline_id, tenant_shard_id, start..Key::MAX, lsn, ctx).await?;
        let full = std::mem::replace(&mut self.writer, next);
        self.finished.push(full.finish_at(start, ctx).await?);
        Ok(())
    }

    /// Layers finished so far.
    pub(super) fn layers(&self) -> u64 {
        self.finished.len() as u64
    }

    /// Finishes the last layer and gives all.
    pub(super) async fn finish(mut self) -> Result<Vec<FinishedLayer>, StorageError> {
        self.finished.push(self.writer.finish(self.ctx).await?);
        Ok(self.finished)
    }
}
