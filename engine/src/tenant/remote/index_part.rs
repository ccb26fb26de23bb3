//! Finds the newest index part of a timeline: listings are hints, and objects that they may lack are requested
//! directly.

use camino::Utf8Path;
use futures_util::{StreamExt, TryStreamExt};
use utils::id::TimelineId;

use super::{LayerList, Spare, TenantRemote, generation};
use crate::tenant::timeline::manifest::Manifest;
use errors::{ErrorKind, StorageError};
use remote_storage::{INDEX_PART_PREFIX, Listed, ORIGIN_PREFIX, RemotePath, RequestClass};

/// Maximum number of generations by which a listing may lag.
const MAX_BEHIND: u32 = 64;
/// Maximum number of concurrent requests.
const PARALLEL: usize = 16;
/// Upper bound of an index part's size in bytes; one with a million layers is smaller.
pub(crate) const MAX_LEN: u64 = 256 << 20;

/// An index part found in the bucket.
#[derive(Clone, Debug)]
pub(crate) struct IndexPart {
    /// Its contents.
    pub(crate) manifest: Manifest,
    /// Listed generations of older ones.
    pub(crate) older: Vec<u32>,
    /// When it was written, in seconds since 1970; 0 if not known.
    pub(crate) modified: i64,
    /// What it could be rebuilt from.
    pub(crate) spare: Spare,
}

/// Makes sure that the timeline does not exist in the bucket yet, without relying on listings.
pub async fn check_new(remote: &TenantRemote, timeline: TimelineId) -> Result<(), StorageError> {
    match newest_index_part(remote, timeline).await? {
        Some(found) if !found.manifest.deleted => {
            let bucket = remote.storage().url();
            Err(StorageError::Invalid(format!("timeline {timeline} exists already in {bucket}")))
        }
        _ => Ok(()),
    }
}

/// What the bucket says about a timeline.
#[allow(clippy::large_enum_variant, reason = "one at a time, and moved once")]
#[derive(Debug)]
pub(crate) enum Said {
    /// There is no index part.
    Nothing {
        /// What one could be rebuilt from.
        spare: Spare,
    },
    /// An intact index part.
    Whole(IndexPart),
    /// An unreadable index part. Falling back to an older one would lose what it contained.
    Damaged {
        /// The generation that wrote it.
        generation: u32,
        /// Why it cannot be read.
        error: StorageError,
        /// Listed generations of older ones.
        older: Vec<u32>,
        /// What it could be rebuilt from.
        spare: Spare,
    },
}

/// How to treat an index part of this server's own generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// There can be none, because the generation was just taken: if there is one, the chain of generations is
    /// damaged.
    Impossible,
    /// It does not count.
    Ignored,
    /// It counts.
    Counts,
}

/// Finds the newest index part of generations below this server's.
///
/// # Errors
/// [`StorageError::Corrupt`], naming the object, if the newest one is damaged or lost.
pub(crate) async fn newest_index_part(
    remote: &TenantRemote,
    timeline: TimelineId,
) -> Result<Option<IndexPart>, StorageError> {
    match said_of(remote, timeline, Own::Ignored).await? {
        Said::Whole(found) => Ok(Some(found)),
        Said::Nothing { spare } if spare.is_there() => Err(lost(remote, timeline)),
        Said::Nothing { .. } => Ok(None),
        Said::Damaged { error, .. } => Err(error),
    }
}

/// The error that the index part of a published timeline is missing.
pub(crate) fn lost(remote: &TenantRemote, timeline: TimelineId) -> StorageError {
    let path = RemotePath::timeline(&remote.tenant, &timeline);
    let reason =
        "its index part is gone, although it had one. `pagectl scrub --running --repair-bucket` writes it anew";
    StorageError::Corrupt { path: remote.storage.name_of(&path).into(), offset: 0, reason: reason.to_owned() }
}

