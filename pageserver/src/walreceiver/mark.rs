//! Marks: who has written what the journal has of a timeline. What another server may have gone on from counts only if
//! it is of the writer that this one has: WAL of one writer is the same everywhere.

use camino::{Utf8Path, Utf8PathBuf};
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use engine::config::PageServerConf;
use errors::{ErrorKind, StorageError};
use virtual_file::fs;

/// What the name of a mark begins with, in the directory of its tenant.
const PREFIX: &str = "journaled-";

/// There while it is not known whether what the journal has of a tenant is of the writers that it has.
const IN_DOUBT: &str = "journal-in-doubt";

/// The mark of a timeline.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    path: Utf8PathBuf,
}

impl Mark {
    pub(super) fn of(conf: &PageServerConf, (tenant, timeline): (TenantShardId, TimelineId)) -> Self {
        Self { path: conf.tenant_path(&tenant).join(format!("{PREFIX}{timeline}")) }
    }

    /// What it says, if there is one.
    pub(super) async fn read(&self) -> Result<Option<String>, StorageError> {
        match virtual_file::read_file(&self.path).await {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == ErrorKind::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes it say so, durably. By then the journal has nothing that is not of that writer, or of what was before it.
    pub(super) async fn write(&self, mark: &str) -> Result<(), StorageError> {
        virtual_file::write_file_durably(&self.path, mark.as_bytes()).await
    }

    /// Removes it, durably: what there is counts for nobody else than an owner that goes on.
    pub(super) async fn remove(&self) -> Result<(), StorageError> {
        fs::unlink(&self.path).await?;
        match self.path.parent() {
            Some(dir) => fs::fsync_dir(dir).await,
            None => Ok(()),
        }
    }
}

/// Removes all marks of a tenant, whose directory this is. What the journal has of it must be void by then.
pub(super) async fn remove_all(dir: &Utf8Path) -> Result<(), StorageError> {
    for name in fs::list_dir_if_any(dir).await? {
        if name.starts_with(PREFIX) {
            fs::unlink(&dir.join(name)).await?;
        }
    }
    Ok(())
}

/// Notes that what the journal has of a tenant is in doubt, durably.
pub(super) async fn put_in_doubt(dir: &Utf8Path) -> Result<(), StorageError> {
    let said = "what the journal has of this tenant may be of a writer that another server has replaced";
    virtual_file::write_file_durably(&dir.join(IN_DOUBT), said.as_bytes()).await
}

/// Whether it is.
pub(super) async fn is_in_doubt(dir: &Utf8Path) -> Result<bool, StorageError> {
    Ok(fs::list_dir_if_any(dir).await?.iter().any(|name| name == IN_DOUBT))
}

/// It is not any more.
pub(super) async fn settle(dir: &Utf8Path) -> Result<(), StorageError> {
    if is_in_doubt(dir).await? {
        fs::unlink(&dir.join(IN_DOUBT)).await?;
        fs::fsync_dir(dir).await?;
    }
    Ok(())
}
