//! Progress of an import.

/// Progress of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportStats {
    /// Relation forks.
    pub forks: u64,
    /// Pages of relations.
    pub pages: u64,
    /// Pages of SLRUs.
    pub slru_pages: u64,
    /// Bytes read of both kinds of pages.
    pub bytes: u64,
    /// Image layers finished.
    pub layers: u64,
}
