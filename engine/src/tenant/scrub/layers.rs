//! Scrubs one timeline: verifies the file and the object of every layer, and repairs each from the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::index::Check;
use super::inventory::{self, Newest};
use super::local::{self, Local};
use super::objects::{Bucket, Objects};
use super::report::{Finding, Kind, Lost, Place, Progress, Report};
use super::subject::{Options, Subject};
use crate::context::{DownloadBehavior, RequestContext};
use crate::task_mgr::TaskKind;
use crate::tenant::layer_map::Layer;
use crate::tenant::storage_layer::{RemoteObject, read_identity};
use crate::tenant::timeline::manifest::LayerEntry;
use crate::tenant::timeline::{Manifest, Timeline};
use errors::{ErrorKind, StorageError};
use remote_storage::{RemotePath, RequestClass};

/// Maximum number of layers verified concurrently.
const PARALLEL: usize = 4;

/// A named layer.
struct Part {
    name: String,
    layer: Arc<Layer>,
    /// The index part names it: the object must exist.
    in_index: bool,
    /// The local file must exist.
    expected_here: bool,
}

/// The result of verifying one of a layer's two copies.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Copy {
    /// It need not exist, and does not.
    None,
    Good,
    Bad(Kind, String),
}

struct Checked {
    part: Part,
    local: Copy,
    remote: Copy,
}

pub(super) async fn scrub_timeline(
    subject: &Subject,
    bucket: Option<&Bucket>,
    timeline: TimelineId,
    options: Options,
    progress: &Arc<Progress>,
    report: &mut Report,
) -> Result<(), StorageError> {
    let open = subject.open.iter().find(|open| open.timeline_id() == timeline);
    let mut objects = match bucket {
        Some(bucket) => bucket.objects(timeline, report).await?,
        None => Objects::default(),
    };
    let local = local::look(subject, timeline, open, &objects, options, report).await?;
    if let Some(bucket) = bucket {
        Check { bucket, timeline, open, local: &local, resources: &subject.conf.resources, options }
            .run(&mut objects, report)
            .await?;
    }
    let parts = parts(subject, bucket, timeline, open, &objects, &local);
    let named: BTreeSet<String> = parts.iter().map(|part| part.name.clone()).collect();
    progress.plan(parts.iter().map(planned).sum());
    let checks = parts.into_iter().map(|part| check(part, &objects, progress));
    let mut checked: Vec<Checked> = stream::iter(checks).buffer_unordered(PARALLEL).collect().await;
    checked.sort_by(|one, other| one.part.name.cmp(&other.part.name));
    let index = objects.index.as_ref().map(|(generation, _)| *generation);
    let mut timeline = OneTimeline { bucket, timeline, open, tenant: subject.tenant, index, options, report };
    for checked in checked {
        timeline.judge(checked).await?;
    }
    timeline.check_orphans(&objects, &named).await?;
    if subject.exclusive {
        local::check_orphans(&local, &named, options, report).await?;
    }
    Ok(())
}

fn planned(part: &Part) -> u64 {
    let copies = u64::from(part.in_index) + u64::from(part.layer.is_local());
    copies * part.layer.desc().file_size
}

/// All layers named by the open timeline, the manifest, or the index part.
fn parts(
    subject: &Subject,
    bucket: Option<&Bucket>,
    timeline: TimelineId,
    open: Option<&Timeline>,
    objects: &Objects,
    local: &Local,
) -> Vec<Part> {
    let resources = &subject.conf.resources;
    let index = objects.index.as_ref().map(|(_, index)| index).filter(|index| !index.deleted);
    let to_layers = |manifest: &Manifest| -> BTreeMap<String, Arc<Layer>> {
        let layers =
            manifest.layers.iter().map(|entry| entry.to_layer(resources, &local.dir, subject.tenant, timeline));
        layers.map(|layer| (name_of(&layer), Arc::new(layer))).collect()
    };
    let in_index = index.map(to_layers).unwrap_or_default();
    let mut layers = local.manifest.as_ref().filter(|_| open.is_none()).map(to_layers).unwrap_or_default();
    let of_manifest: BTreeSet<String> = layers.keys().cloned().collect();
    layers.extend(in_index.clone());
    let mut parts = Vec::new();
    for (name, layer) in layers {
        let object = bucket.filter(|_| in_index.contains_key(&name)).map(|bucket| RemoteObject {
            storage: bucket.storage.clone(),
            path: RemotePath::layer(&subject.tenant, &timeline, &name),
        });
        let (here, in_index) = (local.names.contains(&name), object.is_some());
        let layer = match object {
            Some(object) if !here => Arc::new(layer.in_bucket_only(&local.dir, object)),
            Some(object) => {
                layer.set_remote(object);
                layer
            }
            None => layer,
        };
        let expected_here = here || (of_manifest.contains(&name) && !in_index);
        parts.push(Part { name, layer, in_index, expected_here });
    }
    for layer in open.into_iter().flat_map(Timeline::layer_files) {
        let name = name_of(&layer);
        let part = Part { in_index: in_index.contains_key(&name), expected_here: layer.is_local(), layer, name };
        match parts.iter_mut().find(|known| known.name == part.name) {
            Some(known) => *known = part,
            None => parts.push(part),
        }
    }
    parts
}

