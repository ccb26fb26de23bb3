//! Creates, branches and closes timelines; `open` opens them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use pageserver_api::shard::TenantShardId;
use redo::RedoContext;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::Timeline;
use super::dir_lock::DirLock;
use super::keeping::Keeping;
use super::manifest::{Ancestor, Kept, LayerEntry, MANIFEST_NAME, Manifest, Origin, Told};
use super::retention::Retention;
use super::state::{Branching, RecordLsn, Start, TimelineState};
use super::{publish, recovery, upload};
use crate::config::PageServerConf;
use crate::context::RequestContext;
use crate::resources::Resources;
use crate::tenant::layer_map::{Graveyard, Layer, LayerMap, invariants};
use crate::tenant::remote::{IndexPart, TenantRemote, Uploader};
use crate::tenant::storage_layer::{LayerIdentity, PersistentLayerDesc, read_identity};
use errors::StorageError;
use metrics::{self, METRICS, StorageOperation};
use virtual_file::fs;

/// An import with layers that are only in the bucket is abandoned when uploads make no progress for this long.
const UPLOADS_STALLED: Duration = Duration::from_secs(120);

/// The finished layers of an import: what each covers, and its temporary name.
#[derive(Debug)]
pub struct Imported {
    /// Each layer, and the file that holds it.
    pub layers: Vec<(PersistentLayerDesc, Utf8PathBuf)>,
    /// Layers that are only in the bucket, by temporary name here; the bucket has them under their final names.
    pub cold: HashMap<Utf8PathBuf, LayerIdentity>,
    /// Externally supplied metadata; set here so that the timeline never exists without it.
    pub told: Option<Told>,
}

/// A timeline to be created from imported layers.
#[derive(Clone, Copy, Debug)]
pub struct NewTimeline {
    /// The tenant shard.
    pub tenant_shard_id: TenantShardId,
    /// The timeline.
    pub timeline_id: TimelineId,
    /// Its immutable properties.
    pub origin: Origin,
    /// Start of the record that ends at the import LSN; 0/0 if not known.
    pub prev_record_lsn: Lsn,
}

impl Origin {
    /// What redo depends on, as of the import.
    pub(crate) fn redo_context(&self) -> RedoContext {
        RedoContext { version: self.pg_version, data_checksums: self.data_checksums, wal_log_hints: self.wal_log_hints }
    }
}

impl Timeline {
    /// Durably creates the directory for a new timeline's layer files, and removes leftovers of earlier attempts.
    /// [`Timeline::create`] makes it a timeline.
    pub async fn prepare(
        conf: &'static PageServerConf,
        tenant_shard_id: TenantShardId,
        timeline_id: TimelineId,
    ) -> Result<(), StorageError> {
        let dir = conf.timeline_path(&tenant_shard_id, &timeline_id);
        fs::create_dir_durably(&dir, &conf.workdir).await?;
        let _lock = DirLock::take(&dir)?;
        recovery::remove_unfinished(&dir).await
    }

    /// Creates a timeline from finished layers, as [`ImageLayerWriter::finish`] returns them: names them, then writes
    /// the manifest. History begins at the import LSN, above which no layer may have content.
    ///
    /// [`ImageLayerWriter::finish`]: crate::tenant::storage_layer::ImageLayerWriter::finish
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if the timeline exists already or the layers do not fit together.
    pub async fn create(
        conf: &'static PageServerConf,
        new: NewTimeline,
        layers: Vec<(PersistentLayerDesc, Utf8PathBuf)>,
        ctx: &RequestContext,
    ) -> Result<Timeline, StorageError> {
        Self::create_with(conf, new, layers, None, ctx).await
    }

    /// As [`Timeline::create`], and uploads the timeline to the bucket if the tenant is in one.
    pub async fn create_with(
        conf: &'static PageServerConf,
        new: NewTimeline,
        layers: Vec<(PersistentLayerDesc, Utf8PathBuf)>,
        remote: Option<Arc<TenantRemote>>,
        _ctx: &RequestContext,
    ) -> Result<Timeline, StorageError> {
        Self::create_in(conf, new, Imported { layers, cold: HashMap::new(), told: None }, remote).await
    }

    /// As [`Timeline::create_with`], from layers some of which may be only in the bucket.
    pub async fn create_in(
        conf: &'static PageServerConf,
        new: NewTimeline,
        imported: Imported,
        remote: Option<Arc<TenantRemote>>,
    ) -> Result<Timeline, StorageError> {
        let NewTimeline { tenant_shard_id, timeline_id, origin, prev_record_lsn } = new;
        let dir = conf.timeline_path(&tenant_shard_id, &timeline_id);
        let lock = DirLock::take(&dir)?;
        if fs::list_dir(&dir).await?.iter().any(|name| name == MANIFEST_NAME) {
            return Err(StorageError::Invalid(format!("timeline {timeline_id} exists already: {dir}")));
        }
        check_import(&imported.layers, &new)?;
        let told = imported.told.clone();
        let generation = remote.as_ref().map_or(0, |remote| remote.generation());
        let map = place_all(&conf.resources, &dir, imported, remote.as_deref()).await?;
        let consistent = RecordLsn { last: origin.import_lsn, prev: prev_record_lsn };
        let mut manifest = new_manifest(tenant_shard_id, timeline_id, origin, consistent);
        (manifest.generation, manifest.wal_source) = (generation, told);
        manifest.layers = map.iter().map(|layer| LayerEntry::of(layer)).collect();
        let all_here = map.iter().all(|layer| layer.is_local());
        if all_here {
            manifest.store(&dir).await?;
        }
        let timeline = assemble(conf, manifest, map, lock, None, remote.map(|remote| (remote, None)));
        if all_here { Ok(timeline) } else { publish_first(timeline).await }
    }

