//! Open files.

use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use pageserver_api::models::virtual_file::IoMode;
use rustix::fs::{Mode, OFlags, open};

use super::alignment::{FALLBACK_ALIGN, direct_io_alignment};
use super::buffer::AlignedBuf;
use super::engine::{Handle, IoFuture};
use super::fatal;
use super::open_mode::OpenMode;
use super::simulated::{after, disk_of};
use errors::StorageError;

/// An open file. Cheap to share; closed when the last reference is dropped.
pub struct VirtualFile {
    path: parking_lot::RwLock<Utf8PathBuf>,
    handle: Handle,
    align: u64,
    direct: bool,
}

fn is_direct(open_mode: OpenMode) -> bool {
    match super::io_mode() {
        IoMode::Buffered => false,
        IoMode::Direct => open_mode == OpenMode::Read,
        IoMode::DirectRw => true,
    }
}

/// Stored data is for its owner only.
const FILE_MODE: u32 = 0o600;

fn open_os(path: &Utf8Path, mode: OpenMode, direct: bool) -> rustix::io::Result<OwnedFd> {
    let flags = match mode {
        OpenMode::Read => OFlags::RDONLY,
        OpenMode::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        OpenMode::Update => OFlags::RDWR,
    };
    let direct = if direct { OFlags::DIRECT } else { OFlags::empty() };
    open(path.as_std_path(), flags | direct | OFlags::CLOEXEC, Mode::from_raw_mode(FILE_MODE))
}

impl VirtualFile {
    /// Opens `path`, bypassing the page cache if the I/O mode says so.
    pub async fn open(path: &Utf8Path, mode: OpenMode) -> Result<Self, StorageError> {
        let error = |source| StorageError::Io { operation: "open", path: path.to_owned(), offset: 0, source };
        if let Some(disk) = disk_of(path) {
            let opened = after(disk.delay(), disk.open(path, mode)).await;
            let handle = Handle::Simulated(opened.map_err(error)?);
            return Ok(Self::new(path, handle, FALLBACK_ALIGN, false));
        }
        let mut direct = is_direct(mode);
        let mut fd = open_os(path, mode, direct);
        if direct && fd.as_ref().is_err_and(|errno| *errno == rustix::io::Errno::INVAL) {
            tracing::warn!("{path}: the file system has no direct I/O, reading and writing through its cache");
            direct = false;
            // The failed attempt may have created the file.
            fd = open_os(path, mode, false).or_else(|_| open_existing(path));
        }
        let mut fd = fd.map_err(|errno| error(errno.into()))?;
        let align = direct_io_alignment(&fd);
        if direct && align.is_none() {
            direct = false;
            fd = open_existing(path).map_err(|errno| error(errno.into()))?;
        }
        Ok(Self::new(path, Handle::Os(Arc::new(fd)), align.unwrap_or(FALLBACK_ALIGN), direct))
    }

    fn new(path: &Utf8Path, handle: Handle, align: u64, direct: bool) -> Self {
        Self { path: parking_lot::RwLock::new(path.to_owned()), handle, align, direct }
    }

    /// The file's path.
    pub fn path(&self) -> Utf8PathBuf {
        self.path.read().clone()
    }

    /// Offsets and lengths of all I/O must be multiples of this, in bytes.
    pub fn align(&self) -> u64 {
        self.align
    }

    /// Whether the file bypasses the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Starts writing `buf[..len]` at `offset`; the future completes when all of it is written.
    pub(crate) fn start_write(&self, offset: u64, buf: Arc<AlignedBuf>, len: usize) -> IoFuture<()> {
        debug_assert!(offset.is_multiple_of(self.align) && (len as u64).is_multiple_of(self.align));
        self.handle.write_at(offset, buf, 0..len)
    }

    /// Starts reading `len` bytes at `offset`; a shorter result means the end of the file.
    pub fn start_read(&self, offset: u64, len: usize) -> IoFuture<AlignedBuf> {
        self.start_read_into(offset, len, AlignedBuf::with_capacity(len))
    }

    /// As [`VirtualFile::start_read`], into a buffer that has room for it, behind what it has.
    pub fn start_read_into(&self, offset: u64, len: usize, buf: AlignedBuf) -> IoFuture<AlignedBuf> {
        debug_assert!([offset, len as u64, buf.len() as u64].iter().all(|it| it.is_multiple_of(self.align)));
        self.handle.read_at(offset, len, buf)
    }

    /// Asks the kernel to write back its cached pages of a range; `None` where this is not supported.
    pub(crate) fn start_writeback(&self, offset: u64, len: u64) -> Option<IoFuture<()>> {
        if self.direct { None } else { self.handle.start_writeback(offset, len) }
    }

