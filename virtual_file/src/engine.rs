//! One interface to io_uring and the blocking thread pool. Operations own their buffers; writes start when called.

use std::future::Future;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;

use pageserver_api::models::virtual_file::IoEngineKind;
use rustix::fs::SeekFrom;
use tokio_epoll_uring::{Op, Slice, SystemHandle, Write, thread_local_system};

use super::buffer::AlignedBuf;
use super::simulated::{SimulatedFile, after};
use metrics::{IoOperation, METRICS};

/// An operation that has started, or starts when polled.
pub type IoFuture<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

/// An open file of the operating system or of a simulated disk.
#[derive(Clone)]
pub(super) enum Handle {
    Os(Arc<OwnedFd>),
    Simulated(Arc<dyn SimulatedFile>),
}

/// A read that ends within such a unit has reached the end of the file: devices return short reads only at unit
/// boundaries, and direct I/O could not even request the rest.
const READ_UNIT: usize = 512;

fn uring() -> bool {
    super::io_engine() == IoEngineKind::TokioEpollUring
}

fn blocking<T: Send + 'static>(call: impl FnOnce() -> io::Result<T> + Send + 'static) -> IoFuture<T> {
    let task = env::spawn::blocking(call);
    Box::pin(async move { task.await.unwrap_or_else(|error| Err(io::Error::other(error))) })
}

fn failed<T: Send + 'static>(error: io::Error) -> IoFuture<T> {
    Box::pin(std::future::ready(Err(error)))
}

fn as_file(fd: &Arc<OwnedFd>) -> io::Result<std::fs::File> {
    fd.try_clone().map(std::fs::File::from)
}

impl Handle {
    /// Writes all of `buf[range]` at `offset`. Starts at once.
    pub(super) fn write_at(&self, offset: u64, buf: Arc<AlignedBuf>, range: Range<usize>) -> IoFuture<()> {
        METRICS.io_operations_bytes.of(IoOperation::Write).inc_by(range.len() as u64);
        match self {
            Handle::Os(fd) if uring() => uring_write(Arc::clone(fd), offset, buf, range, SystemHandle::write),
            Handle::Os(fd) => {
                let fd = Arc::clone(fd);
                blocking(move || as_file(&fd)?.write_all_at(&buf[range], offset))
            }
            Handle::Simulated(file) => {
                let result = file.write_at(offset, &buf[range]);
                Box::pin(after(file.delay(), result))
            }
        }
    }

    /// As [`Handle::write_at`], then makes durable what it has written; in one operation, where there is one. `None`
    /// for a simulated file, which is written and synced in two.
    pub(super) fn write_durably_at(
        &self,
        offset: u64,
        buf: Arc<AlignedBuf>,
        range: Range<usize>,
    ) -> Option<IoFuture<()>> {
        let Handle::Os(fd) = self else { return None };
        METRICS.io_operations_bytes.of(IoOperation::Write).inc_by(range.len() as u64);
        let fd = Arc::clone(fd);
        if uring() {
            return Some(uring_write(fd, offset, buf, range, SystemHandle::write_durably));
        }
        Some(blocking(move || {
            as_file(&fd)?.write_all_at(&buf[range], offset)?;
            Ok(rustix::fs::fdatasync(fd.as_ref())?)
        }))
    }

    /// Reads up to `len` bytes at `offset` into `buf`, behind what it has. A shorter result means the end of the file.
    pub(super) fn read_at(&self, offset: u64, len: usize, buf: AlignedBuf) -> IoFuture<AlignedBuf> {
        debug_assert!(len <= buf.room());
        METRICS.io_operations_bytes.of(IoOperation::Read).inc_by(len as u64);
        match self {
            Handle::Os(fd) if uring() => uring_read(Arc::clone(fd), offset, buf, len),
            Handle::Os(fd) => {
                let fd = Arc::clone(fd);
                blocking(move || {
                    let file = as_file(&fd)?;
                    fill(buf, len, |into, at| file.read_at(into, offset + at))
                })
            }
            Handle::Simulated(file) => {
                let result = fill(buf, len, |into, at| file.read_at(offset + at, into));
                Box::pin(after(file.delay(), result))
            }
        }
    }

    /// Makes contents and length durable.
    pub(super) fn sync(&self) -> IoFuture<()> {
        match self {
            Handle::Os(fd) if uring() => match thread_local_system() {
                Ok(system) => {
                    let op = system.fdatasync(Arc::clone(fd));
                    Box::pin(async move { op.await.1.map(drop) })
                }
                Err(error) => failed(error),
            },
            Handle::Os(fd) => {
                let fd = Arc::clone(fd);
                blocking(move || Ok(rustix::fs::fdatasync(fd.as_ref())?))
            }
            Handle::Simulated(file) => {
                let result = file.sync();
                Box::pin(after(file.delay(), result))
            }
        }
    }

