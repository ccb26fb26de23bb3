//! The layer that accepts new values: an index in memory, the values in an ephemeral file.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use camino::Utf8PathBuf;
use layer_format::header::LayerKind;
use layer_format::index::IndexEntry;
use pageserver_api::key::{CompactKey, Key};
use pageserver_api::keyspace::KeySpace;
use pageserver_api::models::virtual_file::IoMode;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utils::shard::TenantShardId;
use utils::sync::gate::{Gate, GateGuard};
use wal_decoder::serialized_batch::SerializedValueBatch;

use super::block_writer::BlockWriter;
use super::delta_writer::DeltaLayerWriter;
use super::ephemeral_file::EphemeralFile;
use super::gather::{self, Moves};
use super::layer_writer::{IndexBuilder, Owner, make_durable, new_file_id};
use super::value_index::{POSITION_MAX, Sorted, VALUE_LEN_MAX, ValueIndex, Version};
use super::visit::{KeyVersions, collect_versions, compact_bounds};
use super::{LayerName, PersistentLayerDesc, ReconstructState};
use crate::config::PageServerConf;
use crate::context::RequestContext;
use crate::l0_flush;
use errors::StorageError;
use metrics::{IngestStage, Stopwatch};
use virtual_file::{OpenMode, VirtualFile, fs};

/// An open or frozen in-memory layer. A crash loses everything in it; it comes again from the WAL.
#[derive(Debug)]
pub struct InMemoryLayer {
    owner: Owner,
    start_lsn: Lsn,
    /// Set once, by the freeze; exclusive.
    end_lsn: OnceLock<Lsn>,
    file: EphemeralFile,
    index: RwLock<ValueIndex>,
    value_bytes: AtomicU64,
    /// Sealed as a copy that was made out of memory.
    is_copied: AtomicBool,
    created: std::time::Instant,
    _gate: GateGuard,
}

impl InMemoryLayer {
    /// An empty layer for values from `start_lsn` on. The timeline's directory must exist.
    pub async fn create(
        conf: &'static PageServerConf,
        timeline_id: TimelineId,
        tenant_shard_id: TenantShardId,
        start_lsn: Lsn,
        gate: &Gate,
        cancel: &CancellationToken,
        _ctx: &RequestContext,
    ) -> anyhow::Result<InMemoryLayer> {
        let gate = gate.enter()?;
        if cancel.is_cancelled() {
            return Err(StorageError::Shutdown.into());
        }
        let owner = Owner { conf, tenant_shard_id, timeline_id };
        Ok(Self {
            owner,
            start_lsn,
            end_lsn: OnceLock::new(),
            file: EphemeralFile::create(&owner).await?,
            index: RwLock::default(),
            value_bytes: AtomicU64::new(0),
            is_copied: AtomicBool::new(false),
            created: env::clock::now(),
            _gate: gate,
        })
    }

    /// Leaves values in memory alone as long as there is enough for them: for a layer that will likely be sealed as a
    /// copy out of memory, so that its own file is not needed.
    pub async fn hold_writes(&self) {
        self.file.writer().lock().await.hold();
    }

    /// Whether it was sealed as a copy made out of memory: then its own file need not have been written.
    pub(crate) fn is_copied(&self) -> bool {
        self.is_copied.load(Ordering::Relaxed)
    }

    /// First LSN of the layer.
    pub fn start_lsn(&self) -> Lsn {
        self.start_lsn
    }

    /// The layer's end LSN (exclusive), once it is frozen.
    pub fn end_lsn(&self) -> Option<Lsn> {
        self.end_lsn.get().copied()
    }

    /// Bytes of values ingested.
    pub fn size(&self) -> u64 {
        self.value_bytes.load(Ordering::Relaxed)
    }

    /// When the layer was created.
    pub fn created(&self) -> std::time::Instant {
        self.created
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.index.read().len()
    }

    /// Whether the layer has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory of the index in bytes.
    pub fn index_memory(&self) -> usize {
        self.index.read().memory()
    }

