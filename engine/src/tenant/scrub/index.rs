//! Checks that a timeline's index part exists, is intact, and is the newest one written; rewrites it if not.

use std::sync::Arc;

use utils::id::TimelineId;

use super::local::Local;
use super::objects::{Bucket, Objects};
use super::rebuild::{Rebuild, invariant_broken};
use super::report::{Kind, Report};
use super::subject::Options;
use crate::resources::Resources;
use crate::tenant::remote::{outdated, parse_generation};
use crate::tenant::storage_layer::LayerFileName;
use crate::tenant::timeline::{Manifest, Timeline};
use errors::{ErrorKind, StorageError};
use remote_storage::{Listed, ORIGIN_PREFIX, RemotePath, RequestClass};

/// The check of one timeline's index part.
pub(super) struct Check<'a> {
    pub(super) bucket: &'a Bucket,
    pub(super) timeline: TimelineId,
    /// The timeline, if it is open in this process.
    pub(super) open: Option<&'a Timeline>,
    pub(super) local: &'a Local,
    /// Caches for layers that are opened.
    pub(super) resources: &'a Resources,
    pub(super) options: Options,
}

/// A defective index part.
struct Bad {
    /// The index of its finding.
    finding: usize,
    /// The generation that wrote it, if it exists.
    generation: Option<u32>,
    /// Whether it can be rewritten.
    can_be_mended: bool,
}

