//! Deletion: first a durable mark, then everything else. Whoever finds the mark completes the deletion.

use pageserver_api::shard::TenantShardId;
use postgres_formats::version::PgVersion;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::{TenantRemote, generation};
use crate::tenant::timeline::manifest::{Kept, Manifest, Origin};
use errors::StorageError;
use remote_storage::{RemotePath, RequestClass};

/// Listings may lag: the index parts of this many generations are removed whether listed or not.
const MAX_BEHIND: u32 = 64;
/// How long a mark stays, in seconds: a server that was fenced long ago may still write an index part of its own,
/// which must not bring the timeline back.
const MARK_AGE: i64 = 24 * 3600;

/// Writes the mark of deletion for the timeline of `manifest`. Its uploader must have ended.
///
/// # Errors
/// [`StorageError::Fenced`] if another server owns it by now: then nothing is deleted.
pub async fn bury_timeline(remote: &TenantRemote, manifest: Manifest) -> Result<(), StorageError> {
    remote.check().await?;
    let path = remote.index_part_path(manifest.timeline_id, remote.generation);
    let mark = Manifest {
        generation: remote.generation,
        in_bucket: true,
        deleted: true,
        wal_source: None,
        retained: Vec::new(),
        layers: Vec::new(),
        kept: Kept::default(),
        detached: false,
        ..manifest
    };
    remote.storage.put(RequestClass::Control, &path, mark.encode()?.into()).await?;
    remote.check().await
}

/// Writes the mark of deletion for a timeline that is being imported, before any of its layers: if the import does
/// not finish, its objects in the bucket are removed like those of a deleted timeline. The first index part replaces
/// the mark.
///
/// # Errors
/// [`StorageError::Fenced`] if another server owns it by now.
pub async fn mark_import(remote: &TenantRemote, timeline_id: TimelineId) -> Result<(), StorageError> {
    // The origin in a mark is ignored, and is not known yet.
    let origin = Origin {
        pg_version: PgVersion::V15,
        system_identifier: 0,
        wal_segment_size: 16 << 20,
        data_checksums: false,
        wal_log_hints: false,
        import_lsn: Lsn::INVALID,
        consistent_lsn: Lsn::INVALID,
        ancestor: None,
    };
    let manifest = Manifest {
        tenant_shard_id: remote.tenant,
        timeline_id,
        generation: remote.generation,
        in_bucket: true,
        deleted: true,
        wal_source: None,
        origin,
        wal_log_hints_changes: Vec::new(),
        disk_consistent_lsn: Lsn::INVALID,
        prev_record_lsn: Lsn::INVALID,
        edition: 0,
        gc_cutoff: Lsn::INVALID,
        retained: Vec::new(),
        layers: Vec::new(),
        kept: Kept::default(),
        detached: false,
    };
    bury_timeline(remote, manifest).await
}

/// Removes all objects of a timeline that has a mark, which was written at `marked` (seconds since 1970). The mark
/// itself is removed last, and only once it is old enough.
pub async fn remove_timeline(
    remote: &TenantRemote,
    timeline: TimelineId,
    mark: u32,
    marked: i64,
) -> Result<(), StorageError> {
    let prefix = RemotePath::timeline(&remote.tenant, &timeline);
    let listed = remote.storage.list(RequestClass::Delete, &prefix).await?;
    let mark_path = remote.index_part_path(timeline, mark);
    let mut doomed: Vec<RemotePath> =
        listed.into_iter().map(|object| object.path).filter(|path| is_of(path, mark) && *path != mark_path).collect();
    let unlisted = mark.saturating_sub(MAX_BEHIND).max(1)..mark;
    doomed.extend(unlisted.map(|generation| remote.index_part_path(timeline, generation)));
    doomed.sort();
    doomed.dedup();
    remote.check().await?;
    remote.storage.delete(&doomed).await?;
    let now = env::clock::system_now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    if marked > 0 && i64::try_from(now).is_ok_and(|now| now - marked > MARK_AGE) {
        remote.storage.delete(&[mark_path]).await?;
    }
    Ok(())
}

impl TenantRemote {
    /// Marks the tenant as deleted in its next generation. Nobody can attach it any more.
    ///
    /// # Errors
    /// [`StorageError::Fenced`] if another server owns it by now.
    pub(crate) async fn bury(&self) -> Result<(), StorageError> {
        let next = generation::after(self.generation)?;
        match generation::end(&self.storage, self.tenant, next, &self.server).await? {
            true => Ok(()),
            false => Err(self.fence(next)),
        }
    }
}

/// Removes all objects of a tenant that generation `ended` deleted, except its chain of generations. Returns how
/// many.
pub async fn remove_tenant(remote: &TenantRemote, tenant: TenantShardId, ended: u32) -> Result<usize, StorageError> {
    let listed = remote.storage.list(RequestClass::Delete, &RemotePath::tenant(&tenant)).await?;
    let chain = RemotePath::generations(&tenant);
    let doomed: Vec<RemotePath> = listed
        .into_iter()
        .map(|object| object.path)
        .filter(|path| !path.as_path().prefix_matches(chain.as_path()) && is_of(path, ended))
        .collect();
    remote.storage.delete(&doomed).await?;
    Ok(doomed.len())
}

/// Whether the object was written by generation `last` or an earlier one. A new tenant or timeline of the same name
/// has later ones.
fn is_of(path: &RemotePath, last: u32) -> bool {
    generation::trace(path.file_name()).is_none_or(|generation| generation <= last)
}
