//! Messages on a byte stream: type, length, body.
//!
//! Both directions keep unfinished data in their own buffer, so dropping one of their futures loses nothing.

use std::future::Future;
use std::io;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::{ProtocolError, ReadError};

/// Free space for reading, and the minimum by which a large message grows the buffer: memory follows the bytes
/// received.
const READ_CHUNK: usize = 32 * 1024;
/// Type and length.
const HEADER_LEN: usize = 5;

/// A message as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawMessage {
    /// Its type.
    pub tag: u8,
    /// Everything after the length.
    pub body: Bytes,
}

/// Reads messages.
#[derive(Debug)]
pub struct MessageReader<R> {
    stream: R,
    buf: BytesMut,
    max_len: usize,
}

impl<R: AsyncRead + Unpin> MessageReader<R> {
    /// Reads from `stream`; a message whose length field is above `max_len` bytes is refused.
    pub fn new(stream: R, max_len: usize) -> Self {
        Self { stream, buf: BytesMut::new(), max_len }
    }

    /// Changes the limit for subsequent messages.
    pub fn set_max_len(&mut self, max_len: usize) {
        self.max_len = max_len;
    }

    /// The next message; `None` if the peer closed the connection between messages. Cancellation safe.
    pub async fn read(&mut self) -> Result<Option<RawMessage>, ReadError> {
        loop {
            if let Some(message) = self.take_buffered()? {
                return Ok(Some(message));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// The next message if it has already arrived, whether read or not: does not wait.
    pub async fn read_ready(&mut self) -> Result<Option<RawMessage>, ReadError> {
        if let Some(message) = self.take_buffered()? {
            return Ok(Some(message));
        }
        {
            let mut fill = std::pin::pin!(self.fill());
            let once = |cx: &mut Context<'_>| match fill.as_mut().poll(cx) {
                Poll::Ready(result) => Poll::Ready(result.map(drop)),
                Poll::Pending => Poll::Ready(Ok(())),
            };
            std::future::poll_fn(once).await?;
        }
        Ok(self.take_buffered()?)
    }

    /// The next message if it has already been read.
    pub fn take_buffered(&mut self) -> Result<Option<RawMessage>, ProtocolError> {
        take_message(&mut self.buf, self.max_len)
    }

    /// Reads `len` bytes that are not a message; `None` if the connection ends before the first. Only used before the
    /// first message.
    pub(crate) async fn read_exact(&mut self, len: usize) -> Result<Option<Bytes>, ReadError> {
        let there = self.has(len).await?;
        Ok(there.then(|| self.buf.split_to(len).freeze()))
    }

    /// Waits until `len` bytes have been read; false if the connection ends before the first.
    pub(crate) async fn has(&mut self, len: usize) -> Result<bool, ReadError> {
        while self.buf.len() < len {
            if !self.fill().await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Bytes that are read and not yet consumed.
    pub(crate) fn buffered(&self) -> &[u8] {
        &self.buf
    }

    /// Returns the stream, and bytes that were read in excess.
    pub(crate) fn into_parts(self) -> (R, BytesMut) {
        (self.stream, self.buf)
    }

    /// Reads some bytes; false at a clean end.
    async fn fill(&mut self) -> Result<bool, io::Error> {
        if self.buf.capacity() - self.buf.len() < READ_CHUNK / 4 {
            self.buf.reserve(READ_CHUNK.max(self.buf.len()));
        }
        if self.stream.read_buf(&mut self.buf).await? > 0 {
            return Ok(true);
        }
        if self.buf.is_empty() { Ok(false) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// Splits one complete message off `buf`, if there is one. The length field counts itself, so it is at least 4.
pub fn take_message(buf: &mut BytesMut, max_len: usize) -> Result<Option<RawMessage>, ProtocolError> {
    let Some([tag, length @ ..]) = buf.first_chunk::<HEADER_LEN>() else { return Ok(None) };
    let (tag, len) = (*tag, i32::from_be_bytes(*length));
    let fits = usize::try_from(len).ok().filter(|len| (4..=max_len).contains(len));
    let len = fits.ok_or(ProtocolError::Length { len: len.into(), min: 4, max: max_len })?;
    if buf.len() < len + 1 {
        return Ok(None);
    }
    let mut whole = buf.split_to(len + 1);
    whole.advance(HEADER_LEN);
    Ok(Some(RawMessage { tag, body: whole.freeze() }))
}

/// Collects messages and writes them on request.
#[derive(Debug)]
pub struct MessageWriter<W> {
    stream: W,
    buf: BytesMut,
}

impl<W: AsyncWrite + Unpin> MessageWriter<W> {
    /// Writes to `stream`.
    pub fn new(stream: W) -> Self {
        Self { stream, buf: BytesMut::new() }
    }

    /// The bytes that the next flush will send; encoders append to it.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buf
    }

    /// Sends everything collected. Cancellation safe: a later flush continues where this one was dropped.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.drain().await?;
        self.stream.flush().await
    }

    /// Sends the collected bytes if there are more than `limit`.
    pub async fn flush_above(&mut self, limit: usize) -> io::Result<()> {
        if self.buf.len() > limit { self.drain().await } else { Ok(()) }
    }

    async fn drain(&mut self) -> io::Result<()> {
        while !self.buf.is_empty() {
            if self.stream.write_buf(&mut self.buf).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Sends everything and closes this direction.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.stream.shutdown().await
    }

    pub(crate) fn into_inner(self) -> W {
        self.stream
    }
}

/// Appends a message of type `tag` whose body `write` appends.
///
/// # Panics
/// If the body has 2 GiB or more: callers always split data far below that.
pub fn put_message(buf: &mut BytesMut, tag: u8, write: impl FnOnce(&mut BytesMut)) {
    buf.put_u8(tag);
    put_length_prefixed(buf, write);
}

/// Appends a length that counts itself, and whatever `write` appends.
pub(crate) fn put_length_prefixed(buf: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
    let start = buf.len();
    buf.put_i32(0);
    write(buf);
    let len = i32::try_from(buf.len() - start).expect("messages are built far below 2 GiB");
    if let Some(field) = buf.get_mut(start..).and_then(|written| written.first_chunk_mut::<4>()) {
        *field = len.to_be_bytes();
    }
}

/// Appends `text` and a NUL. Text after an embedded NUL is dropped, because the reader would stop there.
pub fn put_cstr(buf: &mut BytesMut, text: &[u8]) {
    buf.extend(text.iter().take_while(|byte| **byte != 0));
    buf.put_u8(0);
}
