//! Memory used for sealing a layer, kept for the next layer: at the rate at which WAL arrives, fresh pages from the
//! kernel would cost as much as the work done in them.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Memory unused for this long is freed.
const UNUSED_MAX: Duration = Duration::from_secs(10);

/// Memory kept for the next user.
pub(super) struct MemoryPool<T>(Mutex<Option<(T, Instant)>>);

impl<T: Default> MemoryPool<T> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// What was last given, or an empty value.
    pub(super) fn take(&self) -> T {
        self.0.lock().take().map(|(memory, _)| memory).unwrap_or_default()
    }

    /// Keeps `memory`.
    pub(super) fn give(&self, memory: T) {
        *self.0.lock() = Some((memory, env::clock::now()));
    }

    /// Frees memory that has been unused for some time.
    pub(super) fn release_unused(&self) {
        let mut kept = self.0.lock();
        if kept.as_ref().is_some_and(|(_, since)| env::clock::now().saturating_duration_since(*since) >= UNUSED_MAX) {
            *kept = None;
        }
    }
}

/// Empties `memory` and ensures room for `len`. If it has to be reallocated, its contents are not copied, and it gets
/// extra room, as the next layer may be somewhat larger.
pub(super) fn make_room<T>(memory: &mut Vec<T>, len: usize) {
    memory.clear();
    if memory.capacity() < len {
        *memory = Vec::with_capacity(len + len / 4);
    }
}
