//! Truncation of a relation's forks. Pages of the maps may stay and lose only their tail.

use bytes::Bytes;
use pageserver_api::key::rel_block_key;
use pageserver_api::record::WalRecord;
use pageserver_api::reltag::{FSM_FORK, MAIN_FORK, VM_FORK};
use postgres_formats::BLCKSZ;
use postgres_formats::record::RelFile;
use postgres_formats::smgr::{TRUNCATE_FSM, TRUNCATE_HEAP, TRUNCATE_VM};
use redo::vm::HEAP_BLOCKS_PER_PAGE;

use super::{IngestError, WalIngest, fsm};
use crate::directory::malformed;
use crate::store::PageStore;

impl<S: PageStore> WalIngest<S> {
    /// `blocks` is the new length of the main fork. A fork that is already shorter stays unchanged.
    pub(super) async fn apply_truncate(&mut self, rel: RelFile, blocks: u32, flags: u32) -> Result<(), IngestError> {
        if flags & TRUNCATE_HEAP != 0 {
            let main = self.rel_tag(rel, MAIN_FORK)?;
            if self.ensure_relation(main).await? > blocks {
                self.relations.resize(main, blocks);
            }
        }
        if flags & TRUNCATE_FSM != 0 {
            self.truncate_fsm(rel, blocks).await?;
        }
        if flags & TRUNCATE_VM != 0 {
            self.truncate_vm(rel, blocks).await?;
        }
        Ok(())
    }

    async fn truncate_vm(&mut self, rel: RelFile, blocks: u32) -> Result<(), IngestError> {
        let vm = self.rel_tag(rel, VM_FORK)?;
        let Some(size) = self.rel_size(vm).await? else { return Ok(()) };
        let cut_page = blocks / HEAP_BLOCKS_PER_PAGE;
        let keeps_part = !blocks.is_multiple_of(HEAP_BLOCKS_PER_PAGE);
        if keeps_part && cut_page < size {
            let change = WalRecord::TruncateVisibilityMap { first_heap_block: blocks };
            self.put_change(rel_block_key(vm, cut_page), change);
        }
        let new_size = cut_page + u32::from(keeps_part);
        if new_size < size {
            self.relations.resize(vm, new_size);
        }
        Ok(())
    }

    async fn truncate_fsm(&mut self, rel: RelFile, blocks: u32) -> Result<(), IngestError> {
        let fsm = self.rel_tag(rel, FSM_FORK)?;
        let Some(size) = self.rel_size(fsm).await? else { return Ok(()) };
        let cut = fsm::cut(blocks);
        if let Some(first_slot) = cut.first_slot
            && cut.page < size
        {
            // No record type does this. Free space maps are small and truncations rare, so the whole page is written.
            let key = rel_block_key(fsm, cut.page);
            let stored = self.before().await?.required(key).await?;
            let mut page = <[u8; BLCKSZ]>::try_from(&stored[..]).map_err(|_| malformed(key, &"not a page"))?;
            fsm::truncate_page(&mut page, first_slot);
            self.put_image(key, Bytes::copy_from_slice(&page));
        }
        if cut.pages < size {
            self.relations.resize(fsm, cut.pages);
        }
        Ok(())
    }
}
