//! Progress of a request to follow a server.

use parking_lot::Mutex;
use serde::Serialize;
use utils::lsn::Lsn;

/// Phase of a request to follow a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FollowPhase {
    /// Connecting, checking the server, creating the slot, waiting for the backup's checkpoint.
    #[default]
    Connecting,
    /// Receiving the base backup.
    Copying,
    /// Importing the small files, and creating the timeline.
    Finishing,
    /// Done: the timeline exists and follows the server.
    Streaming,
    /// Failed or cancelled; everything was removed.
    Failed,
}

/// Progress of a request to follow a server.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FollowStatus {
    /// The phase.
    pub phase: FollowPhase,
    /// Bytes of the backup received.
    pub bytes: u64,
    /// Total bytes of the backup, as estimated by the server.
    pub total_bytes: Option<u64>,
    /// Files received.
    pub files: u64,
    /// Layers finished.
    pub layers: u64,
    /// Where the history begins.
    pub start_lsn: Option<Lsn>,
    /// Pages can be read from here on.
    pub consistent_lsn: Option<Lsn>,
    /// Warnings about the server's settings.
    pub warnings: Vec<String>,
    /// Why it failed.
    pub error: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct StatusCell(Mutex<FollowStatus>);

impl StatusCell {
    pub(super) fn update(&self, change: impl FnOnce(&mut FollowStatus)) {
        change(&mut self.0.lock());
    }

    pub(super) fn read(&self) -> FollowStatus {
        self.0.lock().clone()
    }

    pub(super) fn is_under_way(&self) -> bool {
        !matches!(self.0.lock().phase, FollowPhase::Streaming | FollowPhase::Failed)
    }
}
