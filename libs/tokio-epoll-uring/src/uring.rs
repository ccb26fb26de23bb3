//! The bare ring: pushing, submitting, collecting and waiting, with exact counts of the operations in the kernel.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::types::{CancelBuilder, Timespec};
use io_uring::{IoUring, squeue};

use crate::slots::SlotId;

/// `IORING_ENTER_GETEVENTS`
const ENTER_GETEVENTS: u32 = 1;

pub(crate) struct Uring {
    ring: IoUring,
    entries: usize,
    /// In the submission queue, not yet taken by the kernel; oldest first, the order in which the kernel takes them.
    unsubmitted: VecDeque<SlotId>,
    /// Taken by the kernel, result not collected yet.
    in_kernel: usize,
}

/// The outcome of a submission.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Submitted {
    /// The kernel took at least one operation.
    Some,
    /// There was nothing to take, or the kernel is out of resources for now.
    Nothing,
    /// The kernel will never take anything again (errno).
    Refused(i32),
}

impl Uring {
    pub(crate) fn new(ring: IoUring) -> Self {
        let entries = ring.params().sq_entries() as usize;
        Self { ring, entries, unsubmitted: VecDeque::with_capacity(entries), in_kernel: 0 }
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// Number of operations that the kernel holds.
    pub(crate) fn in_kernel(&self) -> usize {
        self.in_kernel
    }

    /// Number of operations that the kernel holds or is about to get.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_kernel + self.unsubmitted.len()
    }

    /// Whether one more operation may be pushed. The completion queue is at least as large as the submission queue,
    /// so this bound also keeps it from overflowing.
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight() < self.entries
    }

    /// Puts an operation into the submission queue.
    ///
    /// # Safety
    ///
    /// All memory that `entry` points to stays valid for the operation, and its file descriptor stays open, until
    /// `reap` reports `slot`.
    pub(crate) unsafe fn push(&mut self, slot: SlotId, entry: squeue::Entry) {
        let entry = entry.user_data(slot.0 as u64);
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("has_room bounds what is in the submission queue by its size");
        self.unsubmitted.push_back(slot);
    }

    /// Passes the content of the submission queue to the kernel.
    pub(crate) fn submit(&mut self) -> Submitted {
        let mut outcome = Submitted::Nothing;
        while !self.unsubmitted.is_empty() {
            match self.enter(self.unsubmitted.len() as u32, 0, 0) {
                Ok(0) => break,
                Ok(taken) => {
                    self.unsubmitted.drain(..taken.min(self.unsubmitted.len()));
                    self.in_kernel += taken;
                    outcome = Submitted::Some;
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // Out of memory, or completions must be collected first: both pass.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) | None => break,
                    Some(errno) => return Submitted::Refused(errno),
                },
            }
        }
        outcome
    }

    /// After [`Submitted::Refused`]: returns what the kernel has not taken. Nothing may be pushed afterwards.
    pub(crate) fn take_unsubmitted(&mut self) -> VecDeque<SlotId> {
        std::mem::take(&mut self.unsubmitted)
    }

    /// Reports every available result, without waiting.
    pub(crate) fn reap(&mut self, mut report: impl FnMut(SlotId, i32)) {
        loop {
            for entry in self.ring.completion() {
                self.in_kernel -= 1;
                report(SlotId(entry.user_data() as usize), entry.result());
            }
            // An enter makes the kernel hand over results that it keeps outside the queue because the queue was full.
            if !self.ring.submission().cq_overflow() || self.enter(0, 0, ENTER_GETEVENTS).is_err() {
                return;
            }
        }
    }

    /// Blocks until at least one result is available. The kernel must hold an operation.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        debug_assert!(self.in_kernel > 0, "waiting for nothing");
        loop {
            match self.enter(0, 1, ENTER_GETEVENTS) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(|_| ()),
            }
        }
    }

    /// Asks the kernel to cancel what it can, such as a read of a pipe that may never end by itself. Disk I/O in
    /// progress is completed.
    pub(crate) fn cancel_all(&self) {
        // Failure, for example for lack of support (before 6.0), only means a longer wait.
        let _ = self.ring.submitter().register_sync_cancel(Some(Timespec::new()), CancelBuilder::any());
    }

    fn enter(&self, to_submit: u32, min_complete: u32, flags: u32) -> io::Result<usize> {
        // SAFETY: no argument structure is passed, and `push` requires its caller to keep valid what the entries in
        // the submission queue point to.
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(to_submit, min_complete, flags, None) }
    }
}

#[cfg(test)]
mod tests;