    /// Writes `buf` at `offset` and waits for it.
    pub async fn write_at(&self, offset: u64, buf: AlignedBuf) -> Result<(), StorageError> {
        let len = buf.len();
        self.write_part_at(offset, &Arc::new(buf), len).await
    }

    /// The same of the first `len` bytes of a buffer that is used again.
    pub async fn write_part_at(&self, offset: u64, buf: &Arc<AlignedBuf>, len: usize) -> Result<(), StorageError> {
        let written = self.start_write(offset, Arc::clone(buf), len);
        written.await.map_err(|source| self.error("write", offset, source))
    }

    /// As [`VirtualFile::write_part_at`] followed by [`VirtualFile::sync`], for what this writes: in one operation,
    /// where there is one, so that whoever waits is woken once. For files whose length does not change by it.
    pub async fn write_durably_at(&self, offset: u64, buf: &Arc<AlignedBuf>) -> Result<(), StorageError> {
        debug_assert!(offset.is_multiple_of(self.align) && (buf.len() as u64).is_multiple_of(self.align));
        let is_synced = super::sync_enabled() && !fault::planted(fault::Bug::SkipFileSync);
        let durably = is_synced.then(|| self.handle.write_durably_at(offset, Arc::clone(buf), 0..buf.len())).flatten();
        let Some(written) = durably else {
            self.write_part_at(offset, buf, buf.len()).await?;
            return self.sync().await;
        };
        written.await.map_err(|source| match source.kind() {
            // Of the write: nobody takes anything of it to be there.
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => self.error("write", offset, source),
            _ => fatal::sync_error("write and sync", &self.path.read(), source),
        })
    }

    /// Makes contents and length durable. A failure that may have lost data aborts the process.
    pub async fn sync(&self) -> Result<(), StorageError> {
        if !super::sync_enabled() || fault::planted(fault::Bug::SkipFileSync) {
            return Ok(());
        }
        self.handle.sync().await.map_err(|source| fatal::sync_error("sync", &self.path.read(), source))
    }

    /// Truncates or extends the file to `len` bytes.
    pub async fn set_len(&self, len: u64) -> Result<(), StorageError> {
        self.handle.set_len(len).await.map_err(|source| self.error("truncate", len, source))
    }

    /// Length in bytes.
    pub fn size(&self) -> Result<u64, StorageError> {
        self.handle.len().map_err(|source| self.error("stat", 0, source))
    }

    /// The byte ranges that contain data; between them are holes.
    pub async fn data_ranges(&self) -> Result<Vec<Range<u64>>, StorageError> {
        self.handle.data_ranges().await.map_err(|source| self.error("map", 0, source))
    }

    /// Renames the file, which stays open.
    pub async fn rename(&self, to: &Utf8Path) -> Result<(), StorageError> {
        let from = self.path();
        super::fs::rename(&from, to).await?;
        *self.path.write() = to.to_owned();
        Ok(())
    }

    /// The error of a failed operation on this file.
    pub fn error(&self, operation: &'static str, offset: u64, source: std::io::Error) -> StorageError {
        StorageError::Io { operation, path: self.path(), offset, source }
    }
}

fn open_existing(path: &Utf8Path) -> rustix::io::Result<OwnedFd> {
    let open_for = |access| open(path.as_std_path(), access | OFlags::CLOEXEC, Mode::empty());
    open_for(OFlags::RDWR).or_else(|_| open_for(OFlags::RDONLY))
}

impl std::fmt::Debug for VirtualFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualFile").field("path", &self.path).field("direct", &self.direct).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use pageserver_api::models::virtual_file::IoEngineKind;

    use super::*;

    #[tokio::test]
    async fn what_is_written_durably_is_there_with_each_engine() {
        let dir = camino_tempfile::tempdir().unwrap();
        let best = crate::io_engine();
        for (number, engine) in [IoEngineKind::StdFs, best].into_iter().enumerate() {
            crate::set_io_engine(engine).unwrap();
            let path = dir.path().join(number.to_string());
            let file = VirtualFile::open(&path, OpenMode::CreateNew).await.unwrap();
            for (byte, offset) in [(1, 0), (2, 4096)] {
                let mut buf = AlignedBuf::with_capacity(8192);
                buf.extend_from_slice(&[byte; 8192]);
                file.write_durably_at(offset, &Arc::new(buf)).await.unwrap();
            }
            assert!(std::fs::read(&path).unwrap() == [[1; 4096], [2; 4096], [2; 4096]].concat());
            // Read behind what a buffer has, up to the end of the file.
            let mut buf = AlignedBuf::with_capacity(16384);
            buf.extend_from_slice(&[3; 4096]);
            let read = file.start_read_into(4096, 4096, buf).await.unwrap();
            let read = file.start_read_into(8192, 8192, read).await.unwrap();
            assert!(*read == *[[3; 4096], [2; 4096], [2; 4096]].concat());
        }
    }
}
