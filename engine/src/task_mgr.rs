//! The kinds of tasks that do work in the engine.

/// What a task is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskKind {
    /// Receives WAL and puts it into layers.
    WalReceiverConnectionHandler,
    /// Serves page requests.
    PageRequestHandler,
    /// Reads a whole timeline for a base backup.
    BaseBackup,
    /// Answers a request to the management interface.
    MgmtRequest,
    /// Opens, makes, closes tenants and timelines, and looks after them.
    TenantManager,
    /// Writes frozen layers to disk.
    LayerFlushTask,
    /// Fetches whole layers from the bucket.
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
