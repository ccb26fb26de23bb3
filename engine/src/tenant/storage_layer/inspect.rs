//! Checks and lists individual layer files, for tools.

use std::sync::Arc;

use camino::Utf8Path;
use layer_format::footer::Footer;
use layer_format::header::{Header, LayerKind};
use layer_format::index::IndexEntry;
use pageserver_api::key::Key;
use pageserver_api::value::Value;
use utils::lsn::Lsn;

use super::block_source::Extent;
use super::image_writer::decompress;
use super::layer_file::LayerFile;
use super::read_costs::ReadCosts;
use super::{LayerIdentity, PersistentLayerDesc};
use errors::StorageError;

/// Blocks verified at a time.
const VERIFY_BLOCKS: u64 = 256;
/// Values decoded at a time.
const VERIFY_VALUES: usize = 1024;

/// A layer file opened by a tool, whatever its owner and name.
#[derive(Debug)]
pub struct LayerInspector {
    file: LayerFile,
}

/// One version in a layer file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedVersion {
    /// The key.
    pub key: Key,
    /// LSN of the version.
    pub lsn: Lsn,
    /// Logical position of the stored value in the file.
    pub position: u64,
    /// Stored length in bytes.
    pub stored_len: u32,
    /// In a delta layer: no earlier version is needed. In an image layer: the image is stored compressed.
    pub flag: bool,
}

/// What a check of a whole layer file has covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifiedLayer {
    /// Blocks with valid checksums.
    pub blocks: u64,
    /// Values that decode.
    pub values: u64,
}

impl LayerInspector {
    /// Opens a layer file.
    pub async fn open(path: &Utf8Path) -> Result<Self, StorageError> {
        Ok(Self { file: LayerFile::open(path, &Arc::default()).await? })
    }

    /// Opens a file that must be the layer `desc`.
    pub async fn open_as(path: &Utf8Path, desc: &PersistentLayerDesc) -> Result<Self, StorageError> {
        Ok(Self { file: LayerFile::open_as(path, desc, &Arc::default()).await? })
    }

    /// Header of the file.
    pub fn header(&self) -> &Header {
        self.file.header()
    }

    /// Footer of the file.
    pub fn footer(&self) -> &Footer {
        self.file.footer()
    }

    /// What distinguishes the file from any other.
    pub fn identity(&self) -> LayerIdentity {
        self.file.identity()
    }

    /// What the file is according to its header.
    pub fn desc(&self) -> PersistentLayerDesc {
        self.file.desc()
    }

    /// Number of index pages, for [`LayerInspector::versions_of_page`].
    pub fn pages(&self) -> u32 {
        self.file.pages()
    }

    /// The versions that one index page lists.
    pub async fn versions_of_page(&self, page: u32) -> Result<Vec<InspectedVersion>, StorageError> {
        Ok(self.entries_of_page(page).await?.iter().map(inspected).collect())
    }

    async fn entries_of_page(&self, page: u32) -> Result<Vec<IndexEntry>, StorageError> {
        let bytes = self.file.index_page(page, &mut ReadCosts::default()).await?;
        Ok(self.file.decode(page, &bytes)?.iter_from(0).collect())
    }

    /// Checks every block's checksum, the order of the index, and that every value decodes.
    pub async fn verify(&self) -> Result<VerifiedLayer, StorageError> {
        let mut seen = VerifiedLayer { blocks: self.verify_blocks().await?, values: 0 };
        let mut last = None;
        for page in 0..self.pages() {
            let entries = self.entries_of_page(page).await?;
            for entry in &entries {
                let place = Some((entry.key, entry.lsn));
                if last >= place {
                    return Err(self.corrupt(self.file.footer().index_block, "index entries are not in order"));
                }
                let is_new = last.is_none_or(|(key, _)| key != entry.key);
                last = place;
                if is_new && !self.file.may_contain(entry.key, &mut ReadCosts::default()).await? {
                    return Err(self.corrupt(self.file.footer().fences_block, "the filter denies a key of the index"));
                }
            }
            for group in entries.chunks(VERIFY_VALUES) {
                seen.values += self.verify_values(group).await?;
            }
        }
        if seen.values != self.file.footer().entries {
            return Err(
                self.corrupt(self.file.footer().index_block, "the index has other entries than the footer says")
            );
        }
        Ok(seen)
    }

    fn corrupt(&self, block: u64, reason: &str) -> StorageError {
        self.file.source().corrupt(block, reason)
    }

    async fn verify_blocks(&self) -> Result<u64, StorageError> {
        let last = self.desc().file_size / layer_format::block::BLOCK_SIZE as u64 - 1;
        // Block 0 and the last one were checked by `open`; blocks skipped for direct I/O are zero.
        let first = self.file.source().unit_blocks();
        for start in (first.max(1)..last).step_by(VERIFY_BLOCKS as usize) {
            self.file.source().read_payload(start, last.min(start + VERIFY_BLOCKS)).await?;
        }
        Ok(last + 1)
    }

    async fn verify_values(&self, entries: &[IndexEntry]) -> Result<u64, StorageError> {
        let extents: Vec<Extent> =
            entries.iter().map(|entry| Extent { position: entry.position, len: entry.len }).collect();
        let (values, _) = self.file.source().read_values(&extents).await?;
        let is_delta = self.header().kind == LayerKind::Delta;
        for (entry, stored) in entries.iter().zip(values) {
            let decodes = match is_delta {
                true => Value::decode(&stored).is_ok_and(|value| value.will_init() == entry.flag),
                false => decompress(stored, entry.flag).is_some(),
            };
            if !decodes {
                let block = layer_format::block::block_of(entry.position);
                let key = Key::from_compact(entry.key);
                return Err(
                    self.corrupt(block, &format!("the value of key {key} at LSN {} does not decode", entry.lsn))
                );
            }
        }
        Ok(entries.len() as u64)
    }
}

fn inspected(entry: &IndexEntry) -> InspectedVersion {
    InspectedVersion {
        key: Key::from_compact(entry.key),
        lsn: entry.lsn,
        position: entry.position,
        stored_len: entry.len,
        flag: entry.flag,
    }
}
