//! Operations on an open file other than reading and writing.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use parking_lot::Mutex;

use super::check_offset;
use crate::op::Operation;

/// Owner of an open file that can be moved into an operation: `OwnedFd`, `File`, an `Arc` of them, or any type that
/// implements [`AsFd`]. Its descriptor must not change or be closed before the owner is dropped.
pub trait AsFdOwned: AsFd + Send + 'static {}

impl<T: AsFd + Send + 'static> AsFdOwned for T {}

fn fd_of(file: &impl AsFdOwned) -> types::Fd {
    types::Fd(file.as_fd().as_raw_fd())
}

/// See [`SystemHandle::fsync`](crate::SystemHandle::fsync) and
/// [`SystemHandle::fdatasync`](crate::SystemHandle::fdatasync).
pub struct Fsync<F> {
    pub(crate) file: F,
    pub(crate) data_only: bool,
}

// SAFETY: the file is owned; no memory is involved.
unsafe impl<F: AsFdOwned> Operation for Fsync<F> {
    type Output = (F, io::Result<()>);

    fn entry(&mut self) -> io::Result<squeue::Entry> {
        let flags = if self.data_only { types::FsyncFlags::DATASYNC } else { types::FsyncFlags::empty() };
        Ok(opcode::Fsync::new(fd_of(&self.file)).flags(flags).build())
    }

    fn complete(self, result: io::Result<u32>) -> Self::Output {
        (self.file, result.map(drop))
    }
}

/// See [`SystemHandle::sync_file_range`](crate::SystemHandle::sync_file_range).
pub struct SyncFileRange<F> {
    pub(crate) file: F,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) flags: u32,
}

// SAFETY: the file is owned; no memory is involved.
unsafe impl<F: AsFdOwned> Operation for SyncFileRange<F> {
    type Output = (F, io::Result<()>);

    fn entry(&mut self) -> io::Result<squeue::Entry> {
        let entry = opcode::SyncFileRange::new(fd_of(&self.file), self.len);
        Ok(entry.offset(check_offset(self.offset)?).flags(self.flags).build())
    }

    fn complete(self, result: io::Result<u32>) -> Self::Output {
        (self.file, result.map(drop))
    }
}

/// See [`SystemHandle::fallocate`](crate::SystemHandle::fallocate).
pub struct Fallocate<F> {
    pub(crate) file: F,
    pub(crate) mode: i32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

// SAFETY: the file is owned; no memory is involved.
unsafe impl<F: AsFdOwned> Operation for Fallocate<F> {
    type Output = (F, io::Result<()>);

    fn entry(&mut self) -> io::Result<squeue::Entry> {
        let entry = opcode::Fallocate::new(fd_of(&self.file), self.len);
        Ok(entry.offset(check_offset(self.offset)?).mode(self.mode).build())
    }

    fn complete(self, result: io::Result<u32>) -> Self::Output {
        (self.file, result.map(drop))
    }
}

/// See [`SystemHandle::ftruncate`](crate::SystemHandle::ftruncate).
pub struct Ftruncate<F> {
    pub(crate) file: F,
    pub(crate) len: u64,
}

// SAFETY: the file is owned; no memory is involved.
unsafe impl<F: AsFdOwned> Operation for Ftruncate<F> {
    type Output = (F, io::Result<()>);

    fn entry(&mut self) -> io::Result<squeue::Entry> {
        Ok(opcode::Ftruncate::new(fd_of(&self.file), check_offset(self.len)?).build())
    }

    fn complete(self, result: io::Result<u32>) -> Self::Output {
        (self.file, result.map(drop))
    }
}

/// `ftruncate(2)` in the blocking pool, or on the spot if there is no pool anymore.
#[allow(clippy::disallowed_methods, reason = "below the seams: nothing of ours may be used here")]
pub(crate) async fn ftruncate_blocking<F: AsFdOwned>(file: F, len: u64) -> (F, io::Result<()>) {
    // Shared with the closure, so that the file is returned even if the pool drops the closure.
    let file = Arc::new(Mutex::new(Some(file)));
    let shared = file.clone();
    let pooled = tokio::task::spawn_blocking(move || shared.lock().as_ref().map(|file| truncate(file, len))).await;
    let file = file.lock().take().expect("nobody but this line takes it");
    let result = pooled.ok().flatten().unwrap_or_else(|| truncate(&file, len));
    (file, result)
}

fn truncate(file: &impl AsFdOwned, len: u64) -> io::Result<()> {
    let len = check_offset(len)?.cast_signed();
    // SAFETY: the descriptor is open as long as `file` is borrowed.
    match unsafe { libc::ftruncate(file.as_fd().as_raw_fd(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The fields requested from `statx`: the basic ones, birth time, and the alignment that direct I/O needs.
const STATX_MASK: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME | libc::STATX_DIOALIGN;

/// Memory for the kernel's answer: none or one. A Vec, because a Box would claim that nobody else writes to it.
pub(crate) struct StatxBuf(Vec<libc::statx>);

impl StatxBuf {
    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(1))
    }

    pub(crate) fn entry(&mut self, dir: types::Fd, path: &std::ffi::CStr, flags: i32) -> squeue::Entry {
        let entry = opcode::Statx::new(dir, path.as_ptr(), self.0.as_mut_ptr().cast());
        entry.flags(flags).mask(STATX_MASK).build()
    }

    /// # Safety
    ///
    /// The operation made by `entry` succeeded.
    pub(crate) unsafe fn into_answer(mut self) -> libc::statx {
        // SAFETY: the kernel filled in the one element that there is room for.
        unsafe { self.0.set_len(1) };
        self.0[0]
    }
}

/// See [`SystemHandle::statx`](crate::SystemHandle::statx).
pub struct Statx<F> {
    file: F,
    answer: StatxBuf,
}

impl<F> Statx<F> {
    pub(crate) fn new(file: F) -> Self {
        Self { file, answer: StatxBuf::new() }
    }
}

// SAFETY: the file is owned, the answer goes to the heap block of an owned Vec, the path is static.
unsafe impl<F: AsFdOwned> Operation for Statx<F> {
    type Output = (F, io::Result<libc::statx>);

    fn entry(&mut self) -> io::Result<squeue::Entry> {
        Ok(self.answer.entry(fd_of(&self.file), c"", libc::AT_EMPTY_PATH))
    }

    fn complete(self, result: io::Result<u32>) -> Self::Output {
        // SAFETY: it succeeded.
        (self.file, result.map(|_| unsafe { self.answer.into_answer() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation_in_the_blocking_pool() {
        let path = std::env::temp_dir().join(format!("tokio-epoll-uring-truncate-{}", std::process::id()));
        std::fs::write(&path, b"0123456789").expect("a file");
        let file = std::fs::File::options().write(true).open(&path).expect("a file");
        std::fs::remove_file(&path).expect("it exists");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (file, result) = runtime.block_on(ftruncate_blocking(file, 4));
        result.expect("truncated");
        assert_eq!(file.metadata().expect("metadata").len(), 4);
        let (_, result) = runtime.block_on(ftruncate_blocking(file, u64::MAX));
        assert_eq!(result.expect_err("refused").raw_os_error(), Some(libc::EINVAL));
    }
}
