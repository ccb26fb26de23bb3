//! The bare ring: pushing, submitting, collecting and waiting, with exact counts of what the kernel holds.

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
    /// In the submission queue, not yet taken by the kernel; oldest first, as the kernel takes them.
    unsubmitted: VecDeque<SlotId>,
    /// Taken by the kernel, result not collected.
    in_kernel: usize,
}

/// What a submission achieved.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Submitted {
    /// The kernel took at least one operation.
    Some,
    /// There was nothing to take, or the kernel is out of resources for now.
    Nothing,
    /// The kernel will take nothing ever (errno).
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

    /// How many operations the kernel holds.
    pub(crate) fn in_kernel(&self) -> usize {
        self.in_kernel
    }

    /// How many operations the kernel holds or is about to be given.
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
    /// All memory that `entry` points to stays valid for what the operation does, and its file descriptor stays
    /// open, until `reap` reports `slot`.
    pub(crate) unsafe fn push(&mut self, slot: SlotId, entry: squeue::Entry) {
        let entry = entry.user_data(slot.0 as u64);
        // SAFETY: the caller's promise.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("has_room bounds what is in the submission queue by its size");
        self.unsubmitted.push_back(slot);
    }

    /// Gives the kernel what is in the submission queue.
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
                    // Out of memory, or completions have to be collected first: both pass.
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM) | None => break,
                    Some(errno) => return Submitted::Refused(errno),
                },
            }
        }
        outcome
    }

    /// After [`Submitted::Refused`]: what the kernel has not taken. Nothing may be pushed afterwards.
    pub(crate) fn take_unsubmitted(&mut self) -> VecDeque<SlotId> {
        std::mem::take(&mut self.unsubmitted)
    }

    /// Reports every result that is there, without waiting.
    pub(crate) fn reap(&mut self, mut report: impl FnMut(SlotId, i32)) {
        loop {
            for entry in self.ring.completion() {
                self.in_kernel -= 1;
                report(SlotId(entry.user_data() as usize), entry.result());
            }
            // Results the kernel keeps outside the queue because it was full are handed over by an enter.
            if !self.ring.submission().cq_overflow() || self.enter(0, 0, ENTER_GETEVENTS).is_err() {
                return;
            }
        }
    }

    /// Blocks until at least one result is there. The kernel must hold an operation.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        debug_assert!(self.in_kernel > 0, "waiting for nothing");
        loop {
            match self.enter(0, 1, ENTER_GETEVENTS) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(|_| ()),
            }
        }
    }

    /// Asks the kernel to give up what it can: a read of a pipe, say, that may never end by itself. What is under way
    /// on a disk is completed.
    pub(crate) fn cancel_all(&self) {
        // Failure, be it for want of support (before 6.0), only means to wait longer.
        let _ = self.ring.submitter().register_sync_cancel(Some(Timespec::new()), CancelBuilder::any());
    }

    fn enter(&self, to_submit: u32, min_complete: u32, flags: u32) -> io::Result<usize> {
        // SAFETY: no argument structure is passed, and `push` obliged its caller to keep valid what the entries in
        // the submission queue point to.
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(to_submit, min_complete, flags, None) }
    }
}

#[cfg(test)]
mod tests;
