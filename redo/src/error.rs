//! Errors of replaying a record.

use std::fmt;

use postgres_formats::cursor::Truncated;
use postgres_formats::image::ImageError;
use postgres_formats::page::PageError;
use postgres_formats::record::RelFile;
use postgres_formats::rmgr::RmgrId;

/// The record and block that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordContext {
    /// Resource manager, by its `pg_waldump` name.
    pub rmgr: &'static str,
    /// Resource manager id, the only identification of an extension's.
    pub rmid: u8,
    /// Record type with its resource manager, by its `pg_waldump` name: `Heap/INSERT`.
    pub record: &'static str,
    /// The record's info byte, which distinguishes record types without a name.
    pub info: u8,
    /// LSN of the end of the record.
    pub end_lsn: u64,
    /// Block reference id.
    pub block_id: u8,
    /// Relation of the block (zeros if the record has no such block).
    pub rel: RelFile,
    /// Fork of the block.
    pub fork: u8,
    /// Block number.
    pub blkno: u32,
}

impl fmt::Display for RecordContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (high, low) = (self.end_lsn >> 32, self.end_lsn & 0xFFFF_FFFF);
        let RelFile { spc, db, rel } = self.rel;
        f.write_str(self.record)?;
        if self.rmid > RmgrId::MAX_BUILTIN {
            write!(f, " of resource manager {}", self.rmid)?;
        }
        write!(
            f,
            " (info 0x{:02X}) ending at {high:X}/{low:X}, block reference {}: rel {spc}/{db}/{rel} fork {} block {}",
            self.info, self.block_id, self.fork, self.blkno
        )
    }
}

/// Why a record could not be applied to a page.
#[derive(Debug, thiserror::Error)]
pub enum RedoError {
    /// The record has no block reference with the given id.
    #[error("record has no such block: {0}")]
    NoSuchBlock(RecordContext),
    /// Redo is not implemented for this record type.
    #[error("redo is not supported of {context}")]
    Unsupported {
        /// Resource manager name.
        rmgr: &'static str,
        /// Record type name.
        record: &'static str,
        /// The record and block.
        context: RecordContext,
    },
    /// Record and page do not fit together, or one of them is damaged.
    #[error("redo of {context}: {fault}")]
    Failed {
        /// The record and block.
        context: RecordContext,
        /// What does not fit.
        #[source]
        fault: Fault,
    },
}

/// The cause of a failed redo.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The record's data ends before a field.
    #[error("record data is too short: {0}")]
    Truncated(#[from] Truncated),
    /// The page cannot take the change.
    #[error(transparent)]
    Page(#[from] PageError),
    /// The full-page image cannot be restored.
    #[error("full-page image: {0}")]
    Image(#[from] ImageError),
    /// The record's fields contradict each other or the page.
    #[error("{0}")]
    Inconsistent(&'static str),
    /// This record type is not implemented.
    #[error("record type is not supported")]
    Unsupported,
}
