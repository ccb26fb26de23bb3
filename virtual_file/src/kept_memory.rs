//! Memory in which writers together keep all that they have taken in, so that none of it has to be read again, nor
//! written where its file is not needed in the end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::buffer::AlignedBuf;

/// Buffers that nobody has needed for this long are freed.
const UNUSED_MAX: Duration = Duration::from_secs(10);

/// A limit that several writers share. One that is refused memory keeps its newest bytes only.
#[derive(Debug)]
pub struct KeptMemory {
    limit: AtomicU64,
    used: AtomicU64,
    spare: Mutex<Spare>,
}

/// Buffers for the next writer: fresh memory would cost as much as filling it.
#[derive(Debug, Default)]
struct Spare {
    bufs: Vec<AlignedBuf>,
    /// When one was last given or taken.
    needed: Option<Instant>,
}

impl KeptMemory {
    /// Permits `bytes` for all writers together.
    pub fn new(bytes: u64) -> Self {
        Self { limit: AtomicU64::new(bytes), used: AtomicU64::new(0), spare: Mutex::default() }
    }

    /// Permits `bytes` for all writers together. Those that have more keep it.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Frees buffers that no writer has needed for some time.
    pub fn release_unused(&self) {
        let now = env::clock::now();
        let mut spare = self.spare.lock();
        if spare.needed.is_some_and(|needed| now.saturating_duration_since(needed) >= UNUSED_MAX) {
            let unused = std::mem::take(&mut *spare);
            drop(spare);
            // Who needs a buffer does not wait until all of these are gone.
            drop(unused);
        }
    }

    /// Takes `bytes`. Returns whether there were as many.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Gives back what was taken, with the buffers that held it.
    pub(crate) fn give_back(&self, bytes: u64, bufs: impl Iterator<Item = AlignedBuf>) {
        let used = self.used.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        let room = self.limit.load(Ordering::Relaxed).saturating_sub(used);
        let mut spare = self.spare.lock();
        spare.needed = Some(env::clock::now());
        let mut unused: u64 = spare.bufs.iter().map(|buf| buf.capacity() as u64).sum();
        for buf in bufs {
            unused += buf.capacity() as u64;
            if unused > room {
                return;
            }
            spare.bufs.push(buf);
        }
    }

    /// An empty buffer of `capacity` bytes.
    pub(crate) fn buffer(&self, capacity: usize) -> AlignedBuf {
        let mut spare = self.spare.lock();
        let found = spare.bufs.iter().rposition(|buf| buf.capacity() == capacity);
        match found.map(|at| spare.bufs.swap_remove(at)) {
            Some(buf) => {
                spare.needed = Some(env::clock::now());
                buf.emptied()
            }
            None => {
                drop(spare);
                AlignedBuf::with_capacity(capacity)
            }
        }
    }
}