fn name_of(layer: &Layer) -> String {
    layer.path().file_name().unwrap_or_default().to_owned()
}

async fn check(part: Part, objects: &Objects, progress: &Progress) -> Checked {
    let size = part.layer.desc().file_size;
    let mut local = Copy::None;
    if part.expected_here {
        local = judged(check_file(&part.layer).await);
        // The layer may have been evicted meanwhile.
        if matches!(local, Copy::Bad(..)) && part.in_index && !part.layer.is_local() {
            local = Copy::None;
        }
        progress.note(Place::Local, size);
    }
    let mut remote = Copy::None;
    if part.in_index {
        remote = match objects.there.get(&part.name) {
            Some(there) if there.size != size => {
                Copy::Bad(Kind::Damaged, format!("{} bytes instead of {size}", there.size))
            }
            // The listing may lag.
            _ => judged(part.layer.verify_remote().await.map(drop)),
        };
        progress.note(Place::Bucket, size);
    }
    Checked { part, local, remote }
}

async fn check_file(layer: &Layer) -> Result<(), StorageError> {
    if !layer.is_local() {
        return Err(StorageError::Io {
            operation: "open",
            path: layer.path().to_owned(),
            offset: 0,
            source: std::io::ErrorKind::NotFound.into(),
        });
    }
    if read_identity(layer.path()).await? != layer.identity() {
        let reason = "it is another file, as its header says".to_owned();
        return Err(StorageError::Corrupt { path: layer.path().to_owned(), offset: 0, reason });
    }
    layer.verify_local().await.map(drop)
}

fn judged(result: Result<(), StorageError>) -> Copy {
    let Err(error) = result else { return Copy::Good };
    let kind = match error.kind() {
        ErrorKind::Corrupt => Kind::Damaged,
        ErrorKind::Gone => Kind::Missing,
        _ => Kind::Unread,
    };
    Copy::Bad(kind, error.to_string())
}

/// Acts on the findings of one timeline.
struct OneTimeline<'a> {
    bucket: Option<&'a Bucket>,
    timeline: TimelineId,
    open: Option<&'a Timeline>,
    tenant: TenantShardId,
    /// Generation of the current index part.
    index: Option<u32>,
    options: Options,
    report: &'a mut Report,
}

