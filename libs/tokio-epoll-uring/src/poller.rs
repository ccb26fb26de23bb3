//! The task that waits in a runtime's epoll for results of a ring.

use std::future::poll_fn;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::{io, ops};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{self, Handle};

use crate::ring::Ring;

/// What a runtime does for a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It has no poller yet.
    Absent,
    /// It has one.
    Alive,
    /// It had one, or cannot have one: the runtime is shut down or has no I/O driver.
    Dead,
}

struct Poller {
    runtime: runtime::Id,
    alive: bool,
    waker: Option<Waker>,
}

/// The pollers of a ring: usually one, that of the runtime it was made in. Further ones come with futures that are
/// awaited in other runtimes, because the ring's own runtime may be idle (`current_thread`) or gone by then.
#[derive(Default)]
pub(crate) struct Pollers(Vec<Poller>);

impl Pollers {
    pub(crate) fn presence(&self, runtime: runtime::Id) -> Presence {
        match self.0.iter().find(|poller| poller.runtime == runtime) {
            None => Presence::Absent,
            Some(poller) if poller.alive => Presence::Alive,
            Some(_) => Presence::Dead,
        }
    }

    /// Notes that `runtime` is about to get a poller.
    pub(crate) fn insert(&mut self, runtime: runtime::Id) {
        self.0.push(Poller { runtime, alive: true, waker: None });
    }

    pub(crate) fn set_waker(&mut self, runtime: runtime::Id, waker: &Waker) {
        if let Some(poller) = self.get_mut(runtime) {
            match &mut poller.waker {
                Some(current) => current.clone_from(waker),
                None => poller.waker = Some(waker.clone()),
            }
        }
    }

    pub(crate) fn mark_dead(&mut self, runtime: runtime::Id) {
        if let Some(poller) = self.get_mut(runtime) {
            poller.alive = false;
            poller.waker = None;
        }
    }

    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        self.0.iter_mut().filter_map(|poller| poller.waker.take()).collect()
    }

    fn get_mut(&mut self, runtime: runtime::Id) -> Option<&mut Poller> {
        self.0.iter_mut().find(|poller| poller.runtime == runtime)
    }
}

/// Marks the poller dead when its task ends, however it ends.
struct Life {
    ring: Arc<Ring>,
    runtime: runtime::Id,
}

impl Drop for Life {
    fn drop(&mut self) {
        self.ring.poller_died(self.runtime);
    }
}

struct RingFd(Arc<Ring>);

impl ops::Deref for RingFd {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        &self.0
    }
}

impl AsRawFd for RingFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.raw_fd()
    }
}

/// Starts the poller of `ring` in `runtime`, which the ring has been told of ([`Pollers::insert`]).
///
/// # Panics
///
/// When the runtime was built without its I/O driver.
pub(crate) fn spawn(ring: &Arc<Ring>, runtime: &Handle) -> io::Result<()> {
    let life = Life { ring: ring.clone(), runtime: runtime.id() };
    let fd = {
        let _entered = runtime.enter();
        // SAFETY: the `RingFd` in the `AsyncFd` keeps the ring alive, which keeps its one descriptor open.
        unsafe { AsyncFd::register_with_interest(RingFd(ring.clone()), Interest::READABLE)? }
    };
    runtime.spawn(run(life, fd));
    Ok(())
}

async fn run(life: Life, fd: AsyncFd<RingFd>) {
    poll_fn(|cx| {
        loop {
            match fd.poll_read_ready(cx) {
                Poll::Ready(Ok(mut ready)) => {
                    // In this order: what becomes ready while we collect makes the descriptor readable again.
                    ready.clear_ready();
                    fd.get_ref().advance();
                }
                // The runtime is shutting down.
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        if fd.get_ref().park_poller(life.runtime, cx.waker()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
