//! An open layer file, local or in the bucket: holds header, footer and fences, reads index pages through the page
//! cache and blocks on demand.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use camino::Utf8Path;
use layer_format::FormatError;
use layer_format::block::{BLOCK_PAYLOAD, BLOCK_SIZE, FileId, block_start};
use layer_format::fences::{FENCE_LEN, Fences};
use layer_format::filter::{self, KeyHash};
use layer_format::footer::Footer;
use layer_format::header::{Header, LayerKind};
use layer_format::index::{INDEX_PAGE_BLOCKS, INDEX_PAGE_SIZE, IndexEntry, IndexPage};
use pageserver_api::key::{CompactKey, Key};
use smallvec::{SmallVec, smallvec};
use utils::lsn::Lsn;

use super::block_source::{BlockSource, Extent};
use super::read_costs::ReadCosts;
use super::remote_file::{RemoteFile, RemoteObject};
use super::visit::compact_bounds;
use super::{LayerIdentity, PersistentLayerDesc};
use crate::page_cache::{CachedFile, PageCache};
use crate::resources::Resources;
use errors::StorageError;
use metrics::METRICS;
use remote_storage::RequestClass;
use virtual_file::{OpenMode, VirtualFile};

/// Up to this size, the tail of a file in the bucket is fetched whole; of a longer one, at first only the end.
const TAIL_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of index pages read together.
const PAGES_AT_ONCE: u32 = 32;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct LayerFile {
    source: BlockSource,
    header: Header,
    footer: Footer,
    fences: Fences,
    file_size: u64,
    cached: CachedFile,
    /// What opening it has cost, and whether the first read is still to come.
    opening: ReadCosts,
    is_fresh: AtomicBool,
}

fn corrupt(file: &VirtualFile, offset: u64, error: FormatError) -> StorageError {
    METRICS.corrupt_blocks.inc();
    StorageError::Corrupt { path: file.path(), offset, reason: error.0 }
}

/// Reads one block without verifying it, as the file's id is not known yet.
async fn read_raw_block(file: &VirtualFile, block: u64) -> Result<Vec<u8>, StorageError> {
    let unit = file.align();
    let offset = block * BLOCK_SIZE as u64;
    let start = offset / unit * unit;
    let buf = file.start_read(start, unit as usize).await.map_err(|source| file.error("read", start, source))?;
    let from = (offset - start) as usize;
    buf.get(from..from + BLOCK_SIZE).map(<[u8]>::to_vec).ok_or_else(|| StorageError::Corrupt {
        path: file.path(),
        offset,
        reason: "the file ends inside a block".to_owned(),
    })
}

/// The identity of the file at `path`.
pub async fn read_identity(path: &Utf8Path) -> Result<LayerIdentity, StorageError> {
    Ok(LayerFile::open(path, &Arc::default()).await?.identity())
}

/// The identity of the object, from its header and footer. Fails if it is not the layer `desc`.
pub async fn read_remote_identity(
    object: &RemoteObject,
    desc: &PersistentLayerDesc,
) -> Result<LayerIdentity, StorageError> {
    let (size, name) = (BLOCK_SIZE as u64, object.storage.name_of(&object.path));
    let corrupt =
        |block: u64, reason: String| StorageError::Corrupt { path: name.clone().into(), offset: block * size, reason };
    let last = (desc.file_size / size).checked_sub(1).filter(|last| *last > 0);
    let last = last.ok_or_else(|| corrupt(0, format!("{} bytes are no layer", desc.file_size)))?;
    let block = |number: u64| {
        let range = number * size..(number + 1) * size;
        object.storage.get_range(RequestClass::Scrub, &object.path, range)
    };
    let (header, footer) = (block(0).await?, block(last).await?);
    let header = Header::decode(&header).map_err(|error| corrupt(0, error.0))?;
    let footer = Footer::decode(&footer, last).map_err(|error| corrupt(last, error.0))?;
    check_layout(&header, &footer, last).map_err(|error| corrupt(last, error.0))?;
    if desc_of(&header, desc.file_size) != *desc {
        return Err(corrupt(0, "it is another layer, as its header says".to_owned()));
    }
    Ok(identity_of(&footer))
}

