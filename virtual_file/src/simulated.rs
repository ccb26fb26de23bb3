//! The seam below all file access: a test can serve paths below a prefix from a simulated disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::RwLock;

use super::open_mode::OpenMode;

/// A file of a simulated disk.
pub trait SimulatedFile: Send + Sync {
    /// Reads up to `into.len()` bytes at `offset`; 0 at the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes the contents durable.
    fn sync(&self) -> io::Result<()>;
    /// Truncates or extends the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// How long the next call takes. It has its effect at once: only its answer comes so late.
    fn delay(&self) -> Duration {
        Duration::ZERO
    }
    /// Whether the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A simulated disk; its files and directories vanish with it.
pub trait SimulatedDisk: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &Utf8Path, mode: OpenMode) -> io::Result<Arc<dyn SimulatedFile>>;
    /// Renames a file, replacing the target.
    fn rename(&self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()>;
    /// Removes a file.
    fn unlink(&self, path: &Utf8Path) -> io::Result<()>;
    /// Makes a directory's entries durable.
    fn fsync_dir(&self, path: &Utf8Path) -> io::Result<()>;
    /// Names of a directory's entries.
    fn list_dir(&self, path: &Utf8Path) -> io::Result<Vec<String>>;
    /// Creates a directory and its parents.
    fn create_dir_all(&self, path: &Utf8Path) -> io::Result<()>;
    /// How long the next call takes. It has its effect at once: only its answer comes so late.
    fn delay(&self) -> Duration {
        Duration::ZERO
    }
}

/// `result`, after `delay`.
pub(super) async fn after<T>(delay: Duration, result: T) -> T {
    if !delay.is_zero() {
        env::clock::sleep(delay).await;
    }
    result
}

static ANY: AtomicBool = AtomicBool::new(false);
static DISKS: RwLock<Vec<(Utf8PathBuf, Arc<dyn SimulatedDisk>)>> = RwLock::new(Vec::new());

/// Keeps a simulated disk mounted; dropping it unmounts the disk.
#[derive(Debug)]
pub struct Mounted {
    prefix: Utf8PathBuf,
}

/// Serves all paths below `prefix` from `disk` until the guard is dropped.
pub fn mount(prefix: Utf8PathBuf, disk: Arc<dyn SimulatedDisk>) -> Mounted {
    DISKS.write().push((prefix.clone(), disk));
    ANY.store(true, Ordering::Release);
    Mounted { prefix }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        DISKS.write().retain(|(prefix, _)| *prefix != self.prefix);
    }
}

pub(super) fn disk_of(path: &Utf8Path) -> Option<Arc<dyn SimulatedDisk>> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    DISKS.read().iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, disk)| Arc::clone(disk))
}
