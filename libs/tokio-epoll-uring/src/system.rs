//! Handles of rings, and the ring of the current thread.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::runtime::{self, Handle};

use crate::buf::{IoBuf, IoBufMut};
use crate::lease::Lease;
use crate::op::{Op, Operation};
use crate::ops::file::{AsFdOwned, Fallocate, Fsync, Ftruncate, Statx, SyncFileRange, ftruncate_blocking};
use crate::ops::path::{Open, OpenOptions, StatxPath};
use crate::ops::rw::{Read, Readv, Write, Writev};
use crate::poller;
use crate::ring::Ring;
use crate::setup::{self, SetupError};

thread_local! {
    static SYSTEM: RefCell<Option<(runtime::Id, SystemHandle)>> = const { RefCell::new(None) };
}

/// A handle to a ring. Clones refer to the same ring; it may be used from any thread, but threads that use the same
/// ring take turns. Operations are submitted when the method is called, see [`Op`].
#[derive(Clone)]
pub struct SystemHandle {
    lease: Arc<Lease>,
    batched: bool,
}

/// The current load of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Operations that wait to be submitted.
    pub queued: usize,
    /// Operations in the kernel.
    pub in_flight: usize,
    /// Maximum number of operations in the kernel at a time.
    pub capacity: usize,
}

/// The ring of this thread in the current runtime, created at first use. If the thread had a ring of another runtime,
/// the new one replaces it.
///
/// # Errors
///
/// A [`SetupError`] when there is no runtime or the ring cannot be created.
///
/// # Panics
///
/// When the runtime was built without its I/O driver.
pub fn thread_local_system() -> io::Result<SystemHandle> {
    let runtime = Handle::try_current().map_err(|_| SetupError::NoRuntime)?;
    let current = SYSTEM.try_with(|system| match &*system.borrow() {
        Some((id, handle)) if *id == runtime.id() => Some(handle.clone()),
        _ => None,
    });
    if let Some(handle) = current.map_err(|_| SetupError::ThreadExiting)? {
        return Ok(handle);
    }
    let handle = launch(&runtime, setup::default_ring_entries())?;
    // The old ring is dropped after the borrow, because that may run foreign destructors.
    let _replaced = SYSTEM
        .try_with(|system| system.replace(Some((runtime.id(), handle.clone()))))
        .map_err(|_| SetupError::ThreadExiting)?;
    Ok(handle)
}

fn launch(runtime: &Handle, entries: u32) -> Result<SystemHandle, SetupError> {
    let (ring, support) = setup::make_ring(entries)?;
    let ring = Arc::new(Ring::new(ring, poller::spawn));
    let lease = Arc::new(Lease { ring, support });
    lease.ring.lock().pollers.insert(runtime.id());
    poller::spawn(&lease.ring, runtime).map_err(|source| SetupError::Epoll { source })?;
    Ok(SystemHandle { lease, batched: false })
}

/// How a truncation is performed.
enum Route<F: AsFdOwned> {
    Ring(Op<Ftruncate<F>>),
    Pool(F),
}

impl SystemHandle {
    /// Creates a separate ring with `entries` entries (rounded up to a power of two) in the current runtime.
    ///
    /// # Errors and panics
    ///
    /// As [`thread_local_system`].
    pub fn with_entries(entries: u32) -> io::Result<Self> {
        let runtime = Handle::try_current().map_err(|_| SetupError::NoRuntime)?;
        Ok(launch(&runtime, entries)?)
    }

    /// A handle to the same ring whose operations are only queued. They are submitted, in one system call, by
    /// [`submit`](Self::submit), or with whatever next happens on the ring: a poll, a completion, an operation from
    /// another handle.
    pub fn batch(&self) -> Self {
        Self { lease: self.lease.clone(), batched: true }
    }

    /// Submits queued operations, as far as there is room.
    pub fn submit(&self) {
        self.lease.ring.advance();
    }

    /// The current load of the ring.
    pub fn load(&self) -> Load {
        let (queued, in_flight, capacity) = self.lease.ring.load();
        Load { queued, in_flight, capacity }
    }

    fn start<R: Operation>(&self, operation: R) -> Op<R> {
        Op::start(self.lease.clone(), operation, self.batched)
    }