    /// Creates a timeline that continues this one from `lsn` on, at a cost independent of the size of the history: it
    /// has no layers of its own, and reads fall through to this timeline.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if `lsn` is below the readable range or after the last record, or if the timeline
    /// exists.
    pub async fn branch(&self, timeline_id: TimelineId, lsn: Lsn) -> Result<Timeline, StorageError> {
        self.branch_with(timeline_id, lsn, None).await
    }

    /// As [`Timeline::branch`], with externally supplied metadata.
    pub(crate) async fn branch_with(
        &self,
        timeline_id: TimelineId,
        lsn: Lsn,
        told: Option<Told>,
    ) -> Result<Timeline, StorageError> {
        let _timer = metrics::timer(METRICS.storage_operations_seconds_global.of(StorageOperation::CreateBranch));
        let (conf, record) = (self.state.conf, self.record_lsn());
        self.check_readable(lsn)?;
        if lsn > record.last {
            return Err(StorageError::Invalid(format!(
                "LSN {lsn} is after the last record, which ends at {}",
                record.last
            )));
        }
        let tenant_shard_id = self.state.tenant_shard_id;
        Timeline::prepare(conf, tenant_shard_id, timeline_id).await?;
        let dir = conf.timeline_path(&tenant_shard_id, &timeline_id);
        let lock = DirLock::take(&dir)?;
        if recovery::has_manifest(&dir).await? {
            return Err(StorageError::Invalid(format!("timeline {timeline_id} exists already: {dir}")));
        }
        let ancestor = Ancestor { timeline_id: self.state.timeline_id, lsn };
        let origin = Origin { import_lsn: lsn, ancestor: Some(ancestor), ..self.state.origin };
        let prev = if lsn == record.last { record.prev } else { Lsn::INVALID };
        let mut manifest = new_manifest(tenant_shard_id, timeline_id, origin, RecordLsn { last: lsn, prev });
        (manifest.generation, manifest.wal_source) = (self.state.generation, told);
        manifest.store(&dir).await?;
        let remote = self.state.uploader.as_ref().map(|uploader| (Arc::clone(uploader.remote()), None));
        let branching = Branching { state: Arc::clone(&self.state), lsn };
        Ok(assemble(conf, manifest, LayerMap::default(), lock, Some(branching), remote))
    }

    /// Ends all work and waits for it. Unflushed data is lost here and comes again from the WAL; what was not
    /// uploaded is uploaded after the next start.
    pub async fn shutdown(self) {
        self.state.cancel.cancel();
        if let Some(uploader) = &self.state.uploader {
            uploader.stop().await;
        }
        if let Err(error) = upload::note_in_bucket(&self.state).await {
            let timeline = self.state.timeline_id;
            tracing::warn!(%timeline, "the manifest does not say that it is in the bucket: {error}");
        }
        // In-memory layers hold the gate open as long as they live.
        let _ingest = self.state.ingest.lock().await;
        let _flusher = self.state.flusher.lock().await;
        self.state.forget_memory();
        drop((_ingest, _flusher));
        self.state.gate.close().await;
        for layer in self.state.layers().map.iter().chain(&self.state.graveyard.layers()) {
            layer.close().await;
        }
        self.state.unlock();
    }
}

/// The manifest of a timeline that has no layers and is not stored anywhere yet.
fn new_manifest(
    tenant_shard_id: TenantShardId,
    timeline_id: TimelineId,
    origin: Origin,
    consistent: RecordLsn,
) -> Manifest {
    Manifest {
        tenant_shard_id,
        timeline_id,
        generation: 0,
        in_bucket: false,
        deleted: false,
        wal_source: None,
        origin,
        wal_log_hints_changes: Vec::new(),
        disk_consistent_lsn: consistent.last,
        prev_record_lsn: consistent.prev,
        edition: 0,
        gc_cutoff: Lsn::INVALID,
        retained: Vec::new(),
        layers: Vec::new(),
        kept: Kept::default(),
        detached: false,
    }
}

