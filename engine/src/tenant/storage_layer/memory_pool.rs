//! Memory that sealing a layer needs, kept for the next layer: at the rate at which WAL comes in, fresh pages from the
//! kernel would cost as much as what is done with them.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Memory that nobody has used for so long is freed.
const UNUSED_MAX: Duration = Duration::from_secs(10);

/// Some memory that the next user may have.
pub(super) struct MemoryPool<T>(Mutex<Option<(T, Instant)>>);

impl<T: Default> MemoryPool<T> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// What was given last, or none.
    pub(super) fn take(&self) -> T {
        self.0.lock().take().map(|(memory, _)| memory).unwrap_or_default()
    }

    /// Keeps `memory`.
    pub(super) fn give(&self, memory: T) {
        *self.0.lock() = Some((memory, env::clock::now()));
    }

    /// Frees what nobody has wanted for some time.
    pub(super) fn release_unused(&self) {
        let mut kept = self.0.lock();
        if kept.as_ref().is_some_and(|(_, since)| env::clock::now().saturating_duration_since(*since) >= UNUSED_MAX) {
            *kept = None;
        }
    }
}

/// Makes `memory` empty, with room for `len`. What was in it is not copied if it has to move; if so, it gets room for a
/// layer that is somewhat larger, as the next one may be.
pub(super) fn make_room<T>(memory: &mut Vec<T>, len: usize) {
    memory.clear();
    if memory.capacity() < len {
        *memory = Vec::with_capacity(len + len / 4);
    }
}
