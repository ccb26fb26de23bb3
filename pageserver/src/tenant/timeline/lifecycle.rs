//! Making, opening and closing timelines.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use pageserver_api::key::PARAMETERS_KEY;
use pageserver_api::parameters::ClusterParameters;
use pageserver_api::shard::TenantShardId;
use redo::RedoContext;
use utils::bin_ser::BeSer;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::Timeline;
use super::dir_lock::DirLock;
use super::flush::GENERATION;
use super::manifest::{Ancestor, LayerEntry, MANIFEST_NAME, Manifest, Origin};
use super::state::{Branching, Layers, RecordLsn, Start, TimelineState};
use super::{read, recovery};
use crate::config::PageServerConf;
use crate::context::RequestContext;
use crate::errors::StorageError;
use crate::l0_flush::{L0FlushConfig, L0FlushGlobalState};
use crate::metrics::{self, METRICS, StorageOperation};
use crate::tenant::layer_map::{Layer, LayerMap, invariants};
use crate::tenant::storage_layer::PersistentLayerDesc;
use crate::virtual_file::fs;

/// A timeline that is to be made from imported layers.
#[derive(Clone, Copy, Debug)]
pub struct NewTimeline {
    /// The tenant shard.
    pub tenant_shard_id: TenantShardId,
    /// The timeline.
    pub timeline_id: TimelineId,
    /// What it is, for ever.
    pub origin: Origin,
    /// Start of the record that ends at the import LSN; 0/0 if not known.
    pub prev_record_lsn: Lsn,
}

impl Origin {
    /// What redo depends on, at import.
    pub(crate) fn redo_context(&self) -> RedoContext {
        RedoContext { version: self.pg_version, data_checksums: self.data_checksums, wal_log_hints: self.wal_log_hints }
    }
}

impl Timeline {
    /// Makes the directory in which layer writers put their files, durably, and clears it of what an earlier attempt
    /// may have left. It becomes a timeline by [`Timeline::create`].
    pub async fn prepare(
        conf: &'static PageServerConf,
        tenant_shard_id: TenantShardId,
        timeline_id: TimelineId,
    ) -> Result<(), StorageError> {
        let dir = conf.timeline_path(&tenant_shard_id, &timeline_id);
        fs::create_dir_all(&dir).await?;
        for parent in dir.ancestors().skip(1).take_while(|parent| parent.starts_with(&conf.workdir)) {
            fs::fsync_dir(parent).await?;
        }
        let _lock = DirLock::take(&dir)?;
        recovery::remove_unfinished(&dir).await
    }

    /// Makes a timeline of finished layers, as [`ImageLayerWriter::finish`] returns them: gives them their names, and
    /// writes the manifest last. History begins at the import LSN, where all of `layers` must be.
    ///
    /// [`ImageLayerWriter::finish`]: crate::tenant::storage_layer::ImageLayerWriter::finish
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if the timeline exists already or the layers do not fit together.
    pub async fn create(
        conf: &'static PageServerConf,
        new: NewTimeline,
        layers: Vec<(PersistentLayerDesc, Utf8PathBuf)>,
        _ctx: &RequestContext,
    ) -> Result<Timeline, StorageError> {
        let NewTimeline { tenant_shard_id, timeline_id, origin, prev_record_lsn } = new;
        let dir = conf.timeline_path(&tenant_shard_id, &timeline_id);
        let lock = DirLock::take(&dir)?;
        if fs::list_dir(&dir).await?.iter().any(|name| name == MANIFEST_NAME) {
            return Err(StorageError::Invalid(format!("timeline {timeline_id} exists already: {dir}")));
        }
        check_import(&layers, &new)?;
        let map = place_all(&dir, layers).await?;
        let consistent = RecordLsn { last: origin.import_lsn, prev: prev_record_lsn };
        let manifest = Manifest {
            tenant_shard_id,
            timeline_id,
            origin,
            disk_consistent_lsn: consistent.last,
            prev_record_lsn: consistent.prev,
            layers: map.iter().map(|layer| LayerEntry::of(layer)).collect(),
        };
        manifest.store(&dir).await?;
        Ok(assemble(conf, manifest, map, lock, None))
    }

    /// Makes a timeline that continues this one from `lsn` on, whatever the size of what is before: it has no layers of
    /// its own, and reads fall through to this timeline.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if `lsn` lies before what is readable or after the last record, or if the timeline
    /// exists.
    pub async fn branch(&self, timeline_id: TimelineId, lsn: Lsn) -> Result<Timeline, StorageError> {
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
        let manifest = Manifest {
            tenant_shard_id,
            timeline_id,
            origin: Origin { import_lsn: lsn, ancestor: Some(ancestor), ..self.state.origin },
            disk_consistent_lsn: lsn,
            prev_record_lsn: if lsn == record.last { record.prev } else { Lsn::INVALID },
            layers: Vec::new(),
        };
        manifest.store(&dir).await?;
        Ok(assemble(conf, manifest, LayerMap::default(), lock, Some(Branching { state: Arc::clone(&self.state), lsn })))
    }

