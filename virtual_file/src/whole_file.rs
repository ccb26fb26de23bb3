//! Reads and replaces small files as a whole.

use std::os::unix::fs::PermissionsExt;

use camino::{Utf8Path, Utf8PathBuf};

use super::buffer::AlignedBuf;
use super::file::VirtualFile;
use super::fs::{TEMP_SUFFIX, error, fsync_dir, run, unlink};
use super::open_mode::OpenMode;
use errors::StorageError;

/// Reads a small file.
pub async fn read_file(path: &Utf8Path) -> Result<Vec<u8>, StorageError> {
    let file = VirtualFile::open(path, OpenMode::Read).await?;
    let len = file.size()?;
    let span = len.next_multiple_of(file.align()).max(file.align());
    let buf = file.start_read(0, span as usize).await.map_err(error("read", path))?;
    Ok(buf.to_vec())
}

/// Replaces a small file such that a crash leaves either the old or the new contents: writes a temporary file, syncs
/// it, renames it, and syncs the directory.
pub async fn write_file_durably(path: &Utf8Path, contents: &[u8]) -> Result<(), StorageError> {
    replace_durably(path, contents, false).await
}

/// As [`write_file_durably`], for a file that only its owner may read.
pub async fn write_secret_durably(path: &Utf8Path, contents: &[u8]) -> Result<(), StorageError> {
    replace_durably(path, contents, true).await
}

async fn replace_durably(path: &Utf8Path, contents: &[u8], secret: bool) -> Result<(), StorageError> {
    let temp = Utf8PathBuf::from(format!("{path}{TEMP_SUFFIX}"));
    unlink(&temp).await?;
    let file = VirtualFile::open(&temp, OpenMode::CreateNew).await?;
    if secret {
        // Before the file has any contents.
        let owner_only = |path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o600));
        run(&temp, |_| Ok(()), owner_only).await.map_err(error("set permissions of", &temp))?;
    }
    let mut buf = AlignedBuf::with_capacity(contents.len().next_multiple_of(file.align() as usize));
    buf.extend_from_slice(contents);
    buf.extend_with_zeros(buf.len().next_multiple_of(file.align() as usize) - buf.len());
    if !buf.is_empty() {
        file.write_at(0, buf).await?;
    }
    file.set_len(contents.len() as u64).await?;
    if !fault::planted(fault::Bug::PublishUnsyncedManifest) {
        file.sync().await?;
    }
    file.rename(path).await?;
    fsync_dir(path.parent().unwrap_or(Utf8Path::new("."))).await
}