    /// Reads at `offset` into the front of `buf`, up to its total size. Yields the number of bytes read: fewer than
    /// requested at the end of the file, and at most 2 GiB.
    pub fn read<F: AsFdOwned, B: IoBufMut>(&self, file: F, offset: u64, buf: B) -> Op<Read<F, B>> {
        self.start(Read { file, offset, buf })
    }

    /// Reads at `offset` into the buffers, one after the other; as [`read`](Self::read). At most 1024 buffers.
    pub fn readv<F: AsFdOwned, B: IoBufMut>(&self, file: F, offset: u64, bufs: Vec<B>) -> Op<Readv<F, B>> {
        self.start(Readv::new(file, offset, bufs))
    }

    /// Writes the initialized bytes of `buf` at `offset`. Yields the number of bytes written: possibly fewer than
    /// there are, and at most 2 GiB.
    pub fn write<F: AsFdOwned, B: IoBuf>(&self, file: F, offset: u64, buf: B) -> Op<Write<F, B>> {
        self.start(Write { file, offset, buf, flags: 0 })
    }

    /// As [`write`](Self::write) followed by [`fdatasync`](Self::fdatasync), for what this writes, in one operation
    /// (`RWF_DSYNC`).
    pub fn write_durably<F: AsFdOwned, B: IoBuf>(&self, file: F, offset: u64, buf: B) -> Op<Write<F, B>> {
        self.start(Write { file, offset, buf, flags: libc::RWF_DSYNC })
    }

    /// Writes the initialized bytes of the buffers, one after the other; as [`write`](Self::write). At most 1024
    /// buffers.
    pub fn writev<F: AsFdOwned, B: IoBuf>(&self, file: F, offset: u64, bufs: Vec<B>) -> Op<Writev<F, B>> {
        self.start(Writev::new(file, offset, bufs))
    }

    /// `fsync(2)`: makes data and metadata durable. Covers writes that are complete, not ones in flight.
    pub fn fsync<F: AsFdOwned>(&self, file: F) -> Op<Fsync<F>> {
        self.start(Fsync { file, data_only: false })
    }

    /// `fdatasync(2)`: makes data durable, and the metadata that is needed to read it back.
    pub fn fdatasync<F: AsFdOwned>(&self, file: F) -> Op<Fsync<F>> {
        self.start(Fsync { file, data_only: true })
    }

    /// `sync_file_range(2)`: starts or awaits write-back of `len` bytes from `offset` on. Makes nothing durable.
    pub fn sync_file_range<F: AsFdOwned>(&self, file: F, offset: u64, len: u32, flags: u32) -> Op<SyncFileRange<F>> {
        self.start(SyncFileRange { file, offset, len, flags })
    }

    /// `fallocate(2)` with its `mode`.
    pub fn fallocate<F: AsFdOwned>(&self, file: F, mode: i32, offset: u64, len: u64) -> Op<Fallocate<F>> {
        self.start(Fallocate { file, mode, offset, len })
    }

    /// `ftruncate(2)`. Kernels before 6.9 cannot do it through the ring; then it runs in the blocking pool, when the
    /// future is polled.
    pub fn ftruncate<F: AsFdOwned>(
        &self,
        file: F,
        len: u64,
    ) -> impl Future<Output = (F, io::Result<()>)> + Send + use<F> {
        let route = if self.lease.support.ftruncate {
            Route::Ring(self.start(Ftruncate { file, len }))
        } else {
            Route::Pool(file)
        };
        async move {
            match route {
                Route::Ring(op) => op.await,
                Route::Pool(file) => ftruncate_blocking(file, len).await,
            }
        }
    }

    /// Opens a file, with `O_CLOEXEC`.
    pub fn open(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Op<Open> {
        self.start(Open::new(path.as_ref(), options))
    }

    /// `statx(2)` of an open file: basic fields, birth time, and direct I/O alignment if the kernel knows them (see
    /// `stx_mask`).
    pub fn statx<F: AsFdOwned>(&self, file: F) -> Op<Statx<F>> {
        self.start(Statx::new(file))
    }

    /// `statx(2)` of a path, following symbolic links; as [`statx`](Self::statx).
    pub fn statx_path(&self, path: impl AsRef<Path>) -> Op<StatxPath> {
        self.start(StatxPath::new(path.as_ref()))
    }
}