impl OneTimeline<'_> {
    async fn judge(&mut self, checked: Checked) -> Result<(), StorageError> {
        let Checked { part, mut local, mut remote } = checked;
        if matches!(local, Copy::Bad(Kind::Missing, _)) && self.has_let_go(&part.name) {
            local = Copy::None;
        }
        if matches!(remote, Copy::Bad(..)) && !self.names(&part.name).await? {
            // Its owner has removed it in the meantime.
            remote = Copy::None;
        }
        let copies = [&local, &remote];
        let bad = |copy: &&Copy| matches!(copy, Copy::Bad(Kind::Damaged | Kind::Missing, _));
        if copies.iter().all(|copy| bad(copy) || **copy == Copy::None) && copies.iter().any(bad) {
            let from_lsn = part.layer.desc().lsn_range.start;
            self.report.lost.push(Lost { timeline_id: self.timeline, from_lsn, layer: part.name.clone() });
        }
        if let Copy::Bad(kind, reason) = &local {
            let fixed = self.options.repair && remote == Copy::Good && self.repair_file(&part.layer).await;
            self.add(Place::Local, *kind, part.layer.path().to_string(), reason, part.layer.desc().file_size, fixed);
        }
        if let (Copy::Bad(kind, reason), Some(object)) = (&remote, part.layer.remote()) {
            let wanted = self.options.repair_bucket && *kind != Kind::Unread && local == Copy::Good;
            let fixed = wanted && self.repair_object(&part.layer, &object).await?;
            let name = object.storage.name_of(&object.path);
            self.add(Place::Bucket, *kind, name, reason, part.layer.desc().file_size, fixed);
        }
        Ok(())
    }

    /// Whether the timeline is open, and a job has replaced the layer or its file was evicted meanwhile.
    fn has_let_go(&self, name: &str) -> bool {
        let is_here = |layer: &Arc<Layer>| layer.is_local() && name_of(layer) == name;
        self.open.is_some_and(|open| !open.layer_files().iter().any(is_here))
    }

    fn add(&mut self, place: Place, kind: Kind, name: String, reason: &str, bytes: u64, fixed: bool) {
        self.report.add(Finding { place, kind, name, reason: reason.to_owned(), bytes, fixed });
    }

    /// Downloads the layer again.
    async fn repair_file(&self, layer: &Layer) -> bool {
        let ctx = RequestContext::new(TaskKind::Scrub, DownloadBehavior::Download);
        let repair = async {
            layer.evict().await?;
            layer.download(&ctx).await?;
            check_file(layer).await
        };
        let result: Result<(), StorageError> = repair.await;
        if let Err(error) = &result {
            tracing::warn!("{}: not repaired: {error}", layer.path());
        }
        result.is_ok()
    }

    /// Rewrites the object from the local file, which was found good.
    async fn repair_object(&self, layer: &Layer, object: &RemoteObject) -> Result<bool, StorageError> {
        let Some(bucket) = self.bucket else { return Ok(false) };
        bucket.check_owner().await?;
        let repair = async {
            object.storage.put_file(RequestClass::Upload, &object.path, layer.path()).await?;
            layer.verify_remote().await
        };
        let result = repair.await;
        if let Err(error) = &result {
            tracing::warn!("{}: not repaired: {error}", object.storage.name_of(&object.path));
        }
        Ok(result.is_ok())
    }

    /// Whether the index part names the layer at this moment.
    async fn names(&self, name: &str) -> Result<bool, StorageError> {
        Ok(self.named_now().await?.is_some_and(|named| named.contains(name)))
    }

    /// The layers that the index part names at this moment; `None` if it is gone.
    async fn named_now(&self) -> Result<Option<BTreeSet<String>>, StorageError> {
        let (Some(bucket), Some(generation)) = (self.bucket, self.index) else { return Ok(None) };
        let Some(index) = bucket.read_index_part(self.timeline, generation).await? else { return Ok(None) };
        let name = |entry: &LayerEntry| entry.file_name(self.tenant, self.timeline).to_string();
        Ok(Some(index.layers.iter().map(name).collect()))
    }

    /// Reports, and if requested removes, objects that nobody names any more.
    async fn check_orphans(&mut self, objects: &Objects, named: &BTreeSet<String>) -> Result<(), StorageError> {
        let Some(bucket) = self.bucket.filter(|_| !objects.is_older) else { return Ok(()) };
        let grace = self.options.grace.as_secs();
        let deleted = objects.index.as_ref().is_some_and(|(_, index)| index.deleted);
        let newest = Newest { generation: bucket.generation, index_part: self.index, deleted, grace };
        let mut orphans = inventory::orphans(&objects.there, named, newest);
        if orphans.is_empty() {
            return Ok(());
        }
        // Layers named since the scrub began are not orphans, nor are those that were replaced and are still read.
        let Some(named) = self.named_now().await? else { return Ok(()) };
        let is_read = |name: &str| self.open.is_some_and(|open| open.graveyard().has(name));
        orphans.retain(|(name, _)| !named.contains(name) && !is_read(name));
        let paths: Vec<RemotePath> =
            orphans.iter().map(|(name, _)| RemotePath::layer(&self.tenant, &self.timeline, name)).collect();
        if self.options.delete_orphans {
            bucket.check_owner().await?;
            bucket.storage.delete(&paths).await?;
        }
        for ((name, reason), path) in orphans.iter().zip(&paths) {
            let bytes = objects.there.get(name).map_or(0, |there| there.size);
            self.add(Place::Bucket, Kind::Orphan, bucket.name(path), reason, bytes, self.options.delete_orphans);
        }
        Ok(())
    }
}
