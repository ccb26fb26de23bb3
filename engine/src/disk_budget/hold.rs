//! Files that no timeline has yet, such as those of an import: they take room, but no measurement finds them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{DiskBudget, Inner, signed};
use errors::StorageError;

/// What somebody has on the local disk beside all timelines. It counts until it is dropped.
#[derive(Debug)]
pub struct Hold {
    budget: DiskBudget,
    bytes: AtomicU64,
}

impl DiskBudget {
    /// For whoever writes files that belong to no timeline yet.
    pub fn hold(&self) -> Hold {
        Hold { budget: self.clone(), bytes: AtomicU64::new(0) }
    }

    /// Bytes that are held so.
    pub fn held(&self) -> u64 {
        self.inner.held.load(Ordering::Relaxed)
    }
}

impl Hold {
    /// Waits until `bytes` more may be written, as [`DiskBudget::admit`] does, and counts them.
    ///
    /// # Errors
    /// [`StorageError::NoRoom`], after a while.
    pub async fn take(&self, bytes: u64) -> Result<(), StorageError> {
        self.budget.admit(bytes).await?;
        self.inner().held.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// So much of it is gone, or was not written after all. The keeper is told, for somebody may wait.
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
