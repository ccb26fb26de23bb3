//! Positional reads and writes, plain and vectored.

use std::io;
use std::os::fd::AsRawFd;

use io_uring::{opcode, squeue, types};

use super::check_offset;
use super::file::AsFdOwned;
use crate::buf::{IoBuf, IoBufMut};
use crate::op::Operation;

/// Maximum number of bytes that the kernel transfers in one operation (`MAX_RW_COUNT`).
const MAX_RW_COUNT: usize = 0x7fff_f000;

/// See [`SystemHandle::read`](crate::SystemHandle::read).
pub struct Read<F, B> {
    pub(crate) file: F,
    pub(crate) offset: u64,
    pub(crate) buf: B,
}

// SAFETY: file and buffer are owned, and the buffer's memory is stable by the contract of `IoBufMut`.
unsafe impl<F: AsFdOwned, B: IoBufMut> Operation for Read<F, B> {
    type Output = ((F, B), io::Result<usize>);

    fn entry(&mut self) -> io::Result<squeue::Entry> {
        let fd = types::Fd(self.file.as_fd().as_raw_fd());
        let len = self.buf.bytes_total().min(MAX_RW_COUNT) as u32;
        Ok(opcode::Read::new(fd, self.buf.stable_mut_ptr(), len).offset(check_offset(self.offset)?).build())
    }

    fn complete(mut self, result: io::Result<u32>) -> Self::Output {
        let result = result.map(|read| {
            // SAFETY: the kernel wrote this many bytes, and was told not to exceed `bytes_total`.
            unsafe { self.buf.set_init(read as usize) };
            read as usize
        });
        ((self.file, self.buf), result)
    }
}

/// See [`SystemHandle::write`](crate::SystemHandle::write) and
/// [`SystemHandle::write_durably`](crate::SystemHandle::write_durably).
pub struct Write<F, B> {
    pub(crate) file: F,
    pub(crate) offset: u64,
    pub(crate) buf: B,
    /// Of `pwritev2(2)`.
    pub(crate) flags: i32,
}

// SAFETY: file and buffer are owned, and the buffer's memory is stable by the contract of `IoBuf`.
unsafe impl<F: AsFdOwned, B: IoBuf> Operation for Write<F, B> {
    type Output = ((F, B), io::Result<usize>);

    fn entry(&mut self) -> io::Result<squeue::Entry> {
        let fd = types::Fd(self.file.as_fd().as_raw_fd());
        let len = self.buf.bytes_init().min(MAX_RW_COUNT) as u32;
        let entry = opcode::Write::new(fd, self.buf.stable_ptr(), len).rw_flags(self.flags);
        Ok(entry.offset(check_offset(self.offset)?).build())
    }

    fn complete(self, result: io::Result<u32>) -> Self::Output {
        ((self.file, self.buf), result.map(|written| written as usize))
    }
}

/// The array that tells the kernel where the buffers are; it must live as long as the operation.
#[derive(Default)]
struct IoVecs(Vec<libc::iovec>);

// SAFETY: the pointers are only passed to the kernel, and the buffers they point to are `Send`.
unsafe impl Send for IoVecs {}

impl IoVecs {
    fn set(&mut self, bufs: impl Iterator<Item = (*mut u8, usize)>) {
        self.0.clear();
        self.0.extend(bufs.map(|(base, len)| libc::iovec { iov_base: base.cast(), iov_len: len }));
    }

    /// The kernel refuses more than 1024, so the number always fits.
    fn count(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }
}

/// See [`SystemHandle::readv`](crate::SystemHandle::readv).
pub struct Readv<F, B> {
    file: F,
    offset: u64,
    bufs: Vec<B>,
    iovecs: IoVecs,
}

impl<F, B> Readv<F, B> {
    pub(crate) fn new(file: F, offset: u64, bufs: Vec<B>) -> Self {
        Self { file, offset, bufs, iovecs: IoVecs::default() }
    }
}

// SAFETY: file, buffers and the array are owned; the buffers' memory is stable by the contract of `IoBufMut`, the
// array's is the heap block of a Vec.
unsafe impl<F: AsFdOwned, B: IoBufMut> Operation for Readv<F, B> {
    type Output = ((F, Vec<B>), io::Result<usize>);

    fn entry(&mut self) -> io::Result<squeue::Entry> {
        self.iovecs.set(self.bufs.iter_mut().map(|buf| (buf.stable_mut_ptr(), buf.bytes_total())));
        let fd = types::Fd(self.file.as_fd().as_raw_fd());
        let entry = opcode::Readv::new(fd, self.iovecs.0.as_ptr(), self.iovecs.count());
        Ok(entry.offset(check_offset(self.offset)?).build())
    }

    fn complete(mut self, result: io::Result<u32>) -> Self::Output {
        let result = result.map(|read| read as usize);
        let mut left = *result.as_ref().unwrap_or(&0);
        for buf in &mut self.bufs {
            let bytes = left.min(buf.bytes_total());
            // SAFETY: the kernel fills the buffers one after the other, each up to its `bytes_total`.
            unsafe { buf.set_init(bytes) };
            left -= bytes;
        }
        ((self.file, self.bufs), result)
    }
}

/// See [`SystemHandle::writev`](crate::SystemHandle::writev).
pub struct Writev<F, B> {
    file: F,
    offset: u64,
    bufs: Vec<B>,
    iovecs: IoVecs,
}

impl<F, B> Writev<F, B> {
    pub(crate) fn new(file: F, offset: u64, bufs: Vec<B>) -> Self {
        Self { file, offset, bufs, iovecs: IoVecs::default() }
    }
}

// SAFETY: as for `Readv`, by the contract of `IoBuf`. The kernel only reads what the array points to.
unsafe impl<F: AsFdOwned, B: IoBuf> Operation for Writev<F, B> {
    type Output = ((F, Vec<B>), io::Result<usize>);

    fn entry(&mut self) -> io::Result<squeue::Entry> {
        self.iovecs.set(self.bufs.iter().map(|buf| (buf.stable_ptr().cast_mut(), buf.bytes_init())));
        let fd = types::Fd(self.file.as_fd().as_raw_fd());
        let entry = opcode::Writev::new(fd, self.iovecs.0.as_ptr(), self.iovecs.count());
        Ok(entry.offset(check_offset(self.offset)?).build())
    }

    fn complete(self, result: io::Result<u32>) -> Self::Output {
        ((self.file, self.bufs), result.map(|written| written as usize))
    }
}
