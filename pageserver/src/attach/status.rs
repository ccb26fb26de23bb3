//! How an attach goes.

use parking_lot::Mutex;
use serde::Serialize;
use utils::lsn::Lsn;

/// What an attach is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachPhase {
    /// Connecting, checking the server, making the slot, waiting for its checkpoint.
    #[default]
    Connecting,
    /// Receiving the base backup.
    Copying,
    /// Putting what was received in order.
    Finishing,
    /// Done: the timeline exists and follows the server.
    Streaming,
    /// Failed or cancelled; nothing is left.
    Failed,
}

/// How an attach goes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AttachStatus {
    /// What it is doing.
    pub phase: AttachPhase,
    /// Bytes of the backup received.
    pub bytes: u64,
    /// Bytes of the backup in all, as the server estimated.
    pub total_bytes: Option<u64>,
    /// Files received.
    pub files: u64,
    /// Layers finished.
    pub layers: u64,
    /// Where the history begins.
    pub start_lsn: Option<Lsn>,
    /// From here on pages can be read.
    pub consistent_lsn: Option<Lsn>,
    /// What to be wary of in the server's settings.
    pub warnings: Vec<String>,
    /// Why it failed.
    pub error: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct StatusCell(Mutex<AttachStatus>);

impl StatusCell {
    pub(super) fn update(&self, change: impl FnOnce(&mut AttachStatus)) {
        change(&mut self.0.lock());
    }

    pub(super) fn read(&self) -> AttachStatus {
        self.0.lock().clone()
    }

    pub(super) fn is_under_way(&self) -> bool {
        !matches!(self.0.lock().phase, AttachPhase::Streaming | AttachPhase::Failed)
    }
}