fn identity_of(footer: &Footer) -> LayerIdentity {
    let tail_offset = footer.index_block * BLOCK_SIZE as u64;
    LayerIdentity { file_id: footer.file_id.0, tail_offset, filter_blocks: footer.filter_blocks }
}

fn desc_of(header: &Header, file_size: u64) -> PersistentLayerDesc {
    let Header { kind, tenant_shard_id, timeline_id, key_range, lsn_range, .. } = header.clone();
    let is_delta = kind == LayerKind::Delta;
    PersistentLayerDesc { tenant_shard_id, timeline_id, key_range, lsn_range, is_delta, file_size }
}

impl LayerFile {
    /// Opens any owner's layer file, verifying header, footer and fences. Its index pages are kept in `pages`.
    pub(super) async fn open(path: &Utf8Path, pages: &Arc<PageCache>) -> Result<Self, StorageError> {
        let file = Arc::new(VirtualFile::open(path, OpenMode::Read).await?);
        let file_size = file.size()?;
        let last = (file_size / BLOCK_SIZE as u64).checked_sub(1);
        let Some(last) = last.filter(|last| *last > 0 && file_size.is_multiple_of(BLOCK_SIZE as u64)) else {
            let reason = format!("{file_size} bytes are no whole number of blocks: not a layer file, or cut short");
            return Err(StorageError::Corrupt { path: path.to_owned(), offset: file_size, reason });
        };
        let header = read_raw_block(&file, 0).await?;
        let header = Header::decode(&header).map_err(|error| corrupt(&file, 0, error))?;
        let offset = last * BLOCK_SIZE as u64;
        let footer = read_raw_block(&file, last).await?;
        let footer = Footer::decode(&footer, last).map_err(|error| corrupt(&file, offset, error))?;
        check_layout(&header, &footer, last).map_err(|error| corrupt(&file, offset, error))?;
        let source = BlockSource::new(Arc::clone(&file), header.file_id, None);
        let fences_end = last - u64::from(footer.filter_blocks);
        let (mut fences, mut opening) = source.read_payload(footer.fences_block, fences_end).await?;
        opening.local_bytes += 2 * file.align();
        fences.truncate(footer.fences_len as usize);
        let fences = Fences::decode(&fences, footer.index_pages)
            .map_err(|error| corrupt(&file, footer.fences_block * BLOCK_SIZE as u64, error))?;
        let (cached, is_fresh) = (pages.file(), AtomicBool::new(true));
        Ok(Self { source, header, footer, fences, file_size, cached, opening, is_fresh })
    }

    /// Opens a file that must be the layer `desc`.
    pub(super) async fn open_as(
        path: &Utf8Path,
        desc: &PersistentLayerDesc,
        pages: &Arc<PageCache>,
    ) -> Result<Self, StorageError> {
        let file = Self::open(path, pages).await?;
        let found = file.desc();
        if found == *desc || fault::planted(fault::Bug::IgnoreIdentity) {
            return Ok(file);
        }
        let reason = format!("the file is another layer: expected {desc:?}, found {found:?}");
        Err(StorageError::Corrupt { path: path.to_owned(), offset: 0, reason })
    }

