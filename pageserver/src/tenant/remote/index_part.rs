//! The newest index part of a timeline: what a list names is a hint, and what it may not name yet is asked for.

use camino::Utf8Path;
use futures_util::{StreamExt, TryStreamExt};
use utils::id::TimelineId;

use super::{TenantRemote, generation};
use crate::errors::{ErrorKind, StorageError};
use crate::remote_storage::{INDEX_PART_PREFIX, RemotePath, RequestClass};
use crate::tenant::timeline::manifest::Manifest;

/// A list is not behind by more generations than this.
const MAX_BEHIND: u32 = 64;
/// Requests at once.
const PARALLEL: usize = 16;
/// An index part of a million layers is smaller, in bytes.
const MAX_LEN: u64 = 256 << 20;

/// An index part that was found.
#[derive(Clone, Debug)]
pub(crate) struct IndexPart {
    /// What it says.
    pub(crate) manifest: Manifest,
    /// Generations of older ones that a list names.
    pub(crate) older: Vec<u32>,
    /// When it was written, in seconds since 1970; 0 if not known.
    pub(crate) modified: i64,
}

/// The newest index part of generations below ours.
///
/// # Errors
/// [`StorageError::Corrupt`] naming the object if the newest one is damaged: an older one would hide what it said.
pub(crate) async fn newest_index_part(
    remote: &TenantRemote,
    timeline: TimelineId,
) -> Result<Option<IndexPart>, StorageError> {
    let prefix = RemotePath::timeline(&remote.tenant, &timeline);
    // Names of layers come before those of index parts, and there may be many of them.
    let layers_end = RemotePath::layer(&remote.tenant, &timeline, INDEX_PART_PREFIX);
    let listed = remote.storage.list_after(RequestClass::Control, &prefix, &layers_end).await?;
    let mut listed: Vec<(u32, i64)> = listed
        .iter()
        .filter_map(|object| {
            let digits = object.path.file_name().strip_prefix(INDEX_PART_PREFIX)?;
            Some((generation::parse(digits)?, object.modified))
        })
        .filter(|(generation, _)| *generation > remote.void_through && *generation < remote.generation)
        .collect();
    listed.sort_unstable_by(|one, other| other.cmp(one));
    let unlisted = unlisted(listed.first().map(|(generation, _)| *generation), remote.void_through, remote.generation);
    let found: Vec<Manifest> = futures_util::stream::iter(unlisted)
        .map(|generation| read(remote, timeline, generation))
        .buffered(PARALLEL)
        .try_filter_map(async |found| Ok(found))
        .try_collect()
        .await?;
    let mut older: Vec<u32> = listed.iter().map(|(generation, _)| *generation).collect();
    if let Some(manifest) = found.into_iter().max_by_key(|manifest| manifest.generation) {
        return Ok(Some(IndexPart { manifest, older, modified: 0 }));
    }
    for (at, (generation, modified)) in listed.into_iter().enumerate() {
        // One that is listed may be gone: then a newer one, which an owner before us wrote, made it needless, or an
        // older one is what there is.
        if let Some(manifest) = read(remote, timeline, generation).await? {
            return Ok(Some(IndexPart { manifest, older: older.split_off(at + 1), modified }));
        }
    }
    Ok(None)
}

/// Generations of which there may be an index part although a list names none newer than `newest`.
fn unlisted(newest: Option<u32>, void_through: u32, own: u32) -> std::ops::Range<u32> {
    let first = newest.unwrap_or(void_through).saturating_add(1);
    first.max(own.saturating_sub(MAX_BEHIND))..own
}

async fn read(remote: &TenantRemote, timeline: TimelineId, generation: u32) -> Result<Option<Manifest>, StorageError> {
    let path = remote.index_part_path(timeline, generation);
    let bytes = match remote.storage.get(RequestClass::Control, &path, MAX_LEN).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::Gone => return Ok(None),
        Err(error) => return Err(error),
    };
    let name = remote.storage.name_of(&path);
    let manifest = Manifest::decode(Utf8Path::new(&name), &bytes)?;
    let found = (manifest.tenant_shard_id, manifest.timeline_id, manifest.generation);
    if found == (remote.tenant, timeline, generation) {
        return Ok(Some(manifest));
    }
    let reason = format!("it is that of tenant {}, timeline {}, generation {}", found.0, found.1, found.2);
    Err(StorageError::Corrupt { path: name.into(), offset: 0, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_list_may_not_name_yet_is_asked_for() {
        assert_eq!(unlisted(None, 0, 1), 1..1);
        assert_eq!(unlisted(None, 0, 4), 1..4);
        assert_eq!(unlisted(Some(3), 0, 4), 4..4);
        assert_eq!(unlisted(Some(1), 0, 4), 2..4);
        assert_eq!(unlisted(None, 2, 4), 3..4);
        assert_eq!(unlisted(Some(3), 0, 1000), 936..1000);
    }
}
