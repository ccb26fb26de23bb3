//! What the bucket has of a tenant: generations, index parts, other objects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::UNIX_EPOCH;

use camino::Utf8Path;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::inventory::There;
use super::report::{Finding, Kind, Place, Report};
use super::subject::{Options, Subject};
use crate::config::ServerIdentity;
use crate::tenant::remote::{
    LayerList, MAX_GENERATION, MAX_INDEX_PART, defect, mend, parse_generation, server_of, trace,
};
use crate::tenant::timeline::Manifest;
use errors::{ErrorKind, StorageError};
use remote_storage::{INDEX_PART_PREFIX, Listed, ORIGIN_PREFIX, RemotePath, RemoteStorage, RequestClass};

/// Only this many of the newest generations are read: the contents of older ones no longer matter.
const GENERATIONS_READ: u32 = 64;
/// Maximum number of missing generations reported individually.
const MISSING_TOLD: u32 = 100;

/// A tenant's part of the bucket.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    pub(super) storage: RemoteStorage,
    pub(super) tenant: TenantShardId,
    /// The newest generation when the scrub began; 0 if there is none.
    pub(super) generation: u32,
    /// The generation that this process holds, if it holds one.
    held: Option<u32>,
    server: ServerIdentity,
    /// It is unknown who owns the newest generation, or whether it is the newest.
    pub(super) is_headless: bool,
    /// This process holds the newest generation, or this disk's last user did.
    pub(super) is_ours: bool,
}

/// The objects of a timeline.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    pub(super) there: BTreeMap<String, There>,
    /// The newest index part, with its generation.
    pub(super) index: Option<(u32, Manifest)>,
    /// When `index` was written, in seconds since 1970; 0 if not known.
    pub(super) written: i64,
    /// `index` is an older one that was restored: objects that it does not name may be needed.
    pub(super) is_older: bool,
    /// The generation of the newest index part if that is damaged, and the index of its finding. An older one is no
    /// longer true, so `index` is `None` then.
    pub(super) damaged_index: Option<(u32, usize)>,
}

impl Objects {
    /// The lists of layers.
    pub(super) fn lists(&self) -> Vec<LayerList> {
        self.there.keys().filter_map(|name| LayerList::parse(name)).collect()
    }
}

/// The names of the tenants in the bucket.
pub(super) async fn list_tenants(storage: &RemoteStorage) -> Result<Vec<String>, StorageError> {
    storage.list_dirs(RequestClass::Scrub, &RemotePath::tenants()).await
}

/// What a tenant's objects reveal about its generations.
struct Traces {
    /// Generations in the chain.
    chain: BTreeSet<u32>,
    /// The latest generation that has written anything else, and the name of such an object.
    last: Option<(u32, String)>,
}

impl Traces {
    fn of(listed: &[Listed], chain: &RemotePath) -> Self {
        let (chain, others): (Vec<&Listed>, Vec<&Listed>) =
            listed.iter().partition(|object| object.path.as_path().prefix_matches(chain.as_path()));
        Self {
            chain: chain.iter().filter_map(|object| parse_generation(object.path.file_name())).collect(),
            last: others.iter().filter_map(|it| Some((trace(it.path.file_name())?, it.path.to_string()))).max(),
        }
    }
}

impl Bucket {
    pub(super) async fn look(
        storage: RemoteStorage,
        subject: &Subject,
        local: Option<u32>,
        options: Options,
        report: &mut Report,
    ) -> Result<Self, StorageError> {
        let (tenant, held, server) = (subject.tenant, subject.generation, subject.conf.server.clone());
        let mut bucket =
            Self { storage, tenant, generation: 0, held, server, is_headless: false, is_ours: held.is_some() };
        let listed = bucket.storage.list(RequestClass::Scrub, &RemotePath::tenant(&tenant)).await?;
        let traces = Traces::of(&listed, &RemotePath::generations(&tenant));
        bucket.generation = bucket.newest_generation().await?;
        bucket.is_ours |= local == Some(bucket.generation);
        let before = report.findings.len();
        bucket.check_chain(&traces.chain, report).await?;
        bucket.check_head(&traces, local, report);
        let found = before..report.findings.len();
        if options.repair_bucket && !found.is_empty() && !bucket.is_headless {
            bucket.check_owner().await?;
            mend(&bucket.storage, tenant).await?;
            report.findings.iter_mut().skip(found.start).for_each(|finding| finding.fixed = true);
        }
        Ok(bucket)
    }

