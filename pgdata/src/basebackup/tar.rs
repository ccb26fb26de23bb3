//! The archive: ustar headers, contents padded to whole blocks, two zero blocks at the end.

use std::io;
use std::time::UNIX_EPOCH;

use bytes::{Bytes, BytesMut};
use pageserver_api::boot_image::{SUMS_NAME, Sum, Sums, UPPER_DIR};
use tar::{EntryType, Header};

use super::request::Sink;

const BLOCK: usize = 512;
/// Maximum size of the pieces in which zeros are sent.
const ZEROS: usize = 64 * 1024;

/// Where files go in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Laid out like a data directory.
    DataDirectory,
    /// Laid out like a compute's directory: WAL separate from everything else, and a list of checksums at the end.
    Compute,
}

/// Writes an archive to a sink.
pub(super) struct Tar<'a, W> {
    sink: &'a mut W,
    /// Modification time of all entries, in seconds since 1970.
    time: u64,
    /// Collects small writes.
    buf: BytesMut,
    /// Bytes of the current file that are still to come.
    left: u64,
    /// Zeros needed after the current file.
    padding: usize,
    layout: Layout,
    /// Sums of the files so far.
    sums: Sums,
}

impl<'a, W: Sink> Tar<'a, W> {
    pub(super) fn new(sink: &'a mut W, layout: Layout) -> Self {
        let time = env::clock::system_now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { sink, time, buf: BytesMut::new(), left: 0, padding: 0, layout, sums: Sums::default() }
    }

    /// Adds a directory of the data directory.
    pub(super) async fn dir(&mut self, path: &str) -> io::Result<()> {
        self.header(&self.placed(path), EntryType::Directory, 0o700, 0).await
    }

    /// Path in the archive of a file of the data directory.
    fn placed(&self, path: &str) -> String {
        let is_wal = path == "pg_wal" || path.starts_with("pg_wal/");
        match self.layout {
            Layout::Compute if !is_wal => format!("{UPPER_DIR}/{path}"),
            Layout::Compute | Layout::DataDirectory => path.to_owned(),
        }
    }

    /// Adds a whole file of the data directory.
    pub(super) async fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.begin_file(path, content.len() as u64).await?;
        self.content(Bytes::copy_from_slice(content)).await?;
        self.end_file().await
    }

    /// Begins a file of the data directory; exactly `size` bytes must follow.
    pub(super) async fn begin_file(&mut self, path: &str, size: u64) -> io::Result<()> {
        self.begin_beside(&self.placed(path), size).await
    }

    /// Adds a whole file that is not part of the data directory.
    pub(super) async fn file_beside(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        self.begin_beside(path, content.len() as u64).await?;
        self.content(Bytes::copy_from_slice(content)).await?;
        self.end_file().await
    }

    /// Begins a file that is not part of the data directory.
    pub(super) async fn begin_beside(&mut self, path: &str, size: u64) -> io::Result<()> {
        self.header(path, EntryType::Regular, 0o600, size).await?;
        if self.layout == Layout::Compute {
            self.sums.0.push(Sum { path: path.to_owned(), size, crc: 0 });
        }
        self.left = size;
        self.padding = (BLOCK - (size % BLOCK as u64) as usize) % BLOCK;
        Ok(())
    }

    /// Adds the next bytes of the file.
    pub(super) async fn content(&mut self, bytes: Bytes) -> io::Result<()> {
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.ok_or_else(|| io::Error::other("a file got more bytes than were announced"))?;
        if let Some(sum) = self.sums.0.last_mut() {
            sum.crc = utils::crc32c::crc32c_append(sum.crc, &bytes);
        }
        self.send(bytes).await
    }

    /// Adds `count` zero bytes to the file.
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
        if self.layout == Layout::Compute {
            let sums = std::mem::take(&mut self.sums).encode();
            self.file_beside(SUMS_NAME, sums.as_bytes()).await?;
        }
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
