//! Buffers that an operation may own while the kernel reads or writes them.

use std::ops::Range;
use std::sync::Arc;

/// A buffer the kernel may read from (the source of a write).
///
/// # Safety
///
/// From a call of these methods until the value is dropped or changed through its own interface, no matter whether
/// the value itself moves:
/// * `stable_ptr` returns the same address;
/// * the `bytes_init` bytes from there on are initialized, stay allocated, and `bytes_init` does not shrink;
/// * if the value is leaked, so is that memory.
pub unsafe trait IoBuf: Send + 'static {
    /// Address of the first byte.
    fn stable_ptr(&self) -> *const u8;
    /// Number of initialized bytes.
    fn bytes_init(&self) -> usize;
}

/// A buffer the kernel may write into (the destination of a read).
///
/// # Safety
///
/// In addition to the requirements of [`IoBuf`]: the `bytes_total` bytes from `stable_mut_ptr` on are allocated and
/// writable, nobody else refers to them as long as the value is not accessed, and `bytes_total >= bytes_init`.
/// `stable_mut_ptr` and [`IoBuf::stable_ptr`] are the same address.
pub unsafe trait IoBufMut: IoBuf {
    /// Address of the first byte.
    fn stable_mut_ptr(&mut self) -> *mut u8;
    /// Number of writable bytes, whether initialized or not.
    fn bytes_total(&self) -> usize;
    /// Records that the first `bytes` bytes are initialized. Never lowers [`IoBuf::bytes_init`].
    ///
    /// # Safety
    ///
    /// The first `bytes` bytes are initialized, and `bytes <= bytes_total`.
    unsafe fn set_init(&mut self, bytes: usize);
}

// SAFETY: the heap block of a Vec does not move with the Vec, and is leaked with it.
unsafe impl IoBuf for Vec<u8> {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.len()
    }
}

// SAFETY: as above; `capacity` bytes are allocated and only the Vec refers to them.
unsafe impl IoBufMut for Vec<u8> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn bytes_total(&self) -> usize {
        self.capacity()
    }

    unsafe fn set_init(&mut self, bytes: usize) {
        if bytes > self.len() {
            // SAFETY: the caller vouches for `bytes` initialized bytes within the capacity.
            unsafe { self.set_len(bytes) }
        }
    }
}

// SAFETY: static memory neither moves nor goes away.
unsafe impl IoBuf for &'static [u8] {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.len()
    }
}

// SAFETY: the inner buffer lives as long as any clone, and its own implementation vouches for its memory. While this
// clone exists the Arc yields only `&T`, so the buffer cannot be changed through its interface.
unsafe impl<T: IoBuf + Sync> IoBuf for Arc<T> {
    fn stable_ptr(&self) -> *const u8 {
        T::stable_ptr(self)
    }

    fn bytes_init(&self) -> usize {
        T::bytes_init(self)
    }
}

/// The bytes `begin..end` of a buffer, as a buffer.
#[derive(Debug)]
pub struct Slice<B> {
    buf: B,
    begin: usize,
    end: usize,
}

impl<B: IoBuf> Slice<B> {
    /// The bytes in `range`, all of them initialized: the source of a write.
    ///
    /// # Panics
    ///
    /// When the range is reversed or goes beyond the initialized bytes, as slicing does.
    pub fn new(buf: B, range: Range<usize>) -> Self {
        Self::checked(range, buf.bytes_init(), buf)
    }

    fn checked(range: Range<usize>, limit: usize, buf: B) -> Self {
        let Range { start: begin, end } = range;
        assert!(begin <= end && end <= limit, "slice {begin}..{end} of a buffer of {limit} bytes");
        Self { buf, begin, end }
    }
}

