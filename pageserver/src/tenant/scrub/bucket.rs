//! What the bucket has of a tenant: generations, index parts, objects.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use camino::Utf8Path;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::inventory::{There, generation_of};
use super::report::{Finding, Kind, Place, Report};
use super::{Options, Subject};
use crate::errors::{ErrorKind, StorageError};
use crate::remote_storage::{INDEX_PART_PREFIX, RemotePath, RemoteStorage, RequestClass};
use crate::tenant::timeline::Manifest;
use crate::tenant::timeline::manifest::LayerEntry;

/// An index part of a million layers is smaller, in bytes.
const MAX_INDEX_PART: u64 = 256 << 20;
/// Contents of a generation are far smaller than this, in bytes.
const MAX_GENERATION: u64 = 4096;

/// Older generations matter to nobody any more.
const GENERATIONS_READ: u32 = 64;

/// A tenant's part of the bucket.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    pub(super) storage: RemoteStorage,
    tenant: TenantShardId,
    /// The newest generation when the scrub began; 0 if there is none.
    pub(super) generation: u32,
    /// The generation that this process holds, if it holds one.
    held: Option<u32>,
}

/// The objects of a timeline.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    pub(super) there: BTreeMap<String, There>,
    /// The newest index part, with its generation.
    pub(super) index: Option<(u32, Manifest)>,
    /// The generation of the newest one if it is damaged, and the number of that finding. What an older one says is
    /// not the truth any more: then there is none.
    pub(super) damaged_index: Option<(u32, usize)>,
}

/// The names of tenants, as they are in the bucket.
pub(super) async fn list_tenants(storage: &RemoteStorage) -> Result<Vec<String>, StorageError> {
    storage.list_dirs(RequestClass::Scrub, &RemotePath::tenants()).await
}

impl Bucket {
    pub(super) async fn look(
        storage: RemoteStorage,
        subject: &Subject,
        report: &mut Report,
    ) -> Result<Self, StorageError> {
        let mut bucket = Self { storage, tenant: subject.tenant, generation: 0, held: subject.generation };
        bucket.generation = bucket.newest_generation().await?;
        for generation in bucket.generation.saturating_sub(GENERATIONS_READ - 1).max(1)..=bucket.generation {
            bucket.check_generation(generation, report).await?;
        }
        Ok(bucket)
    }

    /// The newest generation: a list is a hint, and the chain has no gap.
    async fn newest_generation(&self) -> Result<u32, StorageError> {
        let listed = self.storage.list(RequestClass::Scrub, &RemotePath::generations(&self.tenant)).await?;
        let mut newest = listed.iter().filter_map(|it| generation_of(it.path.file_name())).max().unwrap_or(0);
        while let Some(next) = newest.checked_add(1) {
            let path = RemotePath::generation(&self.tenant, next);
            if self.storage.head(RequestClass::Scrub, &path).await?.is_none() {
                break;
            }
            newest = next;
        }
        Ok(newest)
    }

    async fn check_generation(&self, generation: u32, report: &mut Report) -> Result<(), StorageError> {
        let path = RemotePath::generation(&self.tenant, generation);
        let reason = match self.storage.get(RequestClass::Scrub, &path, MAX_GENERATION).await {
            Ok(bytes) if serde_json::from_slice::<serde_json::Value>(&bytes).is_ok() => return Ok(()),
            Ok(_) => (Kind::Damaged, "this is no generation".to_owned()),
            Err(error) if error.kind() == ErrorKind::Gone => {
                (Kind::Missing, "generations follow each other without a gap".to_owned())
            }
            Err(error) => return Err(error),
        };
        let (kind, reason) = reason;
        report.add(Finding { place: Place::Bucket, kind, name: self.name(&path), reason, bytes: 0, fixed: false });
        Ok(())
    }

    /// Writes to a directory that a killed process had begun. What is young may be under way in another server.
    pub(super) async fn check_begun(&self, options: Options, report: &mut Report) -> Result<(), StorageError> {
        let mut begun = self.storage.begun(&RemotePath::tenant(&self.tenant)).await?;
        begun.retain(|it| it.age >= options.grace.as_secs());
        if options.delete_orphans && !begun.is_empty() {
            self.check_owner().await?;
        }
        for it in begun {
            let fixed = options.delete_orphans && self.storage.remove_begun(&it).await?;
            let reason = "a write that was begun and never ended".to_owned();
            let (place, kind, name) = (Place::Bucket, Kind::Orphan, it.path.into_string());
            report.add(Finding { place, kind, name, reason, bytes: it.size, fixed });
        }
        Ok(())
    }

    pub(super) fn name(&self, path: &RemotePath) -> String {
        self.storage.name_of(path)
    }

