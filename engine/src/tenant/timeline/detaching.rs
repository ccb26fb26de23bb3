//! How far the detaching of a branch from its ancestor is.

use parking_lot::Mutex;
use serde::Serialize;

/// How much of what a branch inherits has become its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DetachProgress {
    /// Bytes of the ancestors' layers that are to be read.
    pub bytes_total: u64,
    /// Bytes of those that were read.
    pub bytes_done: u64,
    /// Pages and other values written.
    pub pages: u64,
    /// Bytes of the layers written.
    pub bytes_written: u64,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Detaching {
    /// Held by whoever detaches the branch.
    pub(crate) worker: tokio::sync::Mutex<()>,
    progress: Mutex<Option<DetachProgress>>,
}

impl Detaching {
    /// How far it is; `None` if nobody detaches the branch.
    pub(crate) fn progress(&self) -> Option<DetachProgress> {
        *self.progress.lock()
    }

    /// Changes how far it is. Until [`Detaching::end`], it is under way.
    pub(crate) fn note(&self, change: impl FnOnce(&mut DetachProgress)) {
        change(self.progress.lock().get_or_insert_default());
    }

    /// It is no longer under way.
    pub(crate) fn end(&self) {
        *self.progress.lock() = None;
    }
}