impl<B: IoBufMut> Slice<B> {
    /// The bytes in `range`, initialized or not: the destination of a read. The range must not begin beyond the
    /// initialized bytes, because that would leave a hole.
    ///
    /// # Panics
    ///
    /// When the range is reversed, goes beyond the buffer or begins beyond the initialized bytes.
    pub fn new_mut(buf: B, range: Range<usize>) -> Self {
        let init = buf.bytes_init();
        assert!(range.start <= init, "slice {range:?} begins beyond the {init} initialised bytes");
        Self::checked(range, buf.bytes_total(), buf)
    }
}

impl<B> Slice<B> {
    /// Offset of the first byte in the buffer.
    pub fn begin(&self) -> usize {
        self.begin
    }

    /// Offset in the buffer of the first byte after the slice.
    pub fn end(&self) -> usize {
        self.end
    }

    /// The whole buffer.
    pub fn get_ref(&self) -> &B {
        &self.buf
    }

    /// The whole buffer.
    pub fn into_inner(self) -> B {
        self.buf
    }
}

// SAFETY: a sub-range of what `B` vouches for: the constructors checked `begin <= bytes_init`, which does not shrink
// while the slice owns the buffer, and `end` is capped by it.
unsafe impl<B: IoBuf> IoBuf for Slice<B> {
    fn stable_ptr(&self) -> *const u8 {
        // SAFETY: `begin` is within the buffer.
        unsafe { self.buf.stable_ptr().add(self.begin) }
    }

    fn bytes_init(&self) -> usize {
        self.end.min(self.buf.bytes_init()).saturating_sub(self.begin)
    }
}

// SAFETY: as above. A slice from `new` ends within the initialized bytes, one from `new_mut` within the buffer.
unsafe impl<B: IoBufMut> IoBufMut for Slice<B> {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        // SAFETY: `begin` is within the buffer.
        unsafe { self.buf.stable_mut_ptr().add(self.begin) }
    }

    fn bytes_total(&self) -> usize {
        self.end - self.begin
    }

    unsafe fn set_init(&mut self, bytes: usize) {
        // SAFETY: everything before `begin` is initialized (checked by the constructors), and the caller vouches for
        // `bytes` more.
        unsafe { self.buf.set_init(self.begin + bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_covers_its_range() {
        let slice = Slice::new(b"0123456789".to_vec(), 2..5);
        assert_eq!(slice.bytes_init(), 3);
        // SAFETY: `bytes_init` bytes are initialized.
        let bytes = unsafe { std::slice::from_raw_parts(slice.stable_ptr(), slice.bytes_init()) };
        assert_eq!(bytes, b"234");
        assert_eq!(slice.into_inner(), b"0123456789");
    }

    #[test]
    fn mutable_slice_extends_the_initialised_bytes() {
        let mut buf = Vec::with_capacity(64);
        buf.extend_from_slice(b"abc");
        let mut slice = Slice::new_mut(buf, 3..10);
        assert_eq!((slice.bytes_init(), slice.bytes_total()), (0, 7));
        // SAFETY: the bytes are written before they are declared initialized.
        unsafe {
            slice.stable_mut_ptr().copy_from(b"de".as_ptr(), 2);
            slice.set_init(2);
        }
        assert_eq!(slice.bytes_init(), 2);
        assert_eq!(slice.into_inner(), b"abcde");
    }

    #[test]
    fn set_init_never_shortens() {
        let mut buf = b"abcdef".to_vec();
        // SAFETY: three of six bytes.
        unsafe { buf.set_init(3) };
        assert_eq!(buf, b"abcdef");
    }

    #[test]
    #[should_panic(expected = "slice 2..7 of a buffer of 6 bytes")]
    fn slice_beyond_the_end_panics() {
        Slice::new(b"abcdef".to_vec(), 2..7);
    }

    #[test]
    #[should_panic(expected = "begins beyond the 6 initialised bytes")]
    fn mutable_slice_with_a_hole_panics() {
        let mut buf = Vec::with_capacity(64);
        buf.extend_from_slice(b"abcdef");
        Slice::new_mut(buf, 7..8);
    }
}
