//! Disk space of files that belong to no timeline yet, such as those of an import: measurements do not find them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{DiskBudget, Inner, signed};
use errors::StorageError;

/// Disk space held outside all timelines. It counts until it is dropped.
#[derive(Debug)]
pub struct Hold {
    budget: DiskBudget,
    bytes: AtomicU64,
}

impl DiskBudget {
    /// Starts a hold, for whoever writes files that belong to no timeline yet.
    pub fn hold(&self) -> Hold {
        Hold { budget: self.clone(), bytes: AtomicU64::new(0) }
    }

    /// Bytes in all holds.
    pub fn held(&self) -> u64 {
        self.inner.held.load(Ordering::Relaxed)
    }
}

impl Hold {
    /// Waits until `bytes` more may be written, as [`DiskBudget::admit`] does, and adds them to the hold.
    ///
    /// # Errors
    /// [`StorageError::NoRoom`] after a timeout.
    pub async fn take(&self, bytes: u64) -> Result<(), StorageError> {
        self.budget.admit(bytes).await?;
        self.inner().held.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Releases bytes that were removed, or not written after all. Wakes the keeper, since somebody may be waiting
    /// for room.
    pub fn release(&self, bytes: u64) {
        let mut released = 0;
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            released = bytes.min(held);
            Some(held - released)
        });
        let held = self.inner().held.fetch_sub(released, Ordering::Relaxed);
        assert!(held >= released, "{released} bytes are released, but all together hold {held}");
        let freed = signed(released);
        let more = |room: i64| Some(room.saturating_add(freed));
        let _ = self.inner().room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        self.inner().pressed.notify_one();
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.budget.inner
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release(u64::MAX);
    }
}
