//! Page-aligned buffers, recycled through a small pool so that a busy writer does not fault in fresh memory.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::mm::{Advice, madvise};
use tokio_epoll_uring::{IoBuf, IoBufMut};

use super::alignment::MEMORY_ALIGN;

/// Maximum number of bytes in the pool.
const POOL_BYTES_MAX: usize = 16 << 20;

/// Buffers of at least this size use pages of this size if the kernel has any.
const HUGE_PAGE: usize = 2 << 20;

static POOL: Mutex<Vec<AlignedBuf>> = Mutex::new(Vec::new());

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of all buffers, those in the pool included.
pub fn allocated_bytes() -> usize {
    ALLOCATED.load(Ordering::Relaxed)
}

/// A byte buffer that grows up to its capacity; its address and capacity are multiples of 4 KiB.
#[derive(Debug)]
pub struct AlignedBuf {
    memory: NonNull<u8>,
    capacity: usize,
    len: usize,
}

// SAFETY: the buffer owns its memory, which `&self` only reads.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// An empty buffer for at least `capacity` bytes, from the pool if it has one of that size.
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.max(1).next_multiple_of(MEMORY_ALIGN);
        let pooled = {
            let mut pool = POOL.lock();
            pool.iter().position(|buf| buf.capacity == capacity).map(|at| pool.swap_remove(at))
        };
        pooled.unwrap_or_else(|| Self::allocate(capacity))
    }

    fn layout(capacity: usize) -> Layout {
        let align = if capacity >= HUGE_PAGE { HUGE_PAGE } else { MEMORY_ALIGN };
        Layout::from_size_align(capacity, align).expect("capacity is far below the address space")
    }

    fn allocate(capacity: usize) -> Self {
        let layout = Self::layout(capacity);
        ALLOCATED.fetch_add(capacity, Ordering::Relaxed);
        if capacity >= HUGE_PAGE {
            return Self::allocate_huge(layout);
        }
        // SAFETY: the layout's size is not zero: it is at least `MEMORY_ALIGN`.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        Self { memory, capacity, len: 0 }
    }

    /// The kernel provides huge pages only if asked before the memory is touched.
    fn allocate_huge(layout: Layout) -> Self {
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        let whole_pages = layout.size() / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: the pages are within the allocation, and the advice does not change their contents. A refusal is
        // harmless.
        let _ = unsafe { madvise(memory.as_ptr().cast(), whole_pages, Advice::LinuxHugepage) };
        // SAFETY: the allocation has this many bytes.
        unsafe { std::ptr::write_bytes(memory.as_ptr(), 0, layout.size()) };
        Self { memory, capacity: layout.size(), len: 0 }
    }

    /// Returns the memory to the pool.
    pub fn recycle(mut self) {
        self.len = 0;
        let mut pool = POOL.lock();
        if pool.iter().map(|buf| buf.capacity).sum::<usize>() + self.capacity <= POOL_BYTES_MAX {
            pool.push(self);
        }
    }

    /// The same memory as an empty buffer.
    pub(crate) fn emptied(mut self) -> Self {
        self.len = 0;
        self
    }

    /// Total number of bytes that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of bytes that still fit.
    pub fn room(&self) -> usize {
        self.capacity - self.len
    }

    /// Appends `bytes`.
    ///
    /// # Panics
    /// If they do not fit.
    #[inline]
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.room(), "buffer is full");
        // SAFETY: `len..len + bytes.len()` is within the allocation, and `bytes` cannot overlap it as `&mut self` is
        // exclusive.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.as_ptr().add(self.len), bytes.len());
        }
        self.len += bytes.len();
    }

    /// Appends `count` zero bytes.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn extend_with_zeros(&mut self, count: usize) {
        assert!(count <= self.room(), "buffer is full");
        // SAFETY: as in `extend_from_slice`.
        unsafe { std::ptr::write_bytes(self.memory.as_ptr().add(self.len), 0, count) };
        self.len += count;
    }

    /// Truncates the buffer to its first `len` bytes.
    ///
    /// # Panics
    /// If it has fewer.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.len, "a buffer is only ever cut");
        self.len = len;
    }

    /// Makes the whole capacity readable and writable. The contents are unspecified but initialized: memory comes
    /// zeroed from the allocator and is only ever overwritten.
    pub fn whole_mut(&mut self) -> &mut [u8] {
        self.len = self.capacity;
        // SAFETY: all `capacity` bytes are allocated and initialized, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.capacity) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the first `len` bytes are allocated and initialized.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the first `len` bytes are allocated and initialized, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        ALLOCATED.fetch_sub(self.capacity, Ordering::Relaxed);
        // SAFETY: `allocate` allocated the memory with the same layout.
        unsafe { dealloc(self.memory.as_ptr(), Self::layout(self.capacity)) };
    }
}

// SAFETY: the memory is allocated once, does not move with the value, is initialized and leaks with the value. `len`
// shrinks only in `recycle` and `set_len`, through the value's own interface.
unsafe impl IoBuf for AlignedBuf {
    fn stable_ptr(&self) -> *const u8 {
        self.memory.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.len
    }
}

// SAFETY: as above; `capacity` bytes are allocated and only this value refers to them.
unsafe impl IoBufMut for AlignedBuf {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_ptr()
    }

    fn bytes_total(&self) -> usize {
        self.capacity
    }

    unsafe fn set_init(&mut self, bytes: usize) {
        self.len = self.len.max(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_and_recycles() {
        let mut buf = AlignedBuf::with_capacity(5000);
        assert_eq!((buf.capacity(), buf.len()), (8192, 0));
        assert_eq!(buf.stable_ptr() as usize % MEMORY_ALIGN, 0);
        buf.extend_from_slice(&[7; 100]);
        buf.extend_with_zeros(3);
        assert_eq!((&buf[99..], buf.room()), (&[7, 0, 0, 0][..], 8192 - 103));
        buf.recycle();
        let mut again = AlignedBuf::with_capacity(8192);
        assert!(again.is_empty());
        again.whole_mut()[8191] = 1;
        assert_eq!((again.len(), again[8191]), (8192, 1));
    }

    #[test]
    #[should_panic(expected = "buffer is full")]
    fn refuses_what_does_not_fit() {
        AlignedBuf::with_capacity(4096).extend_from_slice(&[0; 4097]);
    }
}
