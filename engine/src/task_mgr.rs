//! The kinds of tasks in the engine.

/// What a task is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskKind {
    /// Receives WAL and writes it to layers.
    WalReceiverConnectionHandler,
    /// Serves page requests.
    PageRequestHandler,
    /// Reads a whole timeline for a base backup.
    BaseBackup,
    /// Answers a request to the management interface.
    MgmtRequest,
    /// Creates, opens, closes and maintains tenants and timelines.
    TenantManager,
    /// Flushes frozen layers.
    LayerFlushTask,
    /// Rewrites layers so that reads have fewer to search.
    Compaction,
    /// Finds out what history nothing keeps.
    GarbageCollector,
    /// Downloads whole layers from the bucket.
    LayerDownload,
    /// Verifies what is stored.
    Scrub,
    /// Imports a data directory.
    ImportPgData,
    /// Tools and benchmarks.
    DebugTool,
    /// Tests.
    UnitTest,
}