    /// Finds the newest generation: a listing is a hint, and the chain has no gaps.
    async fn newest_generation(&self) -> Result<u32, StorageError> {
        let listed = self.storage.list(RequestClass::Scrub, &RemotePath::generations(&self.tenant)).await?;
        let mut newest = listed.iter().filter_map(|it| parse_generation(it.path.file_name())).max().unwrap_or(0);
        while let Some(next) = newest.checked_add(1) {
            let path = RemotePath::generation(&self.tenant, next);
            if self.storage.head(RequestClass::Scrub, &path).await?.is_none() {
                break;
            }
            newest = next;
        }
        Ok(newest)
    }

    /// Checks that the chain of generations has no gaps and that its newest ones are readable.
    async fn check_chain(&mut self, listed: &BTreeSet<u32>, report: &mut Report) -> Result<(), StorageError> {
        let read_from = self.generation.saturating_sub(GENERATIONS_READ - 1).max(1);
        let mut next = 1;
        let mut unlisted = Vec::new();
        for generation in listed.iter().copied().chain([self.generation]) {
            unlisted.extend((next..generation.min(read_from)).take(MISSING_TOLD as usize));
            next = next.max(generation.saturating_add(1));
        }
        unlisted.truncate(MISSING_TOLD as usize);
        for generation in unlisted.into_iter().chain(read_from..=self.generation) {
            let is_newest = generation == self.generation && self.held != Some(generation);
            self.is_headless |= !self.check_generation(generation, report).await? && is_newest;
        }
        Ok(())
    }

    /// Returns false if the generation is missing or damaged.
    async fn check_generation(&mut self, generation: u32, report: &mut Report) -> Result<bool, StorageError> {
        let path = RemotePath::generation(&self.tenant, generation);
        let (kind, reason) = match self.storage.get(RequestClass::Scrub, &path, MAX_GENERATION).await {
            Ok(bytes) => match defect(&bytes) {
                None => {
                    self.is_ours |= generation == self.generation && self.server.is(&server_of(&bytes));
                    return Ok(true);
                }
                Some(defect) => (Kind::Damaged, defect),
            },
            Err(error) if error.kind() == ErrorKind::Gone => {
                (Kind::Missing, "generations follow each other without a gap, and none is ever removed".to_owned())
            }
            Err(error) => return Err(error),
        };
        let means = match generation == self.generation && self.held != Some(generation) {
            true => {
                ". Nobody knows who owns the tenant: no server attaches it unless it takes it over explicitly \
                     (location_config: AttachedSingle), which mends the chain"
            }
            false => "; --repair-bucket makes it anew",
        };
        self.add(report, kind, &path, format!("{reason}{means}"));
        Ok(false)
    }

    /// Checks that nothing was written under a generation beyond the chain. `local` is the latest generation that the
    /// local disk knows of.
    fn check_head(&mut self, traces: &Traces, local: Option<u32>, report: &mut Report) {
        let known = [
            traces.last.clone().map(|(generation, object)| (generation, format!("{object} was written under it"))),
            local.map(|generation| (generation, "a manifest on this disk was written under it".to_owned())),
            self.held.map(|generation| (generation, "this server holds it".to_owned())),
        ];
        let Some((last, what)) = known.into_iter().flatten().max_by_key(|(generation, _)| *generation) else { return };
        for generation in (self.generation.saturating_add(1)..=last).rev().take(MISSING_TOLD as usize) {
            let reason = format!(
                "{what}, or under a later one, but it is not in the chain: it would be given out a second time, and \
                 what was written under it would not count. No server attaches the tenant unless it takes it over \
                 explicitly (location_config: AttachedSingle), which mends the chain"
            );
            self.add(report, Kind::Missing, &RemotePath::generation(&self.tenant, generation), reason);
            self.is_headless = true;
        }
    }

    /// Adds a finding in the bucket. Returns its index.
    pub(super) fn add(&self, report: &mut Report, kind: Kind, path: &RemotePath, reason: String) -> usize {
        let (place, name) = (Place::Bucket, self.name(path));
        report.add(Finding { place, kind, name, reason, bytes: 0, fixed: false });
        report.findings.len() - 1
    }

