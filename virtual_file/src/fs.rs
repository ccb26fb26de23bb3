//! Operations on names: directories, renames, disk space.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};

use super::open_mode::OpenMode;
use super::simulated::{SimulatedDisk, after, disk_of};
use super::{fatal, sync_enabled};
use errors::{ErrorKind, StorageError};

/// Suffix of incomplete files; recovery removes them.
pub const TEMP_SUFFIX: &str = ".___temp";

/// Stored data is for its owner only.
const DIR_MODE: u32 = 0o700;

pub(super) fn error(operation: &'static str, path: &Utf8Path) -> impl Fn(io::Error) -> StorageError {
    move |source| StorageError::Io { operation, path: path.to_owned(), offset: 0, source }
}

pub(super) async fn run<T: Send + 'static>(
    path: &Utf8Path,
    on_simulated: impl FnOnce(Arc<dyn SimulatedDisk>) -> io::Result<T>,
    real: impl FnOnce(Utf8PathBuf) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match disk_of(path) {
        Some(disk) => {
            let delay = disk.delay();
            after(delay, on_simulated(disk)).await
        }
        None => {
            let path = path.to_owned();
            env::spawn::blocking(move || real(path)).await.unwrap_or_else(|error| Err(io::Error::other(error)))
        }
    }
}

/// Renames a file, replacing the target. Durable only after [`fsync_dir`].
pub async fn rename(from: &Utf8Path, to: &Utf8Path) -> Result<(), StorageError> {
    let target = to.to_owned();
    run(from, |disk| disk.rename(from, to), move |from| std::fs::rename(from, target))
        .await
        .map_err(error("rename", from))
}

/// Removes a file. A missing file is not an error.
pub async fn unlink(path: &Utf8Path) -> Result<(), StorageError> {
    match run(path, |disk| disk.unlink(path), std::fs::remove_file).await {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(error("remove", path)(source)),
        _ => Ok(()),
    }
}

/// Removes a file where nothing can be awaited, such as in `Drop`, and without holding up the thread: a disk that is
/// told what is freed takes tens of milliseconds for a large file. It may still be there when this returns, and after a
/// crash; what goes wrong is logged.
pub fn unlink_aside(path: Utf8PathBuf) {
    let removed = |path: &Utf8Path, result: io::Result<()>| match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("could not remove {path}, the next start will: {error}")
        }
        _ => {}
    };
    if let Some(disk) = disk_of(&path) {
        return removed(&path, disk.unlink(&path));
    }
    env::spawn::blocking_or_now(move || removed(&path, std::fs::remove_file(&path)));
}

/// Bytes of disk space that a file occupies; 0 if it does not exist.
pub fn allocated_bytes(path: &Utf8Path) -> u64 {
    match disk_of(path) {
        Some(disk) => disk.open(path, OpenMode::Read).and_then(|file| file.len()).unwrap_or(0),
        None => std::fs::metadata(path).map_or(0, |stat| stat.blocks() * 512),
    }
}

/// Length of a file in bytes. For many files: nothing is opened.
pub fn file_len(path: &Utf8Path) -> Result<u64, StorageError> {
    let len = match disk_of(path) {
        Some(disk) => disk.open(path, OpenMode::Read).and_then(|file| file.len()),
        None => std::fs::metadata(path).map(|stat| stat.len()),
    };
    len.map_err(error("stat", path))
}

/// Makes a directory's entries durable.
pub async fn fsync_dir(dir: &Utf8Path) -> Result<(), StorageError> {
    if !sync_enabled() || fault::planted(fault::Bug::SkipDirSync) {
        return Ok(());
    }
    let synced = run(dir, |disk| disk.fsync_dir(dir), |dir| utils::durable::fsync_dir(dir.as_std_path())).await;
    synced.map_err(|source| fatal::sync_error("sync directory", dir, source))
}

/// Names of a directory's entries, sorted.
pub async fn list_dir(dir: &Utf8Path) -> Result<Vec<String>, StorageError> {
    let mut names = run(dir, |disk| disk.list_dir(dir), list_real).await.map_err(error("list directory", dir))?;
    names.sort();
    Ok(names)
}

