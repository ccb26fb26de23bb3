//! Changes of one page for replay to apply: a WAL record reduced to that page, or a change that the WAL record does
//! not announce as a block reference.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Bits that a visibility map clear removes.
pub mod vm_flags {
    /// All tuples of the heap page are visible to everyone.
    pub const ALL_VISIBLE: u8 = 1;
    /// All tuples of the heap page are frozen.
    pub const ALL_FROZEN: u8 = 2;
    /// Both.
    pub const BOTH: u8 = 3;
}

/// One change of one page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WalRecord {
    /// A WAL record reduced to one block reference: the others keep their names but have neither image nor data.
    Postgres {
        /// Replay of this record needs no earlier version of the page.
        will_init: bool,
        /// Id of the block reference for this page.
        block_id: u8,
        /// The record in the WAL's own format.
        record: Bytes,
    },
    /// Clears the bits of heap blocks on this visibility map page.
    ClearVisibilityMap {
        /// Heap blocks whose bits are cleared.
        heap_blocks: Vec<u32>,
        /// Bits to clear: [`vm_flags`].
        flags: u8,
    },
    /// Clears this visibility map page from heap block `first_heap_block` (a number within the fork) on.
    TruncateVisibilityMap {
        /// First heap block that was removed.
        first_heap_block: u32,
    },
    /// Marks transactions of this commit log page as committed.
    ClogSetCommitted {
        /// Transactions, all on this page.
        xids: Vec<u32>,
        /// Commit time in microseconds since 2000-01-01.
        timestamp: i64,
    },
    /// Marks transactions of this commit log page as aborted.
    ClogSetAborted {
        /// Transactions, all on this page.
        xids: Vec<u32>,
    },
    /// Sets the members offset of a multixact and of the next one, as far as their entries are on this offsets page.
    MultiXactOffset {
        /// The multixact.
        multi: u32,
        /// Its first member's offset.
        offset: u32,
        /// Its number of members, which determines the offset of the next multixact.
        members: u32,
    },
    /// Writes members of a multixact on this members page.
    MultiXactMembers {
        /// Offset of the first member given here.
        offset: u32,
        /// (transaction, status) of each.
        members: Vec<(u32, u32)>,
    },
    /// Sets commit timestamps on this commit timestamp page.
    CommitTs {
        /// Transactions, all on this page.
        xids: Vec<u32>,
        /// Commit time in microseconds since 2000-01-01.
        timestamp: i64,
        /// Replication origin, 0 if none.
        origin: u16,
    },
}

impl WalRecord {
    /// Whether replay needs no earlier version of the page.
    pub fn will_init(&self) -> bool {
        matches!(self, WalRecord::Postgres { will_init: true, .. })
    }
}