    /// Asks the kernel to start writing back a range of dirty pages, without waiting.
    pub(super) fn start_writeback(&self, offset: u64, len: u64) -> Option<IoFuture<()>> {
        const WRITE: u32 = libc::SYNC_FILE_RANGE_WRITE;
        match self {
            Handle::Os(fd) if uring() => {
                // The call takes a 32-bit length, where 0 means "to the end".
                let len = u32::try_from(len).unwrap_or(0);
                let op = thread_local_system().ok()?.sync_file_range(Arc::clone(fd), offset, len, WRITE);
                Some(Box::pin(async move { op.await.1.map(drop) }))
            }
            _ => None,
        }
    }

    pub(super) async fn set_len(&self, len: u64) -> io::Result<()> {
        match self {
            Handle::Os(fd) => {
                let fd = Arc::clone(fd);
                blocking(move || Ok(rustix::fs::ftruncate(fd.as_ref(), len)?)).await
            }
            Handle::Simulated(file) => after(file.delay(), file.set_len(len)).await,
        }
    }

    /// The ranges that contain data; a simulated disk has no holes.
    pub(super) async fn data_ranges(&self) -> io::Result<Vec<Range<u64>>> {
        match self {
            Handle::Os(fd) => {
                let fd = Arc::clone(fd);
                blocking(move || data_ranges(&fd)).await
            }
            Handle::Simulated(file) => Ok(std::iter::once(0..file.len()?).collect()),
        }
    }

    pub(super) fn len(&self) -> io::Result<u64> {
        match self {
            Handle::Os(fd) => Ok(rustix::fs::fstat(fd.as_ref())?.st_size as u64),
            Handle::Simulated(file) => file.len(),
        }
    }
}

fn data_ranges(fd: &OwnedFd) -> io::Result<Vec<Range<u64>>> {
    let len = rustix::fs::fstat(fd)?.st_size as u64;
    let mut found = Vec::new();
    let mut at = 0;
    while at < len {
        let start = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Err(rustix::io::Errno::NXIO) => break,
            start => start?,
        };
        at = rustix::fs::seek(fd, SeekFrom::Hole(start))?;
        found.push(start..at);
    }
    Ok(found)
}

/// One of the ways in which a system writes.
type StartWrite =
    fn(&SystemHandle, Arc<OwnedFd>, u64, Slice<Arc<AlignedBuf>>) -> Op<Write<Arc<OwnedFd>, Slice<Arc<AlignedBuf>>>>;

fn uring_write(
    fd: Arc<OwnedFd>,
    offset: u64,
    buf: Arc<AlignedBuf>,
    range: Range<usize>,
    start: StartWrite,
) -> IoFuture<()> {
    let system = match thread_local_system() {
        Ok(system) => system,
        Err(error) => return failed(error),
    };
    let len = range.len();
    let end = range.end;
    let first = start(&system, fd, offset, Slice::new(buf, range));
    Box::pin(async move {
        let ((mut fd, slice), result) = first.await;
        let mut buf = slice.into_inner();
        let mut done = written(result)?;
        while done < len {
            // A short write, due to a signal or a device limit.
            let rest = Slice::new(buf, end - (len - done)..end);
            let rest = start(&thread_local_system()?, fd, offset + done as u64, rest);
            let ((file, slice), result) = rest.await;
            (fd, buf) = (file, slice.into_inner());
            done += written(result)?;
        }
        Ok(())
    })
}

fn written(result: io::Result<usize>) -> io::Result<usize> {
    match result? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        count => Ok(count),
    }
}

fn uring_read(fd: Arc<OwnedFd>, offset: u64, buf: AlignedBuf, len: usize) -> IoFuture<AlignedBuf> {
    let system = match thread_local_system() {
        Ok(system) => system,
        Err(error) => return failed(error),
    };
    let start = buf.len();
    let first = system.read(fd, offset, Slice::new_mut(buf, start..start + len));
    Box::pin(async move {
        let ((mut fd, slice), result) = first.await;
        let mut buf = slice.into_inner();
        let mut done = result?;
        while done < len && done.is_multiple_of(READ_UNIT) {
            let rest = Slice::new_mut(buf, start + done..start + len);
            let op = thread_local_system()?.read(fd, offset + done as u64, rest);
            let ((file, slice), result) = op.await;
            (fd, buf) = (file, slice.into_inner());
            match result? {
                0 => break,
                count => done += count,
            }
        }
        Ok(buf)
    })
}

fn fill(
    mut buf: AlignedBuf,
    len: usize,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<AlignedBuf> {
    let (start, mut done) = (buf.len(), 0);
    while done < len && done.is_multiple_of(READ_UNIT) {
        match read(&mut buf.whole_mut()[start + done..start + len], done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buf.set_len(start + done);
    Ok(buf)
}