fn list_real(dir: Utf8PathBuf) -> io::Result<Vec<String>> {
    dir.read_dir_utf8()?.map(|entry| Ok(entry?.file_name().to_owned())).collect()
}

/// As [`list_dir`], but empty if the directory does not exist.
pub async fn list_dir_if_any(dir: &Utf8Path) -> Result<Vec<String>, StorageError> {
    match list_dir(dir).await {
        Err(error) if error.kind() == ErrorKind::Gone => Ok(Vec::new()),
        other => other,
    }
}

/// Creates a directory and its parents; those below `root` are durable.
pub async fn create_dir_durably(dir: &Utf8Path, root: &Utf8Path) -> Result<(), StorageError> {
    create_dir_all(dir).await?;
    for parent in dir.ancestors().skip(1).take_while(|parent| parent.starts_with(root)) {
        fsync_dir(parent).await?;
    }
    Ok(())
}

/// Creates a directory and its parents, accessible to their owner only. Durable only after [`fsync_dir`] of the
/// parents.
pub async fn create_dir_all(dir: &Utf8Path) -> Result<(), StorageError> {
    let real = |dir| DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir);
    run(dir, |disk| disk.create_dir_all(dir), real).await.map_err(error("create directory", dir))
}

/// Makes one of our directories accessible to its owner only: earlier versions created them open to everybody. A
/// missing directory is not an error.
pub async fn close_dir(dir: &Utf8Path) -> Result<(), StorageError> {
    let real = |dir: Utf8PathBuf| {
        let found = std::fs::symlink_metadata(&dir)?;
        match found.is_dir() && found.mode() & 0o077 != 0 {
            true => std::fs::set_permissions(&dir, PermissionsExt::from_mode(DIR_MODE)),
            false => Ok(()),
        }
    };
    match run(dir, |_| Ok(()), real).await {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(error("set permissions of", dir)(source)),
        _ => Ok(()),
    }
}

/// Makes a directory accessible to its owner only.
pub async fn make_private(dir: &Utf8Path) -> Result<(), StorageError> {
    let owner_only = |dir| std::fs::set_permissions(dir, PermissionsExt::from_mode(0o700));
    run(dir, |_| Ok(()), owner_only).await.map_err(error("set permissions of", dir))
}

/// Removes a directory and its contents. A missing directory is not an error. On a simulated disk it must contain
/// only files, and remains as an empty directory.
pub async fn remove_tree(dir: &Utf8Path) -> Result<(), StorageError> {
    let simulated =
        |disk: Arc<dyn SimulatedDisk>| disk.list_dir(dir)?.iter().try_for_each(|name| disk.unlink(&dir.join(name)));
    match run(dir, simulated, std::fs::remove_dir_all).await {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(error("remove directory", dir)(source)),
        _ => Ok(()),
    }
}

/// The space on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Its size in bytes.
    pub total: u64,
    /// Bytes that this process may still write.
    pub free: u64,
}

/// The space on the file system of `dir`; `None` for a simulated disk.
pub async fn disk_space(dir: &Utf8Path) -> Result<Option<DiskSpace>, StorageError> {
    let real = |dir: Utf8PathBuf| {
        let stat = rustix::fs::statvfs(dir.as_std_path())?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Some(DiskSpace { total: bytes(stat.f_blocks), free: bytes(stat.f_bavail) }))
    };
    run(dir, |_| Ok(None), real).await.map_err(error("ask for room on", dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &Utf8Path) -> Utf8PathBuf {
        let path = dir.join("file");
        std::fs::write(&path, b"some bytes").unwrap();
        path
    }

    #[test]
    fn without_a_runtime_a_file_is_removed_at_once() {
        let dir = camino_tempfile::tempdir().unwrap();
        let path = file(dir.path());
        unlink_aside(path.clone());
        assert!(!path.exists());
        // Nothing is wrong if it has gone already.
        unlink_aside(path);
    }

    #[test]
    fn with_a_runtime_another_thread_removes_a_file() {
        let dir = camino_tempfile::tempdir().unwrap();
        let path = file(dir.path());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            unlink_aside(path.clone());
            while path.exists() {
                tokio::task::yield_now().await;
            }
        });
    }
}
