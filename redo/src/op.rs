//! The interface to a resource manager's redo: its input and its result.

use postgres_formats::record::{BlockRef, RecordHeader};

use crate::context::RedoContext;
use crate::error::Fault;

/// One record applied to one of its blocks.
#[derive(Clone, Copy)]
pub(crate) struct Op<'a> {
    pub(crate) ctx: &'a RedoContext,
    pub(crate) header: &'a RecordHeader,
    /// All block references of the record. Those other than `block` may lack data and images.
    pub(crate) blocks: &'a [BlockRef<'a>],
    pub(crate) main: &'a [u8],
    pub(crate) block: &'a BlockRef<'a>,
    pub(crate) end_lsn: u64,
}

/// What a redo function did to the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The page changed; its LSN becomes the record's end.
    Changed,
    /// The page changed, but its LSN stays.
    ChangedKeepLsn,
    /// The page did not change.
    Unchanged,
}

impl<'a> Op<'a> {
    /// The record type: info without the low nibble, which belongs to the WAL machinery.
    pub(crate) fn opcode(&self) -> u8 {
        self.header.info & 0xF0
    }

    /// The block's own data.
    pub(crate) fn data(&self) -> &'a [u8] {
        self.block.data
    }

    /// Block number of another block reference of the record.
    pub(crate) fn blkno_of(&self, id: u8) -> Option<u32> {
        self.blocks.iter().find(|b| b.id == id).map(|b| b.blkno)
    }

    /// Block number of a block reference that this record type always has.
    pub(crate) fn need_blkno(&self, id: u8) -> Result<u32, Fault> {
        self.blkno_of(id).ok_or(Fault::Inconsistent("a block reference of the record is missing"))
    }

    /// Whether the record has a block reference `id`.
    pub(crate) fn has_block(&self, id: u8) -> bool {
        self.blkno_of(id).is_some()
    }
}
