//! What the bucket has of a tenant of which this server is a standby.

use std::collections::BTreeMap;

use futures_util::StreamExt;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::TenantManager;
use crate::tenant::remote::{Own, Said, TenantRemote, lost_index_part, newest, read_index_part, said_of};
use crate::tenant::timeline::{Manifest, Origin, RecordLsn, Told};
use errors::{ErrorKind, StorageError};
use remote_storage::{RemotePath, RequestClass};

/// Maximum number of timelines looked at concurrently.
const PARALLEL: usize = 16;

/// A timeline that another server owns, as the bucket has it: every later owner has as much at least.
#[derive(Clone, Debug)]
pub struct TimelineElsewhere {
    /// Externally supplied metadata: where its WAL comes from.
    pub told: Option<Told>,
    /// Its immutable properties.
    pub origin: Origin,
    /// The last record that the bucket has.
    pub end: RecordLsn,
    /// It takes in nothing.
    pub is_archived: bool,
    /// The generation that wrote it.
    generation: u32,
}

/// The timelines of a tenant that another server owns; `None` for one that could not be read.
pub type Elsewhere = BTreeMap<TimelineId, Option<TimelineElsewhere>>;

impl TenantManager {
    /// Looks what the bucket has of a tenant of which this server is a standby; `before` is what it had the last time.
    /// `None` if that cannot be told at this moment: the owner is not known, or changes.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn look_elsewhere(
        &self,
        id: TenantShardId,
        before: &Elsewhere,
    ) -> Result<Option<Elsewhere>, StorageError> {
        let Some(storage) = self.inner.conf.remote_storage.clone() else { return Ok(None) };
        let known = self.inner.standbys.read().get(&id).and_then(|standby| {
            let (_, generation) = standby.owner.as_ref()?;
            Some((*generation, standby.void_through))
        });
        let Some((generation, void_through)) = known else { return Ok(None) };
        let remote = &TenantRemote::onlooker(storage.clone(), id, generation, void_through)?;
        let names = storage.list_dirs(RequestClass::Control, &RemotePath::timelines(&id)).await?;
        let names: Vec<TimelineId> = names.iter().filter_map(|name| name.parse().ok()).collect();
        // A list may lag.
        let known = before.keys().copied().filter(|known| !names.contains(known));
        let all: Vec<_> = names.iter().copied().chain(known).collect();
        let looking = all.into_iter().map(|timeline| async move {
            let known = before.get(&timeline).and_then(Option::as_ref).filter(|known| known.generation == generation);
            (timeline, look(remote, timeline, known.map(|known| known.generation)).await)
        });
        let mut looking = futures_util::stream::iter(looking).buffer_unordered(PARALLEL);
        let (mut found, mut unread) = (Elsewhere::new(), Vec::new());
        while let Some((timeline, looked)) = looking.next().await {
            match looked {
                Ok(None) => {}
                Ok(Some(manifest)) if manifest.deleted => {}
                Ok(Some(manifest)) => drop(found.insert(timeline, Some(TimelineElsewhere::of(manifest)))),
                Err(error) if error.kind() == ErrorKind::Retry => return Err(error),
                Err(error) => {
                    unread.push((timeline, error));
                    found.insert(timeline, None);
                }
            }
        }
        // Whoever takes a later generation reads what was read here, or more, if there was none until now.
        let now = newest(&storage, id, generation).await?;
        if now.is_none_or(|now| now.generation != generation) {
            // What was not found may have gone to the new owner's generation meanwhile.
            return Ok(None);
        }
        for (timeline, error) in unread {
            tracing::warn!(tenant = %id, %timeline, "not followed as a standby: {error}");
        }
        Ok(Some(found))
    }
}

async fn look(
    remote: &TenantRemote,
    timeline: TimelineId,
    generation: Option<u32>,
) -> Result<Option<Manifest>, StorageError> {
    if let Some(generation) = generation
        && let Some(manifest) = read_index_part(remote, timeline, generation).await?
    {
        return Ok(Some(manifest));
    }
    match said_of(remote, timeline, Own::Ignored).await? {
        Said::Whole(found) => Ok(Some(found.manifest)),
        Said::Nothing { spare } if spare.is_there() => Err(lost_index_part(remote, timeline)),
        Said::Nothing { .. } => Ok(None),
        Said::Damaged { error, .. } => Err(error),
    }
}

impl TimelineElsewhere {
    fn of(manifest: Manifest) -> Self {
        let Manifest { wal_source: told, origin, disk_consistent_lsn, prev_record_lsn, generation, .. } = manifest;
        let end = RecordLsn { last: disk_consistent_lsn, prev: prev_record_lsn };
        Self { told, origin, end, is_archived: manifest.kept.archived_at.is_some(), generation }
    }
}