    /// Opens a timeline as its manifest says, its ancestors too, and removes what a crash may have left beside them.
    ///
    /// # Errors
    /// As [`Timeline::open_on`].
    pub async fn open(
        conf: &'static PageServerConf,
        tenant_shard_id: TenantShardId,
        timeline_id: TimelineId,
        ctx: &RequestContext,
    ) -> Result<Timeline, StorageError> {
        let dir = conf.timeline_path(&tenant_shard_id, &timeline_id);
        let manifest = Manifest::load(&dir, tenant_shard_id, timeline_id).await?;
        let ancestor = match manifest.origin.ancestor {
            Some(ancestor) => Some(Box::pin(Self::open(conf, tenant_shard_id, ancestor.timeline_id, ctx)).await?),
            None => None,
        };
        Self::open_on(conf, tenant_shard_id, timeline_id, ancestor.as_ref(), ctx).await
    }

    /// Opens a timeline as its manifest says, and removes what a crash may have left beside it. `ancestor` must be the
    /// one that the manifest names.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] naming the file if manifest or layers are damaged or missing;
    /// [`StorageError::Invalid`] if another process has the timeline open.
    pub async fn open_on(
        conf: &'static PageServerConf,
        tenant_shard_id: TenantShardId,
        timeline_id: TimelineId,
        ancestor: Option<&Timeline>,
        ctx: &RequestContext,
    ) -> Result<Timeline, StorageError> {
        let _timer = metrics::timer(METRICS.storage_operations_seconds_global.of(StorageOperation::LoadLayerMap));
        let dir = conf.timeline_path(&tenant_shard_id, &timeline_id);
        let lock = DirLock::take(&dir)?;
        let manifest = Manifest::load(&dir, tenant_shard_id, timeline_id).await?;
        let branching = branching_of(&dir, &manifest, ancestor)?;
        let map = recovery::recover(&dir, &manifest).await?;
        let timeline = assemble(conf, manifest, map, lock, branching);
        timeline.load_parameters(ctx).await?;
        Ok(timeline)
    }

    /// Parameters that redo depends on may have changed since the import: takes over the newest that are stored.
    async fn load_parameters(&self, ctx: &RequestContext) -> Result<(), StorageError> {
        let own = read::get_own(&self.state, PARAMETERS_KEY, self.last_record_lsn(), ctx).await?;
        let Some(stored) = own else { return Ok(()) };
        let parameters = ClusterParameters::des(&stored)
            .map_err(|error| StorageError::Internal(format!("stored cluster parameters: {error}")))?;
        for (lsn, on) in parameters.wal_log_hints_changes {
            self.set_wal_log_hints(lsn, on);
        }
        Ok(())
    }

    /// Ends all work and waits for it. What was not flushed is lost here and comes again from the WAL.
    pub async fn shutdown(self) {
        self.state.cancel.cancel();
        // In-memory layers keep the gate open as long as they live.
        let _writer = self.state.writer.lock().await;
        let _flusher = self.state.flusher.lock().await;
        self.state.update_layers(|layers| *layers = Layers { map: layers.map.clone(), ..Layers::default() });
        drop((_writer, _flusher));
        self.state.gate.close().await;
        self.state.unlock();
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

async fn place_all(dir: &Utf8Path, layers: Vec<(PersistentLayerDesc, Utf8PathBuf)>) -> Result<LayerMap, StorageError> {
    let (mut placed, mut temporary) = (Vec::new(), Vec::new());
    for (desc, path) in layers {
        placed.push(Arc::new(Layer::new(dir, desc, GENERATION)));
        temporary.push(path);
    }
    let map = LayerMap::new(placed.clone()).map_err(|violation| StorageError::Invalid(violation.to_string()))?;
    for (layer, temporary) in placed.iter().zip(&temporary) {
        fs::rename(temporary, layer.path()).await?;
    }
    fs::fsync_dir(dir).await?;
    Ok(map)
}

/// Where the timeline of `manifest` branches off `ancestor`.
fn branching_of(
    dir: &Utf8Path,
    manifest: &Manifest,
    ancestor: Option<&Timeline>,
) -> Result<Option<Branching>, StorageError> {
    let given = ancestor.map(|timeline| timeline.state.timeline_id);
    match (manifest.origin.ancestor, ancestor) {
        (None, None) => Ok(None),
        (Some(named), Some(ancestor)) if given == Some(named.timeline_id) => {
            Ok(Some(Branching { state: Arc::clone(&ancestor.state), lsn: named.lsn }))
        }
        (named, _) => {
            Err(StorageError::Internal(format!("{dir}: the ancestor is {named:?}, but it is opened with {given:?}")))
        }
    }
}

fn assemble(
    conf: &'static PageServerConf,
    manifest: Manifest,
    map: LayerMap,
    lock: DirLock,
    ancestor: Option<Branching>,
) -> Timeline {
    let Manifest { tenant_shard_id, timeline_id, origin, disk_consistent_lsn, prev_record_lsn, .. } = manifest;
    let disk_consistent = RecordLsn { last: disk_consistent_lsn, prev: prev_record_lsn };
    let limit = L0FlushConfig::Direct { max_concurrency: conf.l0_flush_max_concurrency };
    let l0_flush = L0FlushGlobalState::new(limit);
    let start = Start { conf, tenant_shard_id, timeline_id, origin, ancestor, map, disk_consistent, lock, l0_flush };
    Timeline { state: Arc::new(TimelineState::new(start)) }
}
