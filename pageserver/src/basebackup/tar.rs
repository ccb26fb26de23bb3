//! The archive: ustar headers, contents padded to blocks, two blocks of zeros at the end.

use std::io;
use std::time::UNIX_EPOCH;

use bytes::{Bytes, BytesMut};
use tar::{EntryType, Header};

use super::Sink;

const BLOCK: usize = 512;
/// Zeros are sent in pieces of this size at most.
const ZEROS: usize = 64 * 1024;

/// Writes an archive to a sink.
pub(super) struct Tar<'a, W> {
    sink: &'a mut W,
    /// Time of all entries, in seconds since 1970.
    time: u64,
    /// What is small is collected.
    buf: BytesMut,
    /// Bytes still to come of the file that was begun.
    left: u64,
    /// Zeros needed after it.
    padding: usize,
}

impl<'a, W: Sink> Tar<'a, W> {
    pub(super) fn new(sink: &'a mut W) -> Self {
        let time = env::clock::system_now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { sink, time, buf: BytesMut::new(), left: 0, padding: 0 }
    }

    /// A directory.
    pub(super) async fn dir(&mut self, path: &str) -> io::Result<()> {
        self.header(path, EntryType::Directory, 0o700, 0).await
    }

    /// A whole file.
    pub(super) async fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.begin_file(path, content.len() as u64).await?;
        self.content(Bytes::copy_from_slice(content)).await?;
        self.end_file().await
    }

    /// Begins a file of `size` bytes, which have to follow.
    pub(super) async fn begin_file(&mut self, path: &str, size: u64) -> io::Result<()> {
        self.header(path, EntryType::Regular, 0o600, size).await?;
        self.left = size;
        self.padding = (BLOCK - (size % BLOCK as u64) as usize) % BLOCK;
        Ok(())
    }

    /// The next bytes of the file.
    pub(super) async fn content(&mut self, bytes: Bytes) -> io::Result<()> {
        self.left = self.left.checked_sub(bytes.len() as u64).expect("a file gets as many bytes as announced");
        self.send(bytes).await
    }

    /// The next `count` bytes of the file are zero.
    pub(super) async fn zeros(&mut self, count: u64) -> io::Result<()> {
        static ZERO: [u8; ZEROS] = [0; ZEROS];
        let mut count = count;
        while count > 0 {
            let piece = count.min(ZEROS as u64);
            self.content(Bytes::from_static(ZERO.get(..piece as usize).unwrap_or_default())).await?;
            count -= piece;
        }
        Ok(())
    }

    /// Ends the file.
    pub(super) async fn end_file(&mut self) -> io::Result<()> {
        assert_eq!(self.left, 0, "a file gets as many bytes as announced");
        self.buf.resize(self.buf.len() + self.padding, 0);
        Ok(())
    }

    /// Ends the archive.
    pub(super) async fn finish(&mut self) -> io::Result<()> {
        self.buf.resize(self.buf.len() + 2 * BLOCK, 0);
        self.sink.write(self.buf.split().freeze()).await
    }

    async fn header(&mut self, path: &str, kind: EntryType, mode: u32, size: u64) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_path(path)?;
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(size);
        header.set_mtime(self.time);
        header.set_cksum();
        self.send(Bytes::copy_from_slice(header.as_bytes())).await
    }

    async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        if self.buf.len() + bytes.len() < ZEROS {
            self.buf.extend_from_slice(&bytes);
            return Ok(());
        }
        let collected = self.buf.split().freeze();
        self.sink.write(collected).await?;
        self.sink.write(bytes).await
    }
}