impl Check<'_> {
    /// Finds defects, and repairs them if that is requested and possible.
    pub(super) async fn run(&self, objects: &mut Objects, report: &mut Report) -> Result<(), StorageError> {
        let bad = self.find(objects, report)?;
        objects.is_older = bad.is_some() && objects.index.is_some();
        if let Some(bad) = bad {
            let told = match self.may_write(&bad) {
                Err(reason) => reason,
                Ok(false) => "--repair-bucket writes it anew".to_owned(),
                Ok(true) => self.mend(&bad, objects, report).await?,
            };
            if let Some(finding) = report.findings.get_mut(bad.finding) {
                finding.reason = format!("{}. {told}", finding.reason.trim_end_matches('.'));
            }
        }
        self.check_origin(objects, report).await?;
        self.check_list(objects, report).await
    }

    fn find(&self, objects: &Objects, report: &mut Report) -> Result<Option<Bad>, StorageError> {
        if let Some((generation, finding)) = objects.damaged_index {
            return Ok(Some(Bad { finding, generation: Some(generation), can_be_mended: true }));
        }
        let Some((generation, index)) = &objects.index else {
            let Some(reason) = self.missing(objects) else { return Ok(None) };
            let path = RemotePath::timeline(&self.bucket.tenant, &self.timeline);
            let finding = self.bucket.add(report, Kind::Missing, &path, reason);
            return Ok(Some(Bad { finding, generation: None, can_be_mended: true }));
        };
        let path = RemotePath::index_part(&self.bucket.tenant, &self.timeline, *generation);
        let bad = |finding, can_be_mended| Bad { finding, generation: Some(*generation), can_be_mended };
        if index.deleted {
            return Ok(None);
        }
        if let Some(why) = outdated::later_list(index, &objects.lists()) {
            let reason = format!("{why}. A server on an empty disk does not open the timeline");
            return Ok(Some(bad(self.bucket.add(report, Kind::Damaged, &path, reason), true)));
        }
        let listed: Vec<Listed> =
            objects.there.iter().map(|(name, it)| self.listed(name, it.size, it.modified)).collect();
        let beyond = outdated::beyond(&listed, *generation, index.disk_consistent_lsn, objects.written);
        // Layers that an open timeline is about to name are younger than the index part.
        if let Some(beyond) = beyond.filter(|beyond| beyond.is_certain) {
            let reason = format!("{beyond}. A server on an empty disk does not open the timeline");
            return Ok(Some(bad(self.bucket.add(report, Kind::Damaged, &path, reason), true)));
        }
        let layers = index
            .layers
            .iter()
            .map(|it| Arc::new(it.to_layer(self.resources, &self.local.dir, self.bucket.tenant, self.timeline)));
        let Some(reason) = invariant_broken(index, &layers.collect::<Vec<_>>()) else { return Ok(None) };
        Ok(Some(bad(self.bucket.add(report, Kind::Damaged, &path, reason), false)))
    }

    fn listed(&self, name: &str, size: u64, modified: i64) -> Listed {
        Listed { path: RemotePath::layer(&self.bucket.tenant, &self.timeline, name), size, modified }
    }

    /// Why an index part should exist although there is none, if so.
    fn missing(&self, objects: &Objects) -> Option<String> {
        let grace = self.options.grace.as_secs();
        let is_old = |name: &str, age: Option<u64>| name.parse::<LayerFileName>().is_ok() && age >= Some(grace);
        let layers = objects.there.iter().filter(|(name, there)| is_old(name, there.age)).count();
        let had_one = objects.there.keys().any(|name| name.starts_with(ORIGIN_PREFIX)) || !objects.lists().is_empty();
        let known_here = self.local.manifest.as_ref().is_some_and(|manifest| manifest.in_bucket);
        let of_open = self.open.is_some_and(|open| open.remote_consistent_lsn().is_some());
        let names = objects.there.len();
        match (had_one || known_here || of_open, layers) {
            (true, _) => Some(format!(
                "the timeline was published, and its index part is gone; {names} objects of it are there. A server on \\
                 an empty disk does not open it"
            )),
            (false, 0) => None,
            (false, _) => Some(format!(
                "there are {layers} layers and no index part: either the first upload of the timeline did not end, or \\
                 it was removed. A server on an empty disk does not open it"
            )),
        }
    }

    /// Whether to rewrite it, or why that is not possible.
    fn may_write(&self, bad: &Bad) -> Result<bool, String> {
        if !bad.can_be_mended {
            return Err("Nothing mends that: keep all of it for a report".to_owned());
        }
        if self.bucket.is_headless {
            return Err("It can be mended once the chain of generations is".to_owned());
        }
        if self.options.repair_bucket && !self.bucket.is_ours {
            return Err("Another server may own the tenant: let that do it, with --running".to_owned());
        }
        Ok(self.options.repair_bucket)
    }

    /// Rewrites it. Returns a description of the result.
    async fn mend(&self, bad: &Bad, objects: &mut Objects, report: &mut Report) -> Result<String, StorageError> {
        self.bucket.check_owner().await?;
        let written = match self.open {
            Some(open) => match open.publish_again().await {
                true => Ok("Written anew by the server that has it open".to_owned()),
                false => Err("The server that has it open could not write it anew yet".to_owned()),
            },
            None => self.rebuild(bad, objects).await?,
        };
        let generation = self.bucket.generation;
        if written.is_ok() {
            objects.index = self.bucket.read_index_part(self.timeline, generation).await?.map(|it| (generation, it));
        }
        let fixed = written.is_ok() && objects.index.is_some();
        objects.is_older &= !fixed;
        if let Some(finding) = report.findings.get_mut(bad.finding) {
            finding.fixed = fixed;
        }
        Ok(written.unwrap_or_else(|reason| reason))
    }

    async fn rebuild(&self, bad: &Bad, objects: &Objects) -> Result<Result<String, String>, StorageError> {
        let rebuild = Rebuild {
            bucket: self.bucket,
            timeline: self.timeline,
            objects,
            local: self.local.manifest.as_ref(),
            bad: bad.generation,
            dir: &self.local.dir,
            resources: self.resources,
        };
        let manifest = match rebuild.manifest().await? {
            Ok(manifest) => manifest,
            Err(reason) => return Ok(Err(format!("It cannot be written anew: {reason}"))),
        };
        let (lsn, layers) = (manifest.disk_consistent_lsn, manifest.layers.len());
        let generation = self.bucket.generation;
        let told = self.local.manifest.as_ref().and_then(|local| local.wal_source.clone());
        let wal_source = manifest.wal_source.clone().or(told);
        let follows = if wal_source.is_some() { "" } else { ". Where its WAL comes from is not known any more" };
        let index = Manifest { generation, in_bucket: true, wal_source, ..manifest };
        let path = RemotePath::index_part(&self.bucket.tenant, &self.timeline, generation);
        self.bucket.storage.put(RequestClass::Control, &path, index.encode()?.into()).await?;
        Ok(Ok(format!("Written anew, with {layers} layers up to LSN {lsn}{follows}")))
    }

    /// Checks that the timeline's stored origin can be read.
    async fn check_origin(&self, objects: &Objects, report: &mut Report) -> Result<(), StorageError> {
        let written = objects.there.keys().filter_map(|name| parse_generation(name.strip_prefix(ORIGIN_PREFIX)?));
        let Some(generation) = written.max() else { return Ok(()) };
        let path = RemotePath::origin(&self.bucket.tenant, &self.timeline, generation);
        let error = match self.bucket.read_manifest(self.timeline, generation, &path).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => error,
            read => return read.map(drop),
        };
        let finding = self.bucket.add(report, Kind::Damaged, &path, error.to_string());
        let copied = |index: &Manifest| Manifest { generation, ..index.without_history() };
        self.copy_again(objects, &path, finding, report, copied).await
    }

    /// Checks that the newest list of layers can be read.
    async fn check_list(&self, objects: &Objects, report: &mut Report) -> Result<(), StorageError> {
        let Some(list) = objects.lists().into_iter().max() else { return Ok(()) };
        let path = list.path(&self.bucket.tenant, &self.timeline);
        let error = match self.bucket.read_manifest(self.timeline, list.generation, &path).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => error,
            read => return read.map(drop),
        };
        let finding = self.bucket.add(report, Kind::Damaged, &path, error.to_string());
        let copied = |index: &Manifest| Manifest { generation: list.generation, ..index.clone() };
        self.copy_again(objects, &path, finding, report, copied).await
    }

    /// Writes a damaged copy of the index part again, if there is one and that is requested.
    async fn copy_again(
        &self,
        objects: &Objects,
        path: &RemotePath,
        finding: usize,
        report: &mut Report,
        copied: impl FnOnce(&Manifest) -> Manifest,
    ) -> Result<(), StorageError> {
        let index = objects.index.as_ref().map(|(_, index)| index).filter(|index| !index.deleted);
        let (Some(index), true) = (index, self.options.repair_bucket && self.bucket.is_ours) else { return Ok(()) };
        self.bucket.check_owner().await?;
        self.bucket.storage.put(RequestClass::Control, path, copied(index).encode()?.into()).await?;
        if let Some(finding) = report.findings.get_mut(finding) {
            finding.fixed = true;
        }
        Ok(())
    }
}
