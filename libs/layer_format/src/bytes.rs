//! Reading and writing little-endian fields.

use crate::FormatError;

/// Takes fields off the front of a slice.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// A cursor at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| FormatError::new(format!("{len} bytes wanted, {} left", self.rest.len())))?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, FormatError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    /// The next two bytes as an integer.
    pub fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// The next four bytes as an integer.
    pub fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// The next eight bytes as an integer.
    pub fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// The next sixteen bytes as an integer.
    pub fn u128(&mut self) -> Result<u128, FormatError> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    /// The remaining bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Fails unless all remaining bytes are zero.
    pub fn expect_zeros(&self) -> Result<(), FormatError> {
        // Piece by piece, as the compiler makes loops without a way out much faster.
        let is_zero = |piece: &[u8]| piece.iter().fold(0, |bits, byte| bits | byte) == 0;
        if self.rest.chunks(256).all(is_zero) { Ok(()) } else { Err(FormatError::new("padding is not zero")) }
    }
}

/// Number of bytes that `value` needs; 0 for 0.
#[inline]
pub fn byte_width(value: u128) -> usize {
    (128 - value.leading_zeros() as usize).div_ceil(8)
}
