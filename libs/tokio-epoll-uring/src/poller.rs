//! The task that waits in a runtime's epoll for results of a ring.

use std::future::poll_fn;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::task::Poll;
use std::{io, ops};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{self, Handle};

use crate::ring::Ring;

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

/// Starts the poller of `ring` in `runtime`, which must already be registered with the ring (`Pollers::insert`).
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
                    // In this order: anything that becomes ready while we collect makes the descriptor readable
                    // again.
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
