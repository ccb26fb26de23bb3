//! Writes delta layer files from values given in order of (key, LSN).

use std::ops::Range;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use layer_format::header::LayerKind;
use layer_format::index::IndexEntry;
use pageserver_api::key::{CompactKey, Key};
use pageserver_api::value::Value;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utils::shard::TenantShardId;

use super::block_writer::BlockWriter;
use super::layer_writer::{IndexBuilder, Owner, new_file_id};
use super::{LayerName, PersistentLayerDesc};
use crate::config::PageServerConf;
use crate::context::{Pace, RequestContext};
use errors::StorageError;
use virtual_file::{OpenMode, VirtualFile};

/// A delta layer file being written under a temporary name.
#[derive(Debug)]
pub struct DeltaLayerWriter {
    owner: Owner,
    key_range: Range<Key>,
    lsn_range: Range<Lsn>,
    path: Utf8PathBuf,
    writer: BlockWriter,
    index: IndexBuilder,
    encoded: Vec<u8>,
}

impl DeltaLayerWriter {
    /// Starts a layer with the given ranges (ends exclusive). The timeline's directory must exist.
    pub async fn create(
        conf: &'static PageServerConf,
        timeline_id: TimelineId,
        tenant_shard_id: TenantShardId,
        key_range: Range<Key>,
        lsn_range: Range<Lsn>,
        _ctx: &RequestContext,
    ) -> Result<Self, StorageError> {
        let owner = Owner { conf, tenant_shard_id, timeline_id };
        let name = LayerName::Delta { key_range: key_range.clone(), lsn_range: lsn_range.clone() };
        let path = owner.temp_path(&name);
        let file = Arc::new(VirtualFile::open(&path, OpenMode::CreateNew).await?);
        let writer = BlockWriter::new(file, new_file_id());
        let index = IndexBuilder::with_filter();
        Ok(Self { owner, key_range, lsn_range, path, writer, index, encoded: Vec::new() })
    }

    /// Writes at this pace: little at once where it gives way.
    pub(crate) fn at_pace(mut self, pace: Pace) -> Self {
        if pace == Pace::GivesWay {
            self.writer.give_way();
        }
        self
    }

    /// Appends a value. Keys must ascend, as must the LSNs of each key.
    pub async fn put_value(&mut self, key: Key, lsn: Lsn, value: &Value) -> Result<(), StorageError> {
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.clear();
        value.encode_into(&mut encoded).map_err(|error| StorageError::Internal(error.to_string()))?;
        let result = self.put_serialized(key.to_compact(), lsn, &encoded, value.will_init()).await;
        self.encoded = encoded;
        result
    }

    /// Appends a serialized value.
    pub async fn put_serialized(
        &mut self,
        key: CompactKey,
        lsn: Lsn,
        value: &[u8],
        will_init: bool,
    ) -> Result<(), StorageError> {
        debug_assert!(self.lsn_range.contains(&lsn), "LSN {lsn} is outside the layer");
        self.writer.reserve(value.len()).await?;
        let position = self.writer.position();
        self.writer.push(value);
        self.index.push(IndexEntry { key, lsn, position, len: value.len() as u32, flag: will_init });
        Ok(())
    }

    /// Bytes of values so far, plus the room left for the header.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.writer.position()
    }

    /// The temporary name.
    pub(crate) fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Makes the file durable under its temporary name, and returns that name.
    pub async fn finish(self, ctx: &RequestContext) -> Result<(PersistentLayerDesc, Utf8PathBuf), StorageError> {
        let end = self.key_range.end;
        self.finish_at(end, ctx).await
    }

    /// Like [`DeltaLayerWriter::finish`], with keys ending at `end` (exclusive), if that was not known at the start.
    pub(crate) async fn finish_at(
        mut self,
        end: Key,
        _ctx: &RequestContext,
    ) -> Result<(PersistentLayerDesc, Utf8PathBuf), StorageError> {
        let (keys, lsns) = (self.key_range.start..end, self.lsn_range);
        let header = self.owner.header(LayerKind::Delta, self.writer.file_id(), keys.clone(), lsns.clone());
        let size = self.index.finish(&mut self.writer, &header).await?;
        let Owner { tenant_shard_id, timeline_id, .. } = self.owner;
        Ok((PersistentLayerDesc::new_delta(tenant_shard_id, timeline_id, keys, lsns, size), self.path))
    }
}
