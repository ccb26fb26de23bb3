//! File I/O through `io_uring` for tokio, without polling threads.
//!
//! # How it works
//!
//! * **One ring per (thread, runtime).** [`thread_local_system`] makes it at first use and hands out a
//!   [`SystemHandle`]: a cheap clone that may travel to any thread. The ring is closed once its last handle and its
//!   last operation are gone and the kernel has finished everything.
//! * **Submission happens in the caller's thread when the method is called**, so a caller keeps several writes in
//!   flight by holding the [`Op`] futures without polling them. [`SystemHandle::batch`] postpones it, so that many
//!   operations cost one system call.
//! * **Completions arrive through tokio's own epoll**: the ring's file descriptor becomes readable, a small task on
//!   the runtime collects what is complete and wakes the futures. Each poll of a future looks at the completion queue
//!   first, so a result that is already there costs neither a system call nor a wake-up.
//! * **Back-pressure**: at most as many operations are with the kernel as the ring has entries. Further ones queue in
//!   the order of their creation and are submitted by whoever collects a completion; they need not be polled for that.
//! * **Cancellation**: an operation owns its buffer and file. Dropping the future leaves both with the ring until the
//!   kernel is done with them.
//! * **Without a live runtime** (it was shut down, or the future is polled outside tokio) polling blocks the thread
//!   until the operation is complete, instead of hanging.
//! * **A thread that submitted an operation may exit.** The kernel then cancels what it had put on that thread's
//!   worker threads; such an operation is submitted again by the thread that polls it.
//!
//! Registered buffers and registered files are not used: they pay off for many small I/Os on fast devices, and
//! whether they do for ours (4 KiB and up) must be measured first.
//!
//! # Example
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let path = std::env::temp_dir().join(format!("tokio-epoll-uring-doc-{}", std::process::id()));
//! # let runtime = tokio::runtime::Runtime::new()?;
//! # runtime.block_on(async {
//! let system = tokio_epoll_uring::thread_local_system()?;
//! let mut options = tokio_epoll_uring::OpenOptions::new();
//! let file = system.open(&path, options.read(true).write(true).create(true)).await?;
//! let ((file, buf), written) = system.write(file, 0, b"hello".to_vec()).await;
//! assert_eq!(written?, 5);
//! let ((_file, buf), read) = system.read(file, 0, buf).await;
//! assert_eq!((read?, &buf[..]), (5, &b"hello"[..]));
//! # std::fs::remove_file(&path)
//! # })
//! # }
//! ```

#![cfg(target_os = "linux")]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod buf;
mod lease;
mod op;
mod ops;
mod poller;
mod pollers;
mod ring;
mod setup;
mod slots;
mod system;
mod uring;

pub use buf::{IoBuf, IoBufMut, Slice};
pub use op::{Op, Operation};
pub use ops::file::{AsFdOwned, Fallocate, Fsync, Ftruncate, Statx, SyncFileRange};
pub use ops::path::{Open, OpenOptions, StatxPath};
pub use ops::rw::{Read, Readv, Write, Writev};
pub use setup::{DEFAULT_RING_ENTRIES, MAX_RING_ENTRIES, SetupError, is_available, set_default_ring_entries};
pub use system::{Load, SystemHandle, thread_local_system};
