//! Relation forks: their existence, their sizes, and blocks written to them.

use std::collections::BTreeSet;

use bytes::Bytes;
use pageserver_api::key::rel_block_key;
use pageserver_api::record::WalRecord;
use pageserver_api::reltag::{BlockNumber, RelTag, VM_FORK};
use postgres_formats::BLCKSZ;
use postgres_formats::heap::{VmClear, op2};
use postgres_formats::record::{DecodedRecord, RelFile};
use postgres_formats::rmgr::RmgrId;
use redo::vm::HEAP_BLOCKS_PER_PAGE;
use wal_decoder::interpret::{BlockChange, is_bare_hint};

use super::{IngestError, WalIngest};
use crate::listing::Listing;
use crate::store::PageStore;

/// Largest gap, in blocks, that a record may leave: 128 GiB. No server leaves one that large, so such a record is
/// damaged.
const MAX_GAP: u32 = 1 << 24;

/// A page of zeros.
pub(super) const ZERO_PAGE: [u8; BLCKSZ] = [0; BLCKSZ];

impl<S: PageStore> WalIngest<S> {
    pub(super) fn rel_tag(&self, rel: RelFile, fork: u8) -> Result<RelTag, IngestError> {
        let tag = self.tablespaces.rel_tag(rel, fork);
        tag.map_err(|source| IngestError::Tablespace { lsn: self.start, source })
    }

    /// The size of a fork after the records so far; `None` if it does not exist.
    pub(super) async fn rel_size(&mut self, rel: RelTag) -> Result<Option<u32>, IngestError> {
        if let Some(size) = self.relations.sizes.get(&rel) {
            return Ok(*size);
        }
        let size = Listing::new(&self.store, self.committed).rel_size(rel).await?;
        self.relations.sizes.insert(rel, size);
        Ok(size)
    }

    /// Creates a fork unless it exists, and returns its size.
    pub(super) async fn ensure_relation(&mut self, rel: RelTag) -> Result<u32, IngestError> {
        if rel.relnode == 0 {
            return Err(self.inconsistent("it names relation 0"));
        }
        let size = self.rel_size(rel).await?;
        if size.is_none() {
            self.relations.create(rel, 0);
        }
        Ok(size.unwrap_or(0))
    }

    /// Stores the change of a block by `rec`, whose bytes are `bytes`. A block beyond the end extends the fork; it
    /// and the skipped ones start as zeros, whatever they were before a truncation.
    ///
    /// A record that needs a missing page is skipped, as in the server's replay; there this is correct only if the
    /// page is removed later. It happens when replay starts from a base backup.
    pub(super) async fn put_block(
        &mut self,
        rec: &DecodedRecord<'_>,
        bytes: &[u8],
        mut change: BlockChange,
    ) -> Result<(), IngestError> {
        let (rel, blkno) = (change.rel, change.blkno);
        if is_bare_hint(rec) && self.rel_size(rel).await?.is_none_or(|size| blkno >= size) {
            return Ok(());
        }
        let size = self.ensure_relation(rel).await?;
        if blkno >= size && !change.will_init && !may_create_page(rec, rel) {
            tracing::warn!(%rel, blkno, size, lsn = %self.start, "record needs a page beyond the end: passed over");
            return Ok(());
        }
        if blkno >= size {
            self.put_zero_pages(rel, size, blkno).await?;
            self.relations.resize(rel, blkno + 1);
            change.will_init = true;
        }
        change.put(rec, bytes, self.lsn, &mut self.batch).map_err(|error| self.inconsistent(error))
    }

    async fn put_zero_pages(&mut self, rel: RelTag, from: BlockNumber, to: BlockNumber) -> Result<(), IngestError> {
        if to.saturating_sub(from) > MAX_GAP {
            return Err(self.inconsistent(format_args!("it leaves a gap from block {from} to {to} of {rel}")));
        }
        for blkno in from..to {
            self.put_image(rel_block_key(rel, blkno), Bytes::from_static(&ZERO_PAGE));
            self.put_full_piece().await?;
        }
        Ok(())
    }

    /// Removes all forks of a relation.
    pub(super) async fn drop_relation(&mut self, rel: RelFile) -> Result<(), IngestError> {
        for fork in 0..=3 {
            let rel = self.rel_tag(rel, fork)?;
            if self.rel_size(rel).await?.is_some() {
                self.relations.remove(rel);
            }
        }
        Ok(())
    }

    /// Clears visibility map bits. A map page that does not exist has none set.
    pub(super) async fn apply_vm_clears(&mut self, clears: &[VmClear]) -> Result<(), IngestError> {
        let pages: BTreeSet<(RelFile, u32)> =
            clears.iter().map(|clear| (clear.rel, clear.heap_blkno / HEAP_BLOCKS_PER_PAGE)).collect();
        for (rel, page) in pages {
            let vm = self.rel_tag(rel, VM_FORK)?;
            if self.rel_size(vm).await?.is_none_or(|size| page >= size) {
                continue;
            }
            let here = clears.iter().filter(|c| c.rel == rel && c.heap_blkno / HEAP_BLOCKS_PER_PAGE == page);
            let flags = here.clone().fold(0, |bits, clear| bits | clear.bits);
            let heap_blocks = here.map(|clear| clear.heap_blkno).collect();
            self.put_change(rel_block_key(vm, page), WalRecord::ClearVisibilityMap { heap_blocks, flags });
        }
        Ok(())
    }
}

/// Setting visibility bits creates the map page if necessary.
fn may_create_page(rec: &DecodedRecord<'_>, rel: RelTag) -> bool {
    rec.header.rmgr() == RmgrId::HEAP2 && rec.header.opcode() == op2::VISIBLE && rel.forknum == VM_FORK
}
