//! The future of one operation.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use io_uring::squeue;
use tokio::task::coop;

use crate::lease::Lease;
use crate::slots::{Discard, SlotId};

/// How often an operation is resubmitted before its error is returned.
const MAX_RETRIES: u8 = 16;

/// One kind of operation, with everything it owns: file, buffer, path.
///
/// # Safety
///
/// Everything that `entry` points to and its file descriptor are owned by `self`, do not move when `self` moves, and
/// stay valid and open until `self` is dropped or `complete` is called; they outlive a leaked `self`.
pub unsafe trait Operation: Sized + Send + 'static {
    /// What the future yields.
    type Output;

    /// The operation in the kernel's form. Called again for a resubmission; an error becomes the result of the
    /// operation.
    #[doc(hidden)]
    fn entry(&mut self) -> io::Result<squeue::Entry>;

    /// Returns what the operation owned, with its result.
    #[doc(hidden)]
    fn complete(self, result: io::Result<u32>) -> Self::Output;
}

/// An operation in progress. It was submitted when it was created (if the ring had room) and proceeds without being
/// polled. If it is dropped, the kernel finishes it nevertheless, and what it owns is freed after that. Taking the
/// result counts against the task's budget of tokio's cooperative scheduling.
///
/// # Panics
///
/// When polled after it was ready, or in a runtime without I/O driver.
#[must_use = "the result says whether the operation succeeded"]
pub struct Op<R: Operation> {
    lease: Arc<Lease>,
    progress: Progress,
    /// None after completion.
    operation: Option<R>,
    retries: u8,
}

enum Progress {
    Started(SlotId),
    Refused(io::Error),
    Finished,
}

impl<R: Operation> Op<R> {
    pub(crate) fn start(lease: Arc<Lease>, mut operation: R, batched: bool) -> Self {
        let progress = Progress::start(&lease, &mut operation, batched);
        Self { lease, progress, operation: Some(operation), retries: 0 }
    }

    fn take(&mut self) -> R {
        self.operation.take().expect("only a result takes it, and after one there is no further poll")
    }

    /// Whether the operation should be retried: when a thread exits, the kernel cancels operations that it had handed
    /// to that thread's workers (ECANCELED, EINTR) or could not resume in its context (EFAULT). All operations here
    /// may be repeated. EAGAIN is a shortage that leaks out of some file systems.
    fn may_retry(&mut self, result: i32) -> bool {
        let limit = match -result {
            libc::ECANCELED | libc::EINTR | libc::EAGAIN => MAX_RETRIES,
            libc::EFAULT => 1,
            _ => 0,
        };
        let retry = self.retries < limit;
        self.retries += u8::from(retry);
        retry
    }
}

impl Progress {
    fn start<R: Operation>(lease: &Lease, operation: &mut R, batched: bool) -> Self {
        match operation.entry() {
            // SAFETY: `Operation` vouches that the operation owns what the entry refers to. `Op` keeps the operation
            // until `poll` returned the result, and hands it to `abandon` when it is dropped earlier.
            Ok(entry) => Progress::Started(unsafe { lease.ring.start(entry, batched) }),
            Err(error) => Progress::Refused(error),
        }
    }
}

/// No part of an `Op` is borrowed by address; the kernel gets only addresses that are stable when it moves.
impl<R: Operation> Unpin for Op<R> {}

impl<R: Operation> Future for Op<R> {
    type Output = R::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<R::Output> {
        // Results are often available at once: without this, a task that only does I/O would never yield, and its
        // runtime could neither run others nor shut down.
        let budget = ready!(coop::poll_proceed(cx));
        let this = self.get_mut();
        loop {
            let result = match std::mem::replace(&mut this.progress, Progress::Finished) {
                Progress::Started(slot) => match this.lease.ring.poll(slot, cx.waker()) {
                    Poll::Ready(result) => result,
                    Poll::Pending => {
                        this.progress = Progress::Started(slot);
                        return Poll::Pending;
                    }
                },
                Progress::Refused(error) => {
                    budget.made_progress();
                    return Poll::Ready(this.take().complete(Err(error)));
                }
                Progress::Finished => panic!("an operation was polled after it was ready"),
            };
            let mut operation = this.take();
            if !this.may_retry(result) {
                budget.made_progress();
                return Poll::Ready(operation.complete(to_result(result)));
            }
            this.progress = Progress::start(&this.lease, &mut operation, false);
            this.operation = Some(operation);
        }
    }
}

impl<R: Operation> Drop for Op<R> {
    fn drop(&mut self) {
        if let (Progress::Started(slot), Some(operation)) = (&self.progress, self.operation.take()) {
            self.lease.ring.abandon(*slot, Dropped(operation));
        }
    }
}

struct Dropped<R>(R);

impl<R: Operation> Discard for Dropped<R> {
    fn discard(self: Box<Self>, result: i32) {
        // Completing matters: a file that was opened for a dropped future must be closed.
        drop(self.0.complete(to_result(result)));
    }
}

fn to_result(result: i32) -> io::Result<u32> {
    u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}
