//! Marks: who has written what the journal has of a timeline of another server.

use camino::{Utf8Path, Utf8PathBuf};
use utils::id::TimelineId;

use errors::{ErrorKind, StorageError};
use virtual_file::fs;

/// What the name of a mark begins with, in the directory of its tenant.
const PREFIX: &str = "journaled-";

fn path(dir: &Utf8Path, timeline: TimelineId) -> Utf8PathBuf {
    dir.join(format!("{PREFIX}{timeline}"))
}

/// The mark of a timeline, if it has one.
pub(super) async fn read(dir: &Utf8Path, timeline: TimelineId) -> Result<Option<String>, StorageError> {
    match virtual_file::read_file(&path(dir, timeline)).await {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == ErrorKind::Gone => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the mark of a timeline, durably. What the journal has of another one must be void by then.
pub(super) async fn write(dir: &Utf8Path, timeline: TimelineId, mark: &str) -> Result<(), StorageError> {
    virtual_file::write_file_durably(&path(dir, timeline), mark.as_bytes()).await
}

/// Removes all marks of a tenant. What the journal has of it must be void by then.
pub(super) async fn remove_all(dir: &Utf8Path) -> Result<(), StorageError> {
    for name in fs::list_dir_if_any(dir).await? {
        if name.starts_with(PREFIX) {
            fs::unlink(&dir.join(name)).await?;
        }
    }
    Ok(())
}
