//! Removes the remains of deleted timelines, on disk and in the bucket.

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use tokio::sync::Semaphore;
use utils::id::TimelineId;

use crate::tenant::remote::{IndexPart, TenantRemote, remove_timeline};
use crate::tenant::timeline::{MANIFEST_NAME, has_manifest};
use errors::{ErrorKind, StorageError};
use virtual_file::fs;

/// Pauses after failed attempts at removal.
const REMOVAL_PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30), Duration::from_secs(60)];

/// Continues the deletion of a timeline.
pub(super) async fn remove_deleted(
    turns: Arc<Semaphore>,
    remote: &Arc<TenantRemote>,
    id: TimelineId,
    dir: &Utf8PathBuf,
    found: Option<IndexPart>,
) -> Result<(), StorageError> {
    tracing::info!(tenant = %remote.tenant_shard_id(), timeline = %id, "going on with its deletion");
    remove_local(dir).await?;
    if let Some(IndexPart { manifest, modified, .. }) = found {
        // In the background: marks stay for a day, and the start of a tenant with many branches must not wait for
        // them.
        let removal = remove_left(turns, Arc::clone(remote), id, manifest.generation, modified);
        drop(env::spawn::task("removal of a timeline", removal));
    }
    Ok(())
}

/// Removes the remains of a deleted timeline from the bucket, limited by `turns`; retries if the bucket does not
/// answer.
async fn remove_left(turns: Arc<Semaphore>, remote: Arc<TenantRemote>, id: TimelineId, mark: u32, marked: i64) {
    for pause in REMOVAL_PAUSES {
        let Ok(turn) = turns.acquire().await else { return };
        match remove_timeline(&remote, id, mark, marked).await {
            Ok(()) => return,
            Err(error) if error.kind() != ErrorKind::Retry => {
                return tracing::warn!(timeline = %id, "objects of it are left: {error}");
            }
            Err(error) => tracing::info!(timeline = %id, "objects of it are left, will try again: {error}"),
        }
        drop(turn);
        env::clock::sleep(pause).await;
    }
    tracing::warn!(timeline = %id, "objects of it are left, a later start removes them");
}

/// Removes the directory of a closed timeline.
pub(super) async fn remove_local(dir: &Utf8PathBuf) -> Result<(), StorageError> {
    if has_manifest(dir).await? {
        // The timeline is gone from here on, even if the process ends before its files are removed.
        fs::unlink(&dir.join(MANIFEST_NAME)).await?;
        fs::fsync_dir(dir).await?;
    }
    fs::remove_tree(dir).await
}