    /// Finds unfinished writes of killed processes, in a bucket that is a directory. Young ones may be in progress in
    /// another server.
    pub(super) async fn check_unfinished(&self, options: Options, report: &mut Report) -> Result<(), StorageError> {
        let mut begun = self.storage.unfinished(&RemotePath::tenant(&self.tenant)).await?;
        begun.retain(|it| it.age >= options.grace.as_secs());
        if options.delete_orphans && !begun.is_empty() {
            self.check_owner().await?;
        }
        for it in begun {
            let fixed = options.delete_orphans && self.storage.remove_unfinished(&it).await?;
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

    /// The objects of a timeline and its newest index part. The listing comes first: objects that the owner adds
    /// later are not considered missing, and objects that it removes later are no longer named either.
    pub(super) async fn objects(&self, timeline: TimelineId, report: &mut Report) -> Result<Objects, StorageError> {
        let now = env::clock::system_now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let listed = self.storage.list(RequestClass::Scrub, &RemotePath::timeline(&self.tenant, &timeline)).await?;
        let there: BTreeMap<String, There> = listed
            .into_iter()
            .map(|object| {
                let age = u64::try_from(object.modified).ok().filter(|at| *at > 0).map(|at| now.saturating_sub(at));
                let there = There { size: object.size, age, modified: object.modified };
                (object.path.file_name().to_owned(), there)
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
        let prefixed = |(name, there): (&String, &There)| {
            Some((parse_generation(name.strip_prefix(INDEX_PART_PREFIX)?)?, there.modified))
        };
        let mut generations: Vec<(u32, i64)> = objects.there.iter().filter_map(prefixed).collect();
        generations.sort_unstable();
        for (generation, written) in generations.into_iter().rev() {
            match self.read_index_part(timeline, generation).await {
                Ok(Some(manifest)) => (objects.index, objects.written) = (Some((generation, manifest)), written),
                Ok(None) => continue,
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let path = RemotePath::index_part(&self.tenant, &timeline, generation);
                    let finding = self.add(report, Kind::Damaged, &path, error.to_string());
                    objects.damaged_index = Some((generation, finding));
                }
                Err(error) => return Err(error),
            }
            break;
        }
        Ok(())
    }

    /// The timeline's stored origin; `None` if it was never written or cannot be read.
    pub(super) async fn read_origin(
        &self,
        timeline: TimelineId,
        objects: &Objects,
    ) -> Result<Option<Manifest>, StorageError> {
        let written = objects.there.keys().filter_map(|name| parse_generation(name.strip_prefix(ORIGIN_PREFIX)?));
        let Some(generation) = written.max() else { return Ok(None) };
        let path = RemotePath::origin(&self.tenant, &timeline, generation);
        match self.read_manifest(timeline, generation, &path).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            origin => origin,
        }
    }

    /// The newest list of the timeline's layers; `None` if there is none, or it cannot be read.
    pub(super) async fn read_list(
        &self,
        timeline: TimelineId,
        objects: &Objects,
    ) -> Result<Option<Manifest>, StorageError> {
        let Some(list) = objects.lists().into_iter().max() else { return Ok(None) };
        match self.read_manifest(timeline, list.generation, &list.path(&self.tenant, &timeline)).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            list => list,
        }
    }

    /// Reads the index part of a generation; `None` if there is none.
    pub(super) async fn read_index_part(
        &self,
        timeline: TimelineId,
        generation: u32,
    ) -> Result<Option<Manifest>, StorageError> {
        self.read_manifest(timeline, generation, &RemotePath::index_part(&self.tenant, &timeline, generation)).await
    }

    pub(super) async fn read_manifest(
        &self,
        timeline: TimelineId,
        generation: u32,
        path: &RemotePath,
    ) -> Result<Option<Manifest>, StorageError> {
        let bytes = match self.storage.get(RequestClass::Scrub, path, MAX_INDEX_PART).await {
            Err(error) if error.kind() == ErrorKind::Gone => return Ok(None),
            bytes => bytes?,
        };
        let name = self.name(path);
        let manifest = Manifest::decode(Utf8Path::new(&name), &bytes)?;
        let found = (manifest.tenant_shard_id, manifest.timeline_id, manifest.generation);
        if found == (self.tenant, timeline, generation) {
            return Ok(Some(manifest));
        }
        let reason = format!("it is that of tenant {}, timeline {}, generation {}", found.0, found.1, found.2);
        Err(StorageError::Corrupt { path: name.into(), offset: 0, reason })
    }

    /// Checks, right before the bucket is changed, that the tenant still has the owner that the scrub assumed.
    ///
    /// # Errors
    /// [`StorageError::Fenced`] if a newer generation has been taken since.
    pub(super) async fn check_owner(&self) -> Result<(), StorageError> {
        let newer = self.newest_generation().await?;
        let generation = self.held.unwrap_or(self.generation);
        match newer > generation {
            true => Err(StorageError::Fenced { tenant_shard_id: self.tenant, generation, newer }),
            false => Ok(()),
        }
    }
}
