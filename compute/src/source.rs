//! Sources of relation contents that a compute has never written.

pub mod directory;
pub mod origin;
pub mod pagestream;
pub mod servers;
pub mod timeline_at;

use std::future::Future;

/// A fork of a relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelFork {
    /// Tablespace.
    pub spc: u32,
    /// Database; 0 for shared relations.
    pub db: u32,
    /// File number of the relation.
    pub rel: u32,
    /// 0 main, 1 free space map, 2 visibility map, 3 init.
    pub fork: u8,
}

/// A relation file of the data directory, with all its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationFile {
    /// Path of segment 0 below the data directory, such as `base/5/16384` or `global/1262_vm`.
    pub path: String,
    /// Which fork of which relation.
    pub rel: RelFork,
    /// Length in blocks.
    pub blocks: u32,
}

/// Why blocks cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Transient: retried until it succeeds.
    #[error("{0}")]
    Retry(String),
    /// The LSN can no longer be read. The message names the lease that would have kept it.
    #[error("{0}")]
    Gone(String),
    /// Anything else; retrying does not help.
    #[error("{0}")]
    Failed(String),
}

/// The contents of a data directory's relations as of one LSN.
pub trait PageSource: Send + Sync + 'static {
    /// All relation files at that LSN.
    fn manifest(&self) -> impl Future<Output = Result<Vec<RelationFile>, SourceError>> + Send;

    /// Reads `count` blocks starting at `first` (numbered within the fork, not within a segment) into `out`, which
    /// has `count * 8192` bytes.
    fn read_blocks(
        &self,
        rel: RelFork,
        first: u32,
        count: u32,
        out: &mut [u8],
    ) -> impl Future<Output = Result<(), SourceError>> + Send;
}
