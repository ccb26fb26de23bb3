//! Determines what a decoded record changes: pages by block reference, and everything that needs more than one page.
//!
//! Pure and total. The caller that applies the result tracks relation sizes and other state; see [`Interpreted`].

mod metadata;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use pageserver_api::key::rel_block_key;
use pageserver_api::reltag::{BlockNumber, FSM_FORK, RelTag};
use pageserver_api::value::Value;
use postgres_formats::BLCKSZ;
use postgres_formats::heap::clears_vm;
use postgres_formats::image::restore_image;
use postgres_formats::main_data::MainDataError;
use postgres_formats::page::Page;
use postgres_formats::record::{BlockImage, BlockRef, DecodedRecord, reduce_to_block};
use postgres_formats::rmgr::RmgrId;
use postgres_formats::xlog::op as xlog_op;
use smallvec::SmallVec;
use utils::bin_ser::SerializeError;
use utils::lsn::Lsn;

use crate::serialized_batch::SerializedValueBatch;
use crate::tablespaces::{TablespaceError, TablespaceTable};

pub use metadata::MetadataRecord;

/// Why a record written by the server is not understood.
#[derive(Debug, thiserror::Error)]
pub enum InterpretError {
    /// The main data does not match the record's type.
    #[error("record {record}: {source}")]
    MainData {
        /// The record's name.
        record: &'static str,
        /// The parser's error.
        source: MainDataError,
    },
    /// The record names a tablespace that has no number.
    #[error("record {record}: {source}")]
    Tablespace {
        /// The record's name.
        record: &'static str,
        /// Why there is no number.
        source: TablespaceError,
    },
    /// A block reference names relation 0, the invalid block number, or a block that is already named.
    #[error("record {record}: block reference {block_id} names no block, or one that is named twice")]
    NoBlock {
        /// The record's name.
        record: &'static str,
        /// Id of the block reference.
        block_id: u8,
    },
}

/// The pages that a record changes.
pub type BlockChanges = SmallVec<[BlockChange; 4]>;

/// What one record changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreted<'a> {
    /// Pages that the record changes by block reference. No page is named twice.
    pub changes: BlockChanges,
    /// Other changes, if any.
    pub metadata: Option<MetadataRecord<'a>>,
}

/// A page that a record changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockChange {
    /// Relation fork.
    pub rel: RelTag,
    /// Block number within the fork.
    pub blkno: BlockNumber,
    /// Id of the record's block reference.
    pub block_id: u8,
    /// Whether replay ignores earlier versions of the page.
    pub will_init: bool,
}

/// Determines what `rec` changes. `tablespaces` are those known before the record.
pub fn interpret<'a>(
    rec: &DecodedRecord<'a>,
    tablespaces: &TablespaceTable,
) -> Result<Interpreted<'a>, InterpretError> {
    let mut changes = BlockChanges::new();
    block_changes(rec, tablespaces, &mut changes)?;
    Ok(Interpreted { changes, metadata: metadata(rec)? })
}

/// Appends the pages that `rec` changes by block reference to `changes`, which must be empty.
pub fn block_changes(
    rec: &DecodedRecord<'_>,
    tablespaces: &TablespaceTable,
    changes: &mut BlockChanges,
) -> Result<(), InterpretError> {
    for block in rec.blocks.iter().filter(|block| changes_page(rec, block)) {
        let change = block_change(rec, block, tablespaces)?;
        if changes.iter().any(|other| (other.rel, other.blkno) == (change.rel, change.blkno)) {
            return Err(InterpretError::NoBlock { record: rec.header.name(rec.version), block_id: block.id });
        }
        changes.push(change);
    }
    Ok(())
}

/// Changes by `rec` other than to referenced pages, if any.
pub fn metadata<'a>(rec: &DecodedRecord<'a>) -> Result<Option<MetadataRecord<'a>>, InterpretError> {
    metadata::parse(rec).map_err(|source| InterpretError::MainData { record: rec.header.name(rec.version), source })
}