    /// Opens the layer `desc` in the bucket. Fetches only the tail from `identity.tail_offset` on, or just its end if
    /// it is long; the header is not needed, since every block is verified against the file's id.
    pub(super) async fn open_remote(
        remote: Arc<RemoteFile>,
        desc: &PersistentLayerDesc,
        identity: LayerIdentity,
        generation: u32,
    ) -> Result<Self, StorageError> {
        let layout = TailLayout::of(identity, desc.file_size).ok_or_else(|| {
            let reason = format!("an index at {} cannot be in {} bytes", identity.tail_offset, desc.file_size);
            StorageError::Corrupt { path: remote.name(), offset: identity.tail_offset, reason }
        })?;
        let TailLayout { index_pages, fences_block, filter_block, last, .. } = layout;
        let first = first_fetched(&layout, identity, desc.file_size, remote.resources());
        let (footer, mut opening) = remote.read_last(first..last + 1).await?;
        let cached = remote.resources().pages.file();
        let source = BlockSource::remote(Arc::clone(&remote), FileId(identity.file_id));
        let footer = Footer::decode(&footer, last).map_err(|error| source.corrupt(last, error.0))?;
        let found = (identity_of(&footer), footer.index_pages, footer.fences_block);
        if found != (identity, index_pages, fences_block) {
            return Err(source.corrupt(last, "the footer is of another file"));
        }
        let (mut fences, more) = source.read_payload(fences_block, filter_block).await?;
        opening += more;
        fences.truncate(footer.fences_len as usize);
        let fences = Fences::decode(&fences, index_pages).map_err(|error| source.corrupt(fences_block, error.0))?;
        let header = Header {
            kind: if desc.is_delta { LayerKind::Delta } else { LayerKind::Image },
            generation,
            file_id: footer.file_id,
            tenant_shard_id: desc.tenant_shard_id,
            timeline_id: desc.timeline_id,
            key_range: desc.key_range.clone(),
            lsn_range: desc.lsn_range.clone(),
        };
        let (file_size, is_fresh) = (desc.file_size, AtomicBool::new(true));
        Ok(Self { source, header, footer, fences, file_size, cached, opening, is_fresh })
    }

    /// What opening it has cost, but for the time: for the first read, nothing for those that follow. Those who waited
    /// for it count their time themselves, as they may be others.
    pub(super) fn take_opening(&self) -> ReadCosts {
        // Two stores for each read would cost more than the look.
        let is_first = self.is_fresh.load(Ordering::Relaxed) && self.is_fresh.swap(false, Ordering::Relaxed);
        if !is_first {
            return ReadCosts::default();
        }
        ReadCosts { fetching: Duration::ZERO, waiting: Duration::ZERO, ..self.opening }
    }

    pub(super) fn source(&self) -> &BlockSource {
        &self.source
    }

    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    pub(super) fn footer(&self) -> &Footer {
        &self.footer
    }

    pub(super) fn desc(&self) -> PersistentLayerDesc {
        desc_of(&self.header, self.file_size)
    }

    pub(super) fn identity(&self) -> LayerIdentity {
        identity_of(&self.footer)
    }

    pub(super) fn pages(&self) -> u32 {
        self.footer.index_pages
    }

    /// The index page where a search for `key` starts.
    pub(super) fn page_of(&self, key: CompactKey) -> u32 {
        self.fences.page_of(key, Lsn(0)) as u32
    }

    /// Up to `count` keys, ascending, with about equally many entries between them.
    pub(super) fn sample_keys(&self, count: usize) -> Vec<Key> {
        let pages = self.pages() as usize;
        let step = pages.div_ceil(count.max(1)).max(1);
        let first = |page| self.fences.first_of(page).map(|(key, _)| Key::from_compact(key));
        (0..pages).step_by(step).filter_map(first).collect()
    }

    fn page_block(&self, page: u32) -> u64 {
        self.footer.index_block + u64::from(page) * INDEX_PAGE_BLOCKS
    }

    /// The payload of an index page.
    pub(super) async fn index_page(&self, page: u32, costs: &mut ReadCosts) -> Result<Bytes, StorageError> {
        if let Some(bytes) = self.cached.get(page) {
            return Ok(bytes);
        }
        let extent = Extent { position: block_start(self.page_block(page)), len: INDEX_PAGE_SIZE as u32 };
        let (values, more) = self.source.read_values(&[extent]).await?;
        *costs += more;
        let bytes = values.into_iter().next().unwrap_or_default();
        self.cached.insert(page, bytes.clone());
        Ok(bytes)
    }