fn check_import(layers: &[(PersistentLayerDesc, Utf8PathBuf)], new: &NewTimeline) -> Result<(), StorageError> {
    let invalid = |reason: String| Err(StorageError::Invalid(reason));
    for (desc, path) in layers {
        if (desc.tenant_shard_id, desc.timeline_id) != (new.tenant_shard_id, new.timeline_id) {
            return invalid(format!("layer {path} is of another timeline"));
        }
    }
    let descs = layers.iter().map(|(desc, _)| desc);
    match invariants::within_consistent(descs, new.origin.import_lsn) {
        Err(violation) => invalid(violation.to_string()),
        Ok(()) => Ok(()),
    }
}

/// With layers that are only in the bucket, the index part must precede the manifest: a manifest whose layers are
/// missing here is useless to a reader that does not know that the bucket has them.
async fn publish_first(timeline: Timeline) -> Result<Timeline, StorageError> {
    let written = match first_index_part(&timeline).await {
        Ok(()) => upload::note_in_bucket(&timeline.state).await,
        Err(error) => Err(error),
    };
    let Err(error) = written else { return Ok(timeline) };
    if let Err(left) = timeline.bury().await {
        tracing::warn!(timeline = %timeline.timeline_id(), "it may be left in the bucket: {left}");
    }
    timeline.shutdown().await;
    Err(error)
}

/// Waits for the index part as long as uploads make progress.
async fn first_index_part(timeline: &Timeline) -> Result<(), StorageError> {
    let mut waiting = u64::MAX;
    while !timeline.wait_uploaded(UPLOADS_STALLED).await {
        let info = timeline.info();
        if timeline.fenced().is_some() || info.upload_bytes >= waiting {
            let reason = timeline.fenced().or(info.upload_error).unwrap_or_default();
            return Err(StorageError::NoRoom(format!("the import could not be published in its bucket: {reason}")));
        }
        waiting = info.upload_bytes;
    }
    Ok(())
}

async fn place_all(
    resources: &Resources,
    dir: &Utf8Path,
    imported: Imported,
    remote: Option<&TenantRemote>,
) -> Result<LayerMap, StorageError> {
    let generation = remote.map_or(1, TenantRemote::generation);
    let (mut placed, mut temporary) = (Vec::new(), Vec::new());
    for (desc, path) in imported.layers {
        let layer = match (imported.cold.get(&path), remote) {
            (Some(identity), Some(remote)) => {
                let name = desc.layer_name().file_name(generation, identity.file_id);
                let object = remote.layer_object(desc.timeline_id, &name.to_string());
                Layer::cold(resources, dir, desc, name, *identity, object)
            }
            _ => {
                let identity = read_identity(&path).await?;
                Layer::new(resources, dir, desc, generation, identity)
            }
        };
        placed.push(Arc::new(layer));
        temporary.push(path);
    }
    let map = LayerMap::new(placed.clone()).map_err(|violation| StorageError::Invalid(violation.to_string()))?;
    for (layer, temporary) in placed.iter().zip(&temporary).filter(|(layer, _)| layer.is_local()) {
        fs::rename(temporary, layer.path()).await?;
    }
    fs::fsync_dir(dir).await?;
    Ok(map)
}

/// The handle of a timeline whose layers are `map`. With a bucket, the uploader starts from what was found there.
pub(super) fn assemble(
    conf: &'static PageServerConf,
    manifest: Manifest,
    map: LayerMap,
    lock: DirLock,
    ancestor: Option<Branching>,
    remote: Option<(Arc<TenantRemote>, Option<IndexPart>)>,
) -> Timeline {
    let Manifest { tenant_shard_id, timeline_id, origin, generation, in_bucket, .. } = manifest;
    let graveyard = Arc::new(Graveyard::new(&conf.disk_budget));
    // Without its ancestor a branch in the bucket could not be opened.
    let after = ancestor.as_ref().and_then(|of| of.state.uploader.as_ref()).map(Uploader::watch_in_bucket);
    let start_uploader = |(remote, found)| Uploader::start(remote, timeline_id, found, after, Arc::clone(&graveyard));
    let uploader = remote.map(start_uploader);
    let disk_consistent = RecordLsn { last: manifest.disk_consistent_lsn, prev: manifest.prev_record_lsn };
    let start = Start {
        conf,
        tenant_shard_id,
        timeline_id,
        origin,
        ancestor,
        map: map.clone(),
        disk_consistent,
        edition: manifest.edition,
        retention: Retention { cutoff: manifest.gc_cutoff, retained: manifest.retained.clone() },
        keeping: Keeping::of(&manifest.kept, env::clock::steady_now()),
        graveyard,
        lock,
        generation,
        in_bucket,
        detached: manifest.detached,
        told: manifest.wal_source.clone(),
        uploader,
    };
    let timeline = Timeline { state: Arc::new(TimelineState::new(start)) };
    for (lsn, on) in &manifest.wal_log_hints_changes {
        timeline.set_wal_log_hints(*lsn, *on);
    }
    if timeline.state.uploader.is_some() {
        publish::submit(&timeline.state, manifest, &map);
        let (state, panicked) = (Arc::clone(&timeline.state), Arc::clone(&timeline.state));
        env::spawn::watched("note that it is in the bucket", upload::note_when_in_bucket(state), move |reason| {
            panicked.note_panic(reason);
        });
    }
    timeline
}