    /// Ingests a batch. Readers see all of it or nothing. On error nothing of it is ingested and nothing earlier is
    /// lost; the call may be repeated.
    ///
    /// # Panics
    /// If the layer is frozen.
    pub async fn put_batch(&self, batch: SerializedValueBatch, _ctx: &RequestContext) -> anyhow::Result<()> {
        self.put_batch_timed(batch, &mut Stopwatch::off()).await
    }

    /// The same for a caller that wants to know what takes how long.
    pub(crate) async fn put_batch_timed(
        &self,
        batch: SerializedValueBatch,
        watch: &mut Stopwatch<IngestStage>,
    ) -> anyhow::Result<()> {
        watch.enter(IngestStage::WriterLock);
        let mut writer = self.file.writer().lock().await;
        assert!(self.end_lsn.get().is_none(), "values are put into a frozen layer");
        check_limits(&batch, writer.position())?;
        watch.enter(IngestStage::WaitForBuffer);
        writer.reserve(batch.buffer_size()).await?;
        // No await from here on: the whole batch gets in even if this future is dropped.
        watch.enter(IngestStage::Append);
        let base = writer.position();
        writer.push(batch.raw());
        watch.enter(IngestStage::IndexInsert);
        let mut index = self.index.write();
        let indexed = batch.len() - usize::from(fault::planted(fault::Bug::DropLastOfBatch));
        for meta in batch.metadata().iter().take(indexed) {
            index.push(meta.key, meta.lsn, base + u64::from(meta.offset), meta.len, meta.will_init);
        }
        drop(index);
        self.value_bytes.fetch_add(batch.buffer_size() as u64, Ordering::Relaxed);
        batch.recycle();
        Ok(())
    }

    /// Freezes the layer: it ends at `end_lsn` (exclusive).
    ///
    /// # Panics
    /// If it is frozen already, or `end_lsn` is not above its start.
    pub async fn freeze(&self, end_lsn: Lsn) {
        assert!(end_lsn > self.start_lsn, "a layer from {} cannot end at {end_lsn}", self.start_lsn);
        // Under the `writer` lock, so that no batch is half-way in.
        let _writer = self.file.writer().lock().await;
        let fresh = self.end_lsn.set(end_lsn).is_ok();
        assert!(fresh, "the layer is frozen twice");
    }

    /// Makes the frozen layer a durable delta layer file under a temporary name in the timeline's directory, to be
    /// renamed by the caller. `None` if `key_range` is given and the layer has no key in it.
    ///
    /// Without a key range the values stay where they are, unless most are scattered: the ephemeral file gets an index
    /// and becomes the layer file; only scattered chains of changes are written again, contiguously. If most values are
    /// scattered, all are copied in order. With a key range, the values of its keys are copied. On error the layer
    /// stays readable and the call may be repeated.
    pub async fn write_to_disk(
        &self,
        ctx: &RequestContext,
        key_range: Option<Range<Key>>,
        l0_flush: &l0_flush::Inner,
        gate: &Gate,
        cancel: CancellationToken,
    ) -> anyhow::Result<Option<(PersistentLayerDesc, Utf8PathBuf)>> {
        let end_lsn = self.end_lsn().ok_or_else(|| StorageError::Internal("the layer is not frozen".to_owned()))?;
        let mut watch = match key_range {
            None => metrics::ingest_stopwatch().at(IngestStage::WaitForTurn),
            Some(_) => Stopwatch::off(),
        };
        let _permit = l0_flush.acquire().await?;
        let _guard = gate.enter()?;
        if cancel.is_cancelled() {
            return Err(StorageError::Shutdown.into());
        }
        let lsn_range = self.start_lsn..end_lsn;
        match key_range {
            None => self.seal(lsn_range, &mut watch).await.map(Some),
            Some(keys) => self.copy_out(keys, lsn_range, ctx).await,
        }
    }

