//! Abandoned writes.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::Mutex;

use super::path::RemotePath;

/// For each path, when a write was abandoned that may still take effect.
#[derive(Debug, Default)]
pub(super) struct GivenUp(Mutex<HashMap<RemotePath, Instant>>);

impl GivenUp {
    pub(super) fn since(&self, path: &RemotePath) -> Option<Instant> {
        self.0.lock().get(path).copied()
    }

    pub(super) fn note(&self, path: &RemotePath) {
        self.0.lock().insert(path.clone(), env::clock::now());
    }

    pub(super) fn forget(&self, path: &RemotePath) {
        self.0.lock().remove(path);
    }
}
