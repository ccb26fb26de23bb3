//! Opens existing timelines: from their manifest on disk, or from disk and bucket together.

use std::sync::Arc;

use camino::Utf8Path;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::Timeline;
use super::dir_lock::DirLock;
use super::lifecycle::assemble;
use super::manifest::{self, Manifest};
use super::recovery::{self, InBucket, Recovered};
use super::state::Branching;
use crate::config::PageServerConf;
use crate::context::RequestContext;
use crate::tenant::ahead;
use crate::tenant::remote::{IndexPart, TenantRemote, layer_names};
use errors::StorageError;
use metrics::{self, METRICS, StorageOperation};
use virtual_file::fs;

/// What to open a timeline from, if its tenant is in a bucket.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The authoritative manifest, from disk or bucket.
    pub(crate) manifest: Manifest,
    /// The disk does not have this manifest.
    pub(crate) from_bucket: bool,
    /// The index part found in the bucket.
    pub(crate) found: Option<IndexPart>,
    /// The tenant.
    pub(crate) remote: Arc<TenantRemote>,
}

impl Timeline {
    /// Opens a timeline and its ancestors from their manifests, and removes crash leftovers beside them. Layers that
    /// are not on disk are read from the bucket, if there is one; nothing is ever written there.
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
        let ancestor = match manifest.ancestor() {
            Some(ancestor) => Some(Box::pin(Self::open(conf, tenant_shard_id, ancestor.timeline_id, ctx)).await?),
            None => None,
        };
        Self::open_on(conf, tenant_shard_id, timeline_id, ancestor.as_ref(), ctx).await
    }

    /// Opens a timeline from its manifest, and removes crash leftovers beside it. `ancestor` must be the one that the
    /// manifest names.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] naming the file if the manifest or layers are damaged or missing;
    /// [`StorageError::Invalid`] if another process has the timeline open.
    pub async fn open_on(
        conf: &'static PageServerConf,
        tenant_shard_id: TenantShardId,
        timeline_id: TimelineId,
        ancestor: Option<&Timeline>,
        _ctx: &RequestContext,
    ) -> Result<Timeline, StorageError> {
        let _timer = metrics::timer(METRICS.storage_operations_seconds_global.of(StorageOperation::LoadLayerMap));
        let dir = conf.timeline_path(&tenant_shard_id, &timeline_id);
        let lock = DirLock::take(&dir)?;
        let manifest = Manifest::load(&dir, tenant_shard_id, timeline_id).await?;
        manifest::take_in_told(&dir, &manifest).await?;
        let branching = branching_of(&dir, &manifest, ancestor)?;
        let storage = conf.remote_storage.clone().filter(|_| manifest.in_bucket);
        let bucket = storage.map(|storage| InBucket { storage, layers: None });
        let Recovered { map, former_layers } =
            recovery::recover(&conf.resources, &dir, &manifest, bucket.as_ref()).await?;
        recovery::remove_all(&former_layers).await?;
        Ok(assemble(conf, manifest, map, lock, branching, None))
    }

    /// Opens a timeline from disk and bucket together, and resumes its upload.
    pub(crate) async fn open_with(
        conf: &'static PageServerConf,
        opening: Opening,
        ancestor: Option<&Timeline>,
    ) -> Result<Timeline, StorageError> {
        let _timer = metrics::timer(METRICS.storage_operations_seconds_global.of(StorageOperation::LoadLayerMap));
        let Opening { manifest, from_bucket, found, remote } = opening;
        let dir = conf.timeline_path(&manifest.tenant_shard_id, &manifest.timeline_id);
        let branching = branching_of(&dir, &manifest, ancestor)?;
        if from_bucket {
            fs::create_dir_durably(&dir, &conf.workdir).await?;
        }
        let lock = DirLock::take(&dir)?;
        if from_bucket {
            // From now on the directory's manifest is the index part.
            Manifest { in_bucket: true, ..manifest.clone() }.store(&dir).await?;
            let id = (manifest.tenant_shard_id, manifest.timeline_id);
            ahead::take(conf, id, &dir, || layer_names(&manifest)).await?;
        }
        manifest::take_in_told(&dir, &manifest).await?;
        let layers = found.as_ref().map(|found| layer_names(&found.manifest));
        let bucket = InBucket { storage: remote.storage().clone(), layers: Some(layers.unwrap_or_default()) };
        let Recovered { map, former_layers } =
            recovery::recover(&conf.resources, &dir, &manifest, Some(&bucket)).await?;
        let timeline = assemble(conf, manifest, map, lock, branching, Some((remote, found)));
        // Somebody may be waiting for the timeline.
        recovery::remove_aside(&timeline.state, former_layers);
        Ok(timeline)
    }
}

/// Where the timeline of `manifest` branches off `ancestor`.
fn branching_of(
    dir: &Utf8Path,
    manifest: &Manifest,
    ancestor: Option<&Timeline>,
) -> Result<Option<Branching>, StorageError> {
    let given = ancestor.map(|timeline| timeline.state.timeline_id);
    match (manifest.ancestor(), ancestor) {
        (None, None) => Ok(None),
        (Some(named), Some(ancestor)) if given == Some(named.timeline_id) => {
            Ok(Some(Branching { state: Arc::clone(&ancestor.state), lsn: named.lsn }))
        }
        (named, _) => {
            Err(StorageError::Internal(format!("{dir}: the ancestor is {named:?}, but it is opened with {given:?}")))
        }
    }
}