    /// Decodes an index page returned by [`LayerFile::index_page`].
    pub(super) fn decode<'a>(&self, page: u32, bytes: &'a [u8]) -> Result<IndexPage<'a>, StorageError> {
        IndexPage::decode(bytes).map_err(|error| self.source.corrupt(self.page_block(page), error.0))
    }

    /// All entries with keys in `keys`, in order of (key, LSN); `None` if the filter alone says that there are none.
    pub(super) async fn search(
        &self,
        keys: &Range<Key>,
        costs: &mut ReadCosts,
    ) -> Result<Option<Vec<IndexEntry>>, StorageError> {
        match compact_bounds(keys) {
            Some((first, last)) if first < last || self.may_contain(first, costs).await? => {
                self.entries_between(first, last, costs).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// All entries with keys in `keys`, in order of (key, LSN).
    pub(super) async fn entries(
        &self,
        keys: &Range<Key>,
        costs: &mut ReadCosts,
    ) -> Result<Vec<IndexEntry>, StorageError> {
        Ok(self.search(keys, costs).await?.unwrap_or_default())
    }

    /// Whether the filter, if there is one, lets `key` pass.
    pub(super) async fn may_contain(&self, key: CompactKey, costs: &mut ReadCosts) -> Result<bool, StorageError> {
        if self.footer.filter_blocks == 0 {
            return Ok(true);
        }
        let hash = KeyHash::of(key);
        let number = hash.block(self.footer.filter_blocks);
        let payload = self.filter_block(number, costs).await?;
        let passes = filter::may_contain(&payload, hash);
        costs.filters += 1;
        METRICS.filter_probes.inc();
        METRICS.filter_skips.inc_by(u64::from(!passes));
        Ok(passes)
    }

    async fn filter_block(&self, number: u32, costs: &mut ReadCosts) -> Result<Bytes, StorageError> {
        // In the page cache the filter's blocks follow the index pages.
        let cached_as = self.footer.index_pages + number;
        if let Some(bytes) = self.cached.get(cached_as) {
            return Ok(bytes);
        }
        let first = self.source_end() - u64::from(self.footer.filter_blocks);
        let position = block_start(first + u64::from(number));
        let (values, more) = self.source.read_values(&[Extent { position, len: BLOCK_PAYLOAD as u32 }]).await?;
        *costs += more;
        let bytes = values.into_iter().next().unwrap_or_default();
        self.cached.insert(cached_as, bytes.clone());
        Ok(bytes)
    }

    /// Number of the footer's block.
    fn source_end(&self) -> u64 {
        self.file_size / BLOCK_SIZE as u64 - 1
    }

    async fn entries_between(
        &self,
        first: CompactKey,
        last: CompactKey,
        costs: &mut ReadCosts,
    ) -> Result<Vec<IndexEntry>, StorageError> {
        let mut found = Vec::new();
        let start = self.page_of(first);
        let is_wanted = |page: u32| self.fences.first_of(page as usize).is_some_and(|(key, _)| key <= last);
        let end = (start + 1..self.pages()).find(|page| !is_wanted(*page)).unwrap_or(self.pages());
        for start in (start..end).step_by(PAGES_AT_ONCE as usize) {
            let pages = start..end.min(start + PAGES_AT_ONCE);
            for (page, bytes) in pages.clone().zip(self.index_pages(pages, costs).await?) {
                let index = self.decode(page, &bytes)?;
                let from = index.lower_bound(first, Lsn(0));
                found.extend(index.iter_from(from).take_while(|entry| entry.key <= last));
            }
        }
        Ok(found)
    }

    /// The payloads of neighboring index pages; those that are not cached are read together.
    async fn index_pages(
        &self,
        pages: Range<u32>,
        costs: &mut ReadCosts,
    ) -> Result<SmallVec<[Bytes; 2]>, StorageError> {
        if pages.len() == 1 {
            return Ok(smallvec![self.index_page(pages.start, costs).await?]);
        }
        let cached: Vec<Option<Bytes>> = pages.clone().map(|page| self.cached.get(page)).collect();
        let missing = pages.clone().zip(&cached).filter(|(_, cached)| cached.is_none()).map(|(page, _)| page);
        let missing: Vec<u32> = missing.collect();
        let extent = |page: &u32| Extent { position: block_start(self.page_block(*page)), len: INDEX_PAGE_SIZE as u32 };
        let extents: Vec<Extent> = missing.iter().map(extent).collect();
        let mut read = Vec::new();
        if !extents.is_empty() {
            let (values, more) = self.source.read_values(&extents).await?;
            *costs += more;
            missing.iter().zip(&values).for_each(|(page, bytes)| self.cached.insert(*page, bytes.clone()));
            read = values;
        }
        let mut read = read.into_iter();
        Ok(cached.into_iter().filter_map(|cached| cached.or_else(|| read.next())).collect())
    }
}

/// Number of index pages of the layer file `identity` of `file_size` bytes, without opening it; 0 if there is no such
/// file.
pub(crate) fn index_pages(identity: LayerIdentity, file_size: u64) -> u32 {
    TailLayout::of(identity, file_size).map_or(0, |layout| layout.index_pages)
}

/// Up to how many bytes are fetched to open the layer file `identity` of `file_size` bytes in the bucket.
pub(crate) fn opening_bytes(identity: LayerIdentity, file_size: u64, resources: &Resources) -> u64 {
    let first = if is_fetched_whole(file_size, resources) { 0 } else { identity.tail_offset };
    file_size.saturating_sub(first)
}

/// Whether a file is fetched whole when it is opened: if it is small, that takes hardly longer than its tail, and saves
/// round trips for what is read of it.
fn is_fetched_whole(file_size: u64, resources: &Resources) -> bool {
    file_size <= resources.blocks.open_ahead_max() / 4
}

/// The first block of those that are fetched to open a file in the bucket, which go on to its end.
fn first_fetched(layout: &TailLayout, identity: LayerIdentity, file_size: u64, resources: &Resources) -> u64 {
    match file_size.saturating_sub(identity.tail_offset) {
        _ if is_fetched_whole(file_size, resources) => 0,
        tail if tail <= TAIL_BYTES_MAX => layout.index_block,
        _ => layout.fences_block,
    }
}

/// Where the parts of a file's tail lie, derived from where the tail begins and the file's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TailLayout {
    index_block: u64,
    index_pages: u32,
    fences_block: u64,
    filter_block: u64,
    last: u64,
}

impl TailLayout {
    fn of(identity: LayerIdentity, file_size: u64) -> Option<Self> {
        let size = BLOCK_SIZE as u64;
        let filter_blocks = u64::from(identity.filter_blocks);
        let blocks = (file_size.checked_sub(identity.tail_offset)? / size).checked_sub(filter_blocks)?;
        let whole = identity.tail_offset.is_multiple_of(size) && file_size.is_multiple_of(size);
        let index_block = identity.tail_offset / size;
        // Each page takes its blocks and a fence; the filter and the footer follow the fences.
        let fence_blocks = |pages: u64| (pages * FENCE_LEN as u64).div_ceil(BLOCK_PAYLOAD as u64);
        let needed = |pages: u64| pages * INDEX_PAGE_BLOCKS + fence_blocks(pages) + 1;
        let guess = blocks * BLOCK_PAYLOAD as u64 / (INDEX_PAGE_BLOCKS * BLOCK_PAYLOAD as u64 + FENCE_LEN as u64);
        let pages = (guess.saturating_sub(2)..=guess).rev().find(|pages| needed(*pages) == blocks)?;
        let fences_block = index_block + pages * INDEX_PAGE_BLOCKS;
        let last = (file_size / size).checked_sub(1)?;
        (whole && index_block > 0).then_some(Self {
            index_block,
            index_pages: u32::try_from(pages).ok()?,
            fences_block,
            filter_block: last.checked_sub(filter_blocks)?,
            last,
        })
    }
}

fn check_layout(header: &Header, footer: &Footer, last: u64) -> Result<(), FormatError> {
    let index_end = footer.index_block + u64::from(footer.index_pages) * INDEX_PAGE_BLOCKS;
    let fence_blocks = footer.fences_len.div_ceil(BLOCK_PAYLOAD as u64);
    if header.file_id != footer.file_id || header.file_id == FileId(0) {
        return Err(FormatError("header and footer are of different files".to_owned()));
    }
    let filter_end = footer.fences_block + fence_blocks + u64::from(footer.filter_blocks);
    if index_end != footer.fences_block || filter_end != last {
        return Err(FormatError("the parts of the file do not join".to_owned()));
    }
    Ok(())
}
