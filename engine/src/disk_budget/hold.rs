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
    /// Those of them that are not written yet: the file system still calls them free.
    promised: AtomicU64,
}

impl DiskBudget {
    /// Starts a hold, for whoever writes files that belong to no timeline yet.
    pub fn hold(&self) -> Hold {
        Hold { budget: self.clone(), bytes: AtomicU64::new(0), promised: AtomicU64::new(0) }
    }

    /// Bytes in all holds.
    pub fn held(&self) -> u64 {
        self.inner.held.load(Ordering::Relaxed)
    }

    /// Bytes in all holds that are not written yet.
    pub fn promised(&self) -> u64 {
        self.inner.promised.load(Ordering::Relaxed)
    }
}

impl Hold {
    /// Waits until `bytes` more may be written, as [`DiskBudget::admit`] does, and adds them to the hold.
    ///
    /// # Errors
    /// [`StorageError::NoRoom`] after a timeout.
    pub async fn take(&self, bytes: u64) -> Result<(), StorageError> {
        self.budget.admit(bytes).await?;
        self.count(bytes);
        Ok(())
    }

    /// Waits until `bytes` more may be written without slowing intake down, and adds them to the hold. Nobody else gets
    /// them, however long it takes to write them ([`Hold::note_written`]).
    ///
    /// # Errors
    /// [`StorageError::NoRoom`] after a timeout.
    pub async fn take_spare(&self, bytes: u64) -> Result<(), StorageError> {
        self.budget.wait_for_spare(bytes).await?;
        self.promised.fetch_add(bytes, Ordering::Relaxed);
        self.inner().promised.fetch_add(bytes, Ordering::Relaxed);
        self.add(bytes);
        Ok(())
    }

    /// Notes that `bytes` of those that were waited for are on disk now, or never will be.
    pub fn note_written(&self, bytes: u64) {
        let written = take_up_to(&self.promised, bytes);
        self.inner().promised.fetch_sub(written, Ordering::Relaxed);
    }

    /// Adds `bytes` that are on disk, or about to be, whether there is room or not.
    pub fn add(&self, bytes: u64) {
        self.budget.note_used(bytes);
        self.count(bytes);
    }

    fn count(&self, bytes: u64) {
        self.inner().held.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds `bytes` that a timeline has no more: measurements have counted them among its layers until now.
    pub fn take_over(&self, bytes: u64) {
        self.count(bytes);
    }

    /// Hands `bytes`, or as many as there are, over to a timeline: measurements count them among its layers from now
    /// on. The room stays as it is.
    pub fn hand_over(&self, bytes: u64) {
        let handed = take_up_to(&self.bytes, bytes);
        self.note_written(handed);
        self.uncount(handed);
    }

    /// Releases bytes that were removed, or not written after all. Wakes the keeper, since somebody may be waiting
    /// for room.
    pub fn release(&self, bytes: u64) {
        let released = take_up_to(&self.bytes, bytes);
        self.note_written(released);
        self.uncount(released);
        let freed = signed(released);
        let more = |room: i64| Some(room.saturating_add(freed));
        let _ = self.inner().room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        self.inner().pressed.notify_one();
    }

    fn uncount(&self, bytes: u64) {
        let held = self.inner().held.fetch_sub(bytes, Ordering::Relaxed);
        assert!(held >= bytes, "{bytes} bytes are no longer held, but all together hold {held}");
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

/// Subtracts `bytes`, or as many as there are. Returns how many.
fn take_up_to(from: &AtomicU64, bytes: u64) -> u64 {
    let mut taken = 0;
    let _ = from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |there| {
        taken = bytes.min(there);
        Some(there - taken)
    });
    taken
}
