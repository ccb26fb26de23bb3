//! A ring shared by threads: operations queue here, and whoever holds the lock advances all of them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use io_uring::{IoUring, squeue};
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::{self, Handle};

use crate::pollers::{Pollers, Presence};
use crate::slots::{Abandoned, Completion, Discard, SlotId, Slots};
use crate::uring::{Submitted, Uring};

/// Pause when the kernel has no memory for an operation and holds none whose end could be awaited.
const STALL_PAUSE: Duration = Duration::from_millis(1);

#[allow(clippy::disallowed_methods, reason = "below the seams: nothing of ours may be used here")]
fn pause() {
    std::thread::sleep(STALL_PAUSE);
}

/// Starts the task that waits for a ring in a runtime; `poller::spawn` except in tests.
pub(crate) type SpawnPoller = fn(&Arc<Ring>, &Handle) -> io::Result<()>;

pub(crate) struct Ring {
    fd: RawFd,
    spawn_poller: SpawnPoller,
    state: Mutex<State>,
}

pub(crate) struct State {
    uring: Uring,
    slots: Slots,
    /// Operations that did not fit into the ring, oldest first.
    queue: VecDeque<(SlotId, squeue::Entry)>,
    /// Why the kernel accepts nothing anymore (errno).
    refused: Option<i32>,
    pub(crate) pollers: Pollers,
    /// No handle and no future refers to the ring anymore.
    closed: bool,
}

/// Calls into foreign code (wakers, destructors of buffers), collected under the lock and made after releasing it.
#[derive(Default)]
struct Deferred(Vec<Completion>);

impl Deferred {
    fn run(&mut self) {
        for completion in self.0.drain(..) {
            match completion {
                Completion::Wake(waker) => waker.wake(),
                Completion::Discard(resources, result) => resources.discard(result),
                Completion::Nothing => {}
            }
        }
    }

    fn push(&mut self, completion: Completion) {
        if !matches!(completion, Completion::Nothing) {
            self.0.push(completion);
        }
    }
}

impl State {
    /// Advances everything that can be advanced without waiting.
    fn advance(&mut self, deferred: &mut Deferred) {
        loop {
            let slots = &mut self.slots;
            self.uring.reap(|slot, result| deferred.push(slots.complete(slot, result)));
            if !self.submit(deferred) {
                return;
            }
        }
    }

    /// Submits as many queued operations as the ring has room for. Returns whether the kernel accepted any.
    fn submit(&mut self, deferred: &mut Deferred) -> bool {
        while self.refused.is_none() && self.uring.has_room() {
            let Some((slot, entry)) = self.queue.pop_front() else { break };
            if self.slots.submit(slot) {
                // SAFETY: `Ring::start` requires its caller to keep what the entry points to until the slot's result
                // is taken or the resources are handed to `Ring::abandon`, which keeps them until the completion.
                unsafe { self.uring.push(slot, entry) };
            }
        }
        match self.uring.submit() {
            Submitted::Some => return true,
            Submitted::Nothing => {}
            Submitted::Refused(errno) => self.refused = Some(errno),
        }
        if let Some(errno) = self.refused {
            let queued = self.queue.drain(..).map(|(slot, _)| slot);
            for slot in self.uring.take_unsubmitted().into_iter().chain(queued) {
                deferred.push(self.slots.complete(slot, -errno));
            }
        }
        false
    }

    /// Whether nothing is left to do after the last user is gone.
    fn is_drained(&self) -> bool {
        self.closed && self.uring.in_flight() == 0
    }
}

impl Ring {
    pub(crate) fn new(ring: IoUring, spawn_poller: SpawnPoller) -> Self {
        let uring = Uring::new(ring);
        let fd = uring.raw_fd();
        let (slots, queue, pollers) = Default::default();
        let state = State { uring, slots, queue, refused: None, pollers, closed: false };
        Self { fd, spawn_poller, state: Mutex::new(state) }
    }

    /// The ring's file descriptor: readable when there are results.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Operations that wait for room, operations in flight, and the limit of the latter.
    pub(crate) fn load(&self) -> (usize, usize, usize) {
        let state = self.lock();
        (state.queue.len(), state.uring.in_flight(), state.uring.entries())
    }

    /// Queues an operation and, unless it is to be `batched`, submits it if the ring has room.
    ///
    /// # Safety
    ///
    /// All memory that `entry` points to stays valid for the operation, and its file descriptor stays open, until
    /// `poll` has returned the result of the slot, or `abandon` has received their owner.
    pub(crate) unsafe fn start(&self, entry: squeue::Entry, batched: bool) -> SlotId {
        let mut deferred = Deferred::default();
        let mut state = self.lock();
        let slot = state.slots.insert();
        state.queue.push_back((slot, entry));
        if !batched {
            state.submit(&mut deferred);
            if !state.queue.is_empty() {
                state.advance(&mut deferred);
            }
        }
        drop(state);
        deferred.run();
        slot
    }