    pub(super) async fn timelines(&self) -> Result<Vec<TimelineId>, StorageError> {
        let names = self.storage.list_dirs(RequestClass::Scrub, &RemotePath::timelines(&self.tenant)).await?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// The objects of a timeline, and what the newest index part says. The list comes first: what an owner adds later
    /// is not missed, and what it removes later is not named either.
    pub(super) async fn objects(&self, timeline: TimelineId, report: &mut Report) -> Result<Objects, StorageError> {
        let now = env::clock::system_now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let listed = self.storage.list(RequestClass::Scrub, &RemotePath::timeline(&self.tenant, &timeline)).await?;
        let there: BTreeMap<String, There> = listed
            .into_iter()
            .map(|object| {
                let age = u64::try_from(object.modified).ok().filter(|at| *at > 0).map(|at| now.saturating_sub(at));
                (object.path.file_name().to_owned(), There { size: object.size, age })
            })
            .collect();
        let mut objects = Objects { there, ..Objects::default() };
        self.find_index_part(timeline, &mut objects, report).await?;
        Ok(objects)
    }

    async fn find_index_part(
        &self,
        timeline: TimelineId,
        objects: &mut Objects,
        report: &mut Report,
    ) -> Result<(), StorageError> {
        let listed = objects.there.keys().filter_map(|name| generation_of(name.strip_prefix(INDEX_PART_PREFIX)?));
        let mut generations: Vec<u32> = listed.collect();
        generations.sort_unstable();
        for generation in generations.into_iter().rev() {
            match self.read_index_part(timeline, generation).await {
                Ok(Some(manifest)) => objects.index = Some((generation, manifest)),
                Ok(None) => continue,
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let path = RemotePath::index_part(&self.tenant, &timeline, generation);
                    let (name, reason) = (self.name(&path), error.to_string());
                    let (place, kind) = (Place::Bucket, Kind::Damaged);
                    objects.damaged_index = Some((generation, report.findings.len()));
                    report.add(Finding { place, kind, name, reason, bytes: 0, fixed: false });
                }
                Err(error) => return Err(error),
            }
            break;
        }
        Ok(())
    }

    /// Writes a damaged index part anew from the manifest of the same owner, if the bucket has all that it names.
    pub(super) async fn repair_index_part(
        &self,
        objects: &mut Objects,
        manifest: &Manifest,
        wal_source: Option<String>,
        report: &mut Report,
    ) -> Result<(), StorageError> {
        let Some((generation, finding)) = objects.damaged_index else { return Ok(()) };
        let (tenant, timeline) = (manifest.tenant_shard_id, manifest.timeline_id);
        let is_there = |entry: &LayerEntry| {
            let layer = entry.to_layer(Utf8Path::new(""), tenant, timeline);
            let object = layer.path().file_name().and_then(|name| objects.there.get(name));
            object.is_some_and(|there| there.size == entry.file_size)
        };
        if manifest.generation != generation || !manifest.layers.iter().all(is_there) {
            return Ok(());
        }
        self.check_owner().await?;
        let index = Manifest { in_bucket: true, wal_source, ..manifest.clone() };
        let path = RemotePath::index_part(&self.tenant, &timeline, generation);
        self.storage.put(RequestClass::Control, &path, index.encode()?.into()).await?;
        objects.index = self.read_index_part(timeline, generation).await?.map(|index| (generation, index));
        if let Some(finding) = report.findings.get_mut(finding) {
            finding.fixed = objects.index.is_some();
        }
        Ok(())
    }

    /// An index part; `None` if there is none of this generation.
    pub(super) async fn read_index_part(
        &self,
        timeline: TimelineId,
        generation: u32,
    ) -> Result<Option<Manifest>, StorageError> {
        let path = RemotePath::index_part(&self.tenant, &timeline, generation);
        let bytes = match self.storage.get(RequestClass::Scrub, &path, MAX_INDEX_PART).await {
            Err(error) if error.kind() == ErrorKind::Gone => return Ok(None),
            bytes => bytes?,
        };
        let name = self.name(&path);
        let manifest = Manifest::decode(Utf8Path::new(&name), &bytes)?;
        let found = (manifest.tenant_shard_id, manifest.timeline_id, manifest.generation);
        if found == (self.tenant, timeline, generation) {
            return Ok(Some(manifest));
        }
        let reason = format!("it is that of tenant {}, timeline {}, generation {}", found.0, found.1, found.2);
        Err(StorageError::Corrupt { path: name.into(), offset: 0, reason })
    }

    /// Makes sure, right before something in the bucket is changed, that its owner is whom the scrub took for it.
    ///
    /// # Errors
    /// [`StorageError::Fenced`] if a newer generation was given out since.
    pub(super) async fn check_owner(&self) -> Result<(), StorageError> {
        let newer = self.newest_generation().await?;
        let generation = self.held.unwrap_or(self.generation);
        match newer > generation {
            true => Err(StorageError::Fenced { tenant_shard_id: self.tenant, generation, newer }),
            false => Ok(()),
        }
    }
}
