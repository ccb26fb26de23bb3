//! Little-endian reads from untrusted bytes: by offset or by a moving cursor, with errors that contain the position.

use thiserror::Error;

/// The bytes end before the requested value does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{needed} bytes needed at offset {offset}, but there are only {len} bytes")]
pub struct Truncated {
    /// Where the value starts.
    pub offset: usize,
    /// Length of the value in bytes.
    pub needed: usize,
    /// Total number of bytes.
    pub len: usize,
}

/// The `N` bytes at `offset`.
#[inline]
pub fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], Truncated> {
    let found = bytes.get(offset..).and_then(|rest| rest.first_chunk::<N>());
    found.copied().ok_or(Truncated { offset, needed: N, len: bytes.len() })
}

/// The `needed` bytes at `offset`.
#[inline]
pub fn slice_at(bytes: &[u8], offset: usize, needed: usize) -> Result<&[u8], Truncated> {
    let end = offset.checked_add(needed);
    let found = end.and_then(|end| bytes.get(offset..end));
    found.ok_or(Truncated { offset, needed, len: bytes.len() })
}

macro_rules! read_at {
    ($($name:ident $type:ty),*) => {$(
        #[doc = concat!("The little-endian `", stringify!($type), "` at `offset`.")]
        #[inline]
        pub fn $name(bytes: &[u8], offset: usize) -> Result<$type, Truncated> {
            Ok(<$type>::from_le_bytes(array_at(bytes, offset)?))
        }
    )*};
}

read_at!(u8_at u8, u16_at u16, u32_at u32, u64_at u64, i32_at i32, i64_at i64);

/// A reader that moves forward over bytes.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
}

macro_rules! read_next {
    ($($name:ident $type:ty),*) => {$(
        #[doc = concat!("Reads the next little-endian `", stringify!($type), "`.")]
        #[inline]
        pub fn $name(&mut self) -> Result<$type, Truncated> {
            self.array().map(<$type>::from_le_bytes)
        }
    )*};
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, pos: 0 }
    }

    /// Offset of the next byte.
    #[inline]
    pub fn pos(&self) -> usize {
        self.pos
    }

    /// Number of remaining bytes.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.pos)
    }

    /// All remaining bytes, without moving.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.pos..).unwrap_or_default()
    }

    /// Reads the next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let value = array_at(self.bytes, self.pos)?;
        self.pos += N;
        Ok(value)
    }

    /// Takes the next `len` bytes.
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Truncated> {
        let value = slice_at(self.bytes, self.pos, len)?;
        self.pos += len;
        Ok(value)
    }

    /// Skips `len` bytes.
    #[inline]
    pub fn skip(&mut self, len: usize) -> Result<(), Truncated> {
        self.take(len).map(drop)
    }

    /// Moves to the next multiple of `align` (a power of two), counted from the start of the bytes.
    pub fn align(&mut self, align: usize) -> Result<(), Truncated> {
        let aligned = self.pos.next_multiple_of(align);
        self.skip(aligned - self.pos)
    }

    /// Reads `count` little-endian `u32` values. `count` is checked against the bytes before anything is allocated.
    pub fn u32_array(&mut self, count: u32) -> Result<Vec<u32>, Truncated> {
        let len = (count as usize).saturating_mul(4);
        let (words, _) = self.take(len)?.as_chunks::<4>();
        Ok(words.iter().copied().map(u32::from_le_bytes).collect())
    }

    read_next!(u8 u8, u16 u16, u32 u32, u64 u64, i32 i32, i64 i64);
}
