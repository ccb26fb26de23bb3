//! Finishes a layer file: index pages, fences, filter, footer, header, and the sync that makes it durable.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use camino::Utf8PathBuf;
use layer_format::block::FileId;
use layer_format::fences::Fences;
use layer_format::filter::FilterBuilder;
use layer_format::footer::Footer;
use layer_format::header::{Header, LayerKind};
use layer_format::index::{INDEX_PAGE_BLOCKS, INDEX_PAGE_SIZE, IndexEntry, IndexPageBuilder};
use pageserver_api::key::Key;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utils::shard::TenantShardId;

use super::LayerName;
use super::block_writer::BlockWriter;
use crate::config::PageServerConf;
use errors::StorageError;
use virtual_file::fs::TEMP_SUFFIX;

/// Bytes of index pages that are contiguous in memory before they are written.
const PAGES_PIECE: usize = 1 << 20;

/// The owner of the layer being written, and where it goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) conf: &'static PageServerConf,
    pub(super) tenant_shard_id: TenantShardId,
    pub(super) timeline_id: TimelineId,
}

impl Owner {
    pub(super) fn timeline_path(&self) -> Utf8PathBuf {
        self.conf.timeline_path(&self.tenant_shard_id, &self.timeline_id)
    }

    /// A path for an unfinished layer. Unique within the process; leftovers of other processes are removed at start.
    pub(super) fn temp_path(&self, name: &LayerName) -> Utf8PathBuf {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.timeline_path().join(format!("{name}.{number}{TEMP_SUFFIX}"))
    }

    pub(super) fn header(&self, kind: LayerKind, file_id: FileId, keys: Range<Key>, lsns: Range<Lsn>) -> Header {
        Header {
            kind,
            generation: 1,
            file_id,
            tenant_shard_id: self.tenant_shard_id,
            timeline_id: self.timeline_id,
            key_range: keys,
            lsn_range: lsns,
        }
    }
}

/// Gathers index entries in order of (key, LSN) into pages of whole blocks.
#[derive(Debug, Default)]
pub(super) struct IndexBuilder {
    page: IndexPageBuilder,
    fences: Fences,
    /// Pages in pieces of about [`PAGES_PIECE`] bytes, so that they do not move as their number grows.
    pages: Vec<Vec<u8>>,
    /// Of a delta layer.
    filter: Option<FilterBuilder>,
    entries: u64,
    value_bytes: u64,
}

impl IndexBuilder {
    /// For a delta layer: most searches for a key that it does not have end at its filter.
    pub(super) fn with_filter() -> Self {
        Self { filter: Some(FilterBuilder::default()), ..Self::default() }
    }

    pub(super) fn push(&mut self, entry: IndexEntry) {
        if !self.page.push(entry) {
            self.end_page();
            let taken = self.page.push(entry);
            debug_assert!(taken, "an empty page takes any entry");
        }
        let is_left_out = fault::planted(fault::Bug::FilterFalseNegative) && self.entries.is_multiple_of(7);
        if let Some(filter) = self.filter.as_mut().filter(|_| !is_left_out) {
            filter.push(entry.key);
        }
        self.entries += 1;
        self.value_bytes += u64::from(entry.len);
    }

    fn end_page(&mut self) {
        if let Some(first) = self.page.first() {
            self.fences.push(first.key, first.lsn);
            if self.pages.last().is_none_or(|piece| piece.len() >= PAGES_PIECE) {
                self.pages.push(Vec::with_capacity(PAGES_PIECE + 2 * INDEX_PAGE_SIZE));
            }
            if let Some(piece) = self.pages.last_mut() {
                self.page.finish_into(piece);
                piece.resize(piece.len().next_multiple_of(INDEX_PAGE_SIZE), 0);
            }
        }
    }

    /// Number of entries so far.
    pub(super) fn entries(&self) -> u64 {
        self.entries
    }

    /// Appends the index to the values in `writer` and makes the file durable. Returns the file's length.
    ///
    /// May be called again after an error. If the index was complete already, the new one is ignored; otherwise the
    /// file retains a dead part of an index.
    pub(super) async fn finish(self, writer: &mut BlockWriter, header: &Header) -> Result<u64, StorageError> {
        self.complete(writer).await?;
        make_durable(writer, header).await
    }

    /// The first half of [`IndexBuilder::finish`]: appends the index, unless it is complete already.
    pub(super) async fn complete(mut self, writer: &mut BlockWriter) -> Result<(), StorageError> {
        if writer.is_ended() { Ok(()) } else { self.append_to(writer).await }
    }

    async fn append_to(&mut self, writer: &mut BlockWriter) -> Result<(), StorageError> {
        self.end_page();
        writer.pad_block().await?;
        let index_block = writer.block();
        for piece in &self.pages {
            writer.append(piece).await?;
        }
        let fences_block = writer.block();
        debug_assert_eq!(fences_block, index_block + self.fences.len() as u64 * INDEX_PAGE_BLOCKS);
        let fences = self.fences.encode();
        writer.append(&fences).await?;
        writer.pad_block().await?;
        let filter_block = writer.block();
        writer.append(&self.filter.take().map_or_else(Vec::new, FilterBuilder::finish)).await?;
        let footer = Footer {
            file_id: writer.file_id(),
            index_block,
            index_pages: self.fences.len() as u32,
            fences_block,
            fences_len: fences.len() as u64,
            filter_blocks: (writer.block() - filter_block) as u32,
            entries: self.entries,
            value_bytes: self.value_bytes,
        };
        writer.end_with(&footer.encode(writer.block())).await
    }
}

/// The second half of [`IndexBuilder::finish`]: makes the file durable once its index is complete. Returns its length.
pub(super) async fn make_durable(writer: &mut BlockWriter, header: &Header) -> Result<u64, StorageError> {
    let file_size = writer.flush_and_cut().await?;
    writer.write_header(header).await?;
    if !fault::planted(fault::Bug::PublishUnsyncedLayer) {
        writer.file().sync().await?;
    }
    Ok(file_size)
}

/// A fresh id for a layer file.
pub(super) fn new_file_id() -> FileId {
    if fault::planted(fault::Bug::ReuseLayerName) {
        return FileId(7);
    }
    FileId(env::random::u64())
}