    async fn seal(
        &self,
        lsn_range: Range<Lsn>,
        watch: &mut Stopwatch<IngestStage>,
    ) -> anyhow::Result<(PersistentLayerDesc, Utf8PathBuf)> {
        watch.enter(IngestStage::Sort);
        let mut writer = self.file.writer().lock().await;
        // Keeps the disk busy while the index is sorted.
        writer.start_writeback();
        let mut index = IndexBuilder::with_filter();
        if !writer.is_ended() {
            // The layer is frozen, so successive reads of its index are consistent.
            let (mut sorted, only_images) = {
                let index = self.index.read();
                (index.sorted(), index.only_images())
            };
            watch.enter(IngestStage::ChainMoves);
            if !only_images && self.may_be_copied() && gather::is_mostly_scattered(&sorted) {
                return self.seal_copy(sorted, lsn_range, watch).await;
            }
            writer.release();
            if !only_images {
                let moves = Moves::plan(&mut sorted, writer.position());
                moves.make(&self.index, self.file.source(), &mut writer).await?;
            }
            watch.enter(IngestStage::IndexWrite);
            sorted.iter().for_each(|version| index.push(entry(&version, version.extent.position)));
        }
        let desc = self.complete(index, &mut writer, lsn_range, watch).await?;
        let path = self.owner.temp_path(&desc.layer_name());
        self.file.keep_as(&path).await?;
        Ok((desc, path))
    }

    /// Whether it is large enough to be worth it, and the disk has room for all values once more, until the layer's own
    /// file goes. What goes through the kernel's cache is found there, wherever it lies, and costs more to write.
    fn may_be_copied(&self) -> bool {
        let (conf, is_direct) = (self.owner.conf, virtual_file::io_mode() == IoMode::DirectRw);
        let is_worth_it = conf.copied_layer_min == 0 || is_direct && self.size() >= conf.copied_layer_min;
        is_worth_it && conf.disk_budget.has_room_for(self.size())
    }

    /// Seals a copy in which all values are in order. The layer's own file goes with the layer.
    async fn seal_copy(
        &self,
        sorted: Sorted,
        lsn_range: Range<Lsn>,
        watch: &mut Stopwatch<IngestStage>,
    ) -> anyhow::Result<(PersistentLayerDesc, Utf8PathBuf)> {
        let name = LayerName::Delta { key_range: Key::MIN..Key::MAX, lsn_range: lsn_range.clone() };
        let path = self.owner.temp_path(&name);
        let mut writer =
            BlockWriter::new(Arc::new(VirtualFile::open(&path, OpenMode::CreateNew).await?), new_file_id());
        let in_memory = self.file.in_memory();
        let written = async {
            let mut position = writer.position();
            match &in_memory {
                Some(blocks) => gather::copy_in_order(&sorted, blocks, &mut writer).await?,
                None => {
                    let too_many = || StorageError::Internal("the layer has too many values to be copied".to_owned());
                    let moves = Moves::of_all(&sorted).ok_or_else(too_many)?;
                    moves.make(&self.index, self.file.source(), &mut writer).await?;
                }
            }
            watch.enter(IngestStage::IndexWrite);
            let mut index = IndexBuilder::with_filter();
            for version in sorted.iter() {
                index.push(entry(&version, position));
                position += u64::from(version.extent.len);
            }
            if position != writer.position() {
                let reason = format!("values were written up to {}, their index ends at {position}", writer.position());
                return Err(StorageError::Internal(reason));
            }
            self.complete(index, &mut writer, lsn_range, watch).await
        };
        let written = written.await;
        if written.is_err() {
            // Another attempt begins with another file.
            let _ = fs::unlink(&path).await;
        }
        let desc = written?;
        self.is_copied.store(in_memory.is_some(), Ordering::Relaxed);
        Ok((desc, path))
    }

