//! Reads the fields of one message.

use bytes::{Buf, Bytes};

use crate::error::ProtocolError;

/// The rest of a message's body. Every read fails instead of going past the end.
pub(crate) struct Fields {
    rest: Bytes,
    message: &'static str,
}

impl Fields {
    /// Reads the fields of `body`; `message` is its name in errors.
    pub(crate) fn new(body: Bytes, message: &'static str) -> Self {
        Self { rest: body, message }
    }

    pub(crate) fn malformed(&self) -> ProtocolError {
        ProtocolError::Malformed(self.message)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, ProtocolError> {
        self.rest.try_get_u8().map_err(|_| self.malformed())
    }

    pub(crate) fn i16(&mut self) -> Result<i16, ProtocolError> {
        self.rest.try_get_i16().map_err(|_| self.malformed())
    }

    pub(crate) fn i32(&mut self) -> Result<i32, ProtocolError> {
        self.rest.try_get_i32().map_err(|_| self.malformed())
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ProtocolError> {
        self.rest.try_get_u64().map_err(|_| self.malformed())
    }

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Result<Bytes, ProtocolError> {
        if len > self.rest.len() {
            return Err(self.malformed());
        }
        Ok(self.rest.split_to(len))
    }

    /// Bytes up to a NUL, which is consumed but not returned.
    pub(crate) fn cstr(&mut self) -> Result<Bytes, ProtocolError> {
        let end = self.rest.iter().position(|byte| *byte == 0).ok_or_else(|| self.malformed())?;
        let text = self.rest.split_to(end);
        self.rest.advance(1);
        Ok(text)
    }

    /// Text up to a NUL, which must be UTF-8.
    pub(crate) fn text(&mut self) -> Result<String, ProtocolError> {
        String::from_utf8(self.cstr()?.into()).map_err(|_| self.malformed())
    }

    /// A length and that many bytes; length -1 is NULL.
    pub(crate) fn nullable(&mut self) -> Result<Option<Bytes>, ProtocolError> {
        match self.i32()? {
            -1 => Ok(None),
            len => self.bytes(usize::try_from(len).map_err(|_| self.malformed())?).map(Some),
        }
    }

    /// All remaining bytes.
    pub(crate) fn rest(self) -> Bytes {
        self.rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Fails if anything remains.
    pub(crate) fn end(self) -> Result<(), ProtocolError> {
        if self.is_empty() { Ok(()) } else { Err(self.malformed()) }
    }
}