/// Whether `rec` only changes pages, as most do: then there is no [`metadata`]. Also false if it is damaged.
pub fn changes_only_pages(rec: &DecodedRecord<'_>) -> bool {
    match rec.header.rmgr() {
        RmgrId::HEAP | RmgrId::HEAP2 => matches!(clears_vm(rec), Ok(false)),
        rmgr => (RmgrId::BTREE.0..=RmgrId::BRIN.0).contains(&rmgr.0),
    }
}

/// A hint record without an image (full-page writes are off) does not change the page that it names. It is kept
/// anyway, because the server's page may have its LSN; except for free space maps, which nobody compares.
fn changes_page(rec: &DecodedRecord<'_>, block: &BlockRef<'_>) -> bool {
    !(is_bare_hint(rec) && block.fork == FSM_FORK)
}

/// Whether the record only says that hints were set on a page, without an image of it.
pub fn is_bare_hint(rec: &DecodedRecord<'_>) -> bool {
    rec.header.is_hint() && rec.blocks.iter().all(|block| block.image.is_none())
}

fn block_change(
    rec: &DecodedRecord<'_>,
    block: &BlockRef<'_>,
    tablespaces: &TablespaceTable,
) -> Result<BlockChange, InterpretError> {
    if block.rel.rel == 0 || block.blkno == BlockNumber::MAX {
        return Err(InterpretError::NoBlock { record: rec.header.name(rec.version), block_id: block.id });
    }
    let rel = tablespaces
        .rel_tag(block.rel, block.fork)
        .map_err(|source| InterpretError::Tablespace { record: rec.header.name(rec.version), source })?;
    let will_init = block.will_init || block.image.is_some_and(|image| image.apply);
    Ok(BlockChange { rel, blkno: block.blkno, block_id: block.id, will_init })
}

impl BlockChange {
    /// Appends the page's new version to `batch`: the page itself if the record contains it unmodified, otherwise
    /// `rec`, which is `bytes` and ends at `end_lsn`, reduced to this page.
    pub fn put(
        &self,
        rec: &DecodedRecord<'_>,
        bytes: &[u8],
        end_lsn: Lsn,
        batch: &mut SerializedValueBatch,
    ) -> Result<(), SerializeError> {
        let key = rel_block_key(self.rel, self.blkno).to_compact();
        if let Some(page) = whole_image(rec, self.block_id).and_then(|image| page_of_image(&image, end_lsn)) {
            return batch.put(key, end_lsn, &Value::Image(page)).map(drop);
        }
        batch.put_postgres(key, end_lsn, self.will_init, self.block_id, |out| match rec.blocks.len() {
            // With a single block, the reduced record is the record itself.
            1 => out.extend_from_slice(bytes),
            _ => reduce_to_block(rec, self.block_id, out),
        });
        Ok(())
    }
}

/// The image from a record that consists only of images, if the record stores the whole page unmodified.
fn whole_image<'a>(rec: &DecodedRecord<'a>, block_id: u8) -> Option<BlockImage<'a>> {
    let only_images = matches!(rec.header.opcode(), xlog_op::FPI | xlog_op::FPI_FOR_HINT);
    if rec.header.rmgr() != RmgrId::XLOG || !only_images {
        return None;
    }
    let image = rec.block(block_id)?.image?;
    (image.apply && image.compression.is_none() && image.hole_length == 0).then_some(image)
}

/// The page that replay makes of the image: with the record's LSN, unless it is a new page.
fn page_of_image(image: &BlockImage<'_>, end_lsn: Lsn) -> Option<Bytes> {
    let mut page = Box::new([0; BLCKSZ]);
    restore_image(image, &mut page).ok()?;
    let mut page = Page::new(page);
    if !page.is_new() {
        page.set_lsn(end_lsn.0);
    }
    Some(Bytes::from((page.into_inner() as Box<[u8]>).into_vec()))
}