    /// Appends `index` to the values in `writer`, and makes the file durable.
    async fn complete(
        &self,
        index: IndexBuilder,
        writer: &mut BlockWriter,
        lsn_range: Range<Lsn>,
        watch: &mut Stopwatch<IngestStage>,
    ) -> Result<PersistentLayerDesc, StorageError> {
        watch.enter(IngestStage::IndexWrite);
        index.complete(writer).await?;
        watch.enter(IngestStage::Fsync);
        let keys = Key::MIN..Key::MAX;
        let header = self.owner.header(LayerKind::Delta, writer.file_id(), keys.clone(), lsn_range.clone());
        let file_size = make_durable(writer, &header).await?;
        let Owner { tenant_shard_id, timeline_id, .. } = self.owner;
        Ok(PersistentLayerDesc::new_delta(tenant_shard_id, timeline_id, keys, lsn_range, file_size))
    }

    async fn copy_out(
        &self,
        keys: Range<Key>,
        lsn_range: Range<Lsn>,
        ctx: &RequestContext,
    ) -> anyhow::Result<Option<(PersistentLayerDesc, Utf8PathBuf)>> {
        let Some((first, last)) = compact_bounds(&keys) else { return Ok(None) };
        let versions = self.index.read().range(first, last);
        if versions.is_empty() {
            return Ok(None);
        }
        let Owner { conf, tenant_shard_id, timeline_id } = self.owner;
        let mut writer = DeltaLayerWriter::create(conf, timeline_id, tenant_shard_id, keys, lsn_range, ctx).await?;
        for group in versions.chunks(1024) {
            let extents: Vec<_> = group.iter().map(|version| version.extent).collect();
            let (values, _) = self.file.source().read_values(&extents).await?;
            for (version, value) in group.iter().zip(values) {
                writer.put_serialized(version.key, version.lsn, &value, version.will_init).await?;
            }
        }
        Ok(Some(writer.finish(ctx).await?))
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
        for range in keyspace.ranges() {
            let Some((first, last)) = compact_bounds(range) else { continue };
            if first == last {
                let key = Key::from_compact(first);
                if !state.is_complete(&key) {
                    let mut versions = self.index.read().needed(first, lsn_range.end);
                    versions.retain(|version| version.lsn >= lsn_range.start);
                    push_wanted(key, &versions, &mut wanted);
                }
                continue;
            }
            let versions = self.index.read().range(first, last);
            let entries = versions.iter().map(|version| entry(version, version.extent.position));
            collect_versions(entries, &lsn_range, state, &mut wanted);
        }
        super::visit::read_versions(self.file.source(), wanted, state).await
    }

    /// All versions of the layer as (key, LSN, whether no earlier version is needed), in order.
    pub fn versions(&self) -> Vec<(CompactKey, Lsn, bool)> {
        let index = self.index.read();
        index.sorted().iter().map(|version| (version.key, version.lsn, version.will_init)).collect()
    }
}

fn push_wanted(key: Key, versions: &[Version], wanted: &mut Vec<KeyVersions>) {
    if !versions.is_empty() {
        let versions = versions.iter().map(|version| entry(version, version.extent.position)).collect();
        wanted.push(KeyVersions { key, versions });
    }
}

fn entry(version: &Version, position: u64) -> IndexEntry {
    IndexEntry { key: version.key, lsn: version.lsn, position, len: version.extent.len, flag: version.will_init }
}

fn check_limits(batch: &SerializedValueBatch, position: u64) -> Result<(), StorageError> {
    if position + batch.buffer_size() as u64 > POSITION_MAX {
        return Err(StorageError::Invalid(format!("an in-memory layer holds at most {POSITION_MAX} bytes")));
    }
    match batch.metadata().iter().find(|meta| meta.len as usize > VALUE_LEN_MAX) {
        Some(meta) => Err(StorageError::Invalid(format!(
            "the value of key {:?} at LSN {} has {} bytes, at most {VALUE_LEN_MAX} are possible",
            meta.key, meta.lsn, meta.len
        ))),
        None => Ok(()),
    }
}