/// What the bucket says about a timeline, according to its newest index part.
///
/// # Errors
/// [`StorageError::DamagedChain`] if there is one that cannot exist.
pub(crate) async fn said_of(remote: &TenantRemote, timeline: TimelineId, own: Own) -> Result<Said, StorageError> {
    let prefix = RemotePath::timeline(&remote.tenant, &timeline);
    // The names of layers sort before those of index parts, and there may be many of them.
    let layers_end = RemotePath::layer(&remote.tenant, &timeline, INDEX_PART_PREFIX);
    let listed = remote.storage.list_after(RequestClass::Control, &prefix, &layers_end).await?;
    let is_valid = |generation: u32| generation > remote.void_through;
    let spare = Spare {
        has_origin: numbered(&listed, ORIGIN_PREFIX).any(|(generation, _)| is_valid(generation)),
        lists: lists(&listed).filter(|list| is_valid(list.generation)).collect(),
    };
    let mut listed: Vec<(u32, i64)> =
        numbered(&listed, INDEX_PART_PREFIX).filter(|(generation, _)| is_valid(*generation)).collect();
    listed.sort_unstable_by(|one, other| other.cmp(one));
    if own == Own::Impossible
        && let Some((generation, _)) = listed.first().filter(|(generation, _)| *generation >= remote.generation)
    {
        return Err(impossible(remote, timeline, *generation).await);
    }
    let end = remote.generation.saturating_add(u32::from(own == Own::Counts));
    listed.retain(|(generation, _)| *generation < end);
    let mut unlisted =
        unlisted(listed.first().map(|(generation, _)| *generation), remote.void_through, remote.generation);
    if fault::planted(fault::Bug::TrustListing) {
        unlisted.start = unlisted.end;
    }
    let found: Vec<Manifest> = futures_util::stream::iter(unlisted)
        .map(|generation| read(remote, timeline, generation))
        .buffered(PARALLEL)
        .try_filter_map(async |found| Ok(found))
        .try_collect()
        .await?;
    let mut older: Vec<u32> = listed.iter().map(|(generation, _)| *generation).collect();
    if let Some(manifest) = found.into_iter().max_by_key(|manifest| manifest.generation) {
        return Ok(Said::Whole(IndexPart { manifest, older, modified: 0, spare }));
    }
    for (at, (generation, modified)) in listed.into_iter().enumerate() {
        // A listed index part may be gone: either an owner before us wrote a newer one that superseded it, or an
        // older one is the newest that exists.
        match read(remote, timeline, generation).await {
            Ok(None) => {}
            Ok(Some(manifest)) => {
                return Ok(Said::Whole(IndexPart { manifest, older: older.split_off(at + 1), modified, spare }));
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                return Ok(Said::Damaged { generation, error, older: older.split_off(at + 1), spare });
            }
            Err(error) => return Err(error),
        }
    }
    if spare.is_there() || !older.is_empty() {
        // A later owner may have written an index part, which we must not read, and removed the listed ones.
        remote.check().await?;
    }
    Ok(Said::Nothing { spare })
}

/// Generations in names that begin with `prefix`, with the times at which these objects were written.
fn numbered<'a>(listed: &'a [Listed], prefix: &'a str) -> impl Iterator<Item = (u32, i64)> + 'a {
    listed.iter().filter_map(move |object| {
        let digits = object.path.file_name().strip_prefix(prefix)?;
        Some((generation::parse(digits)?, object.modified))
    })
}

fn lists(listed: &[Listed]) -> impl Iterator<Item = LayerList> {
    listed.iter().filter_map(|object| LayerList::parse(object.path.file_name()))
}

/// The error for an index part under the generation that was just taken, or under a later one.
async fn impossible(remote: &TenantRemote, timeline: TimelineId, generation: u32) -> StorageError {
    match remote.check().await {
        Err(fenced_or_unknown) => fenced_or_unknown,
        Ok(()) => {
            let name = remote.storage.name_of(&remote.index_part_path(timeline, generation));
            let own = remote.generation;
            let reason = format!(
                "{name} was there before generation {own} was given out: that, or a later one, was removed from the \
                 chain, and whoever held it may still be at work"
            );
            StorageError::DamagedChain { tenant_shard_id: remote.tenant, reason }
        }
    }
}

/// Generations that may have an index part even though no listed one is newer than `newest`.
fn unlisted(newest: Option<u32>, void_through: u32, own: u32) -> std::ops::Range<u32> {
    let first = newest.unwrap_or(void_through).saturating_add(1);
    first.max(own.saturating_sub(MAX_BEHIND))..own
}

/// The index part that the owner with this generation has written last, if it has written one.
pub(crate) async fn read(
    remote: &TenantRemote,
    timeline: TimelineId,
    generation: u32,
) -> Result<Option<Manifest>, StorageError> {
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