    /// Collects results, submits queued operations, and wakes the futures and pollers concerned.
    pub(crate) fn advance(&self) {
        let mut deferred = Deferred::default();
        self.lock().advance(&mut deferred);
        deferred.run();
    }

    /// The result of an operation. Returns `Pending` only if a live runtime is going to call the waker; blocks
    /// otherwise.
    pub(crate) fn poll(self: &Arc<Self>, slot: SlotId, waker: &Waker) -> Poll<i32> {
        let mut deferred = Deferred::default();
        let mut runtime = None;
        let mut state = self.lock();
        let result = loop {
            let previous = state.slots.set_waker(slot, None);
            state.advance(&mut deferred);
            if let Some(result) = state.slots.take_result(slot) {
                break Poll::Ready(result);
            }
            let runtime = runtime.get_or_insert_with(|| Handle::try_current().ok());
            match runtime.as_ref().map(|runtime| (runtime, state.pollers.presence(runtime.id()))) {
                Some((_, Presence::Alive)) => {
                    let waker = previous.filter(|previous| previous.will_wake(waker)).unwrap_or_else(|| waker.clone());
                    if state.uring.in_kernel() == 0 {
                        // Nothing in the kernel will ever wake us, so we must poll again.
                        MutexGuard::unlocked(&mut state, pause);
                        deferred.push(Completion::Wake(waker.clone()));
                    }
                    state.slots.set_waker(slot, Some(waker));
                    break Poll::Pending;
                }
                Some((runtime, Presence::Absent)) => {
                    state.pollers.insert(runtime.id());
                    MutexGuard::unlocked(&mut state, || {
                        // On failure the poller counts as dead, and we block.
                        let _ = (self.spawn_poller)(self, runtime);
                    });
                }
                Some((_, Presence::Dead)) | None => self.block(&mut state, &mut deferred),
            }
        };
        drop(state);
        deferred.run();
        result
    }

    /// Blocks until something may have changed.
    fn block<'a>(&'a self, state: &mut MutexGuard<'a, State>, deferred: &mut Deferred) {
        if !deferred.0.is_empty() {
            // Others must not wait for our wait; what they do may be what we are waiting for.
            MutexGuard::unlocked(state, || deferred.run());
        } else if state.uring.in_kernel() == 0 || state.uring.wait().is_err() {
            MutexGuard::unlocked(state, pause);
        } else {
            MutexGuard::bump(state);
        }
    }

    /// The future of an operation was dropped: keeps what it owns until the kernel is done with it.
    pub(crate) fn abandon<R: Discard + 'static>(&self, slot: SlotId, resources: R) {
        let outcome = self.lock().slots.abandon(slot, Box::new(resources));
        match outcome {
            Abandoned::Kept => {}
            Abandoned::NotStarted(resources) => drop(resources),
            Abandoned::Done(result, resources) => resources.discard(result),
        }
    }

    /// The last user is gone: ends the pollers once nothing is in flight.
    pub(crate) fn close(&self) {
        let wakers = {
            let mut state = self.lock();
            state.closed = true;
            state.pollers.take_wakers()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Called by a poller before it sleeps: stores its waker. Returns true if it should end instead.
    pub(crate) fn park_poller(&self, runtime: runtime::Id, waker: &Waker) -> bool {
        let mut state = self.lock();
        state.pollers.set_waker(runtime, waker);
        state.is_drained()
    }

    /// A poller is gone, and its runtime cannot have another one: futures that relied on it must poll for themselves.
    pub(crate) fn poller_died(&self, runtime: runtime::Id) {
        let wakers = {
            let mut state = self.lock();
            state.pollers.mark_dead(runtime);
            state.slots.take_wakers()
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Ring {
    /// Waits for operations that the kernel still performs for dropped futures, then frees what they owned.
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let mut deferred = Deferred::default();
        if state.uring.in_kernel() > 0 {
            state.uring.cancel_all();
        }
        loop {
            let State { uring, slots, .. } = state;
            uring.reap(|slot, result| deferred.push(slots.complete(slot, result)));
            if uring.in_kernel() == 0 {
                break;
            }
            if uring.wait().is_err() {
                // The kernel may write into the buffers at any later time: better to leak them than to free them.
                std::mem::forget(std::mem::take(slots));
                break;
            }
        }
        deferred.run();
    }
}

#[cfg(test)]
mod tests;
