//! Reconciles the files on disk with the manifest.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};

use super::manifest::{MANIFEST_NAME, Manifest, WAL_SOURCE_NAME};
use super::state::TimelineState;
use crate::resources::Resources;
use crate::tenant::layer_map::{Layer, LayerMap, invariants};
use crate::tenant::storage_layer::{EPHEMERAL_PREFIX, LayerFileName, PARTIAL_SUFFIX, RemoteObject};
use errors::{ErrorKind, StorageError};
use remote_storage::{RemotePath, RemoteStorage};
use virtual_file::fs::{self, TEMP_SUFFIX};

/// What [`recover`] found.
pub(super) struct Recovered {
    pub(super) map: LayerMap,
    /// Files of layers that are none of the timeline's. No layer that is made or fetched later has their names.
    pub(super) former_layers: Vec<Utf8PathBuf>,
}

/// The layers of the timeline in `dir`. Checks that each is on disk in full size or in the bucket; removes leftovers
/// other than those of layers.
pub(super) async fn recover(
    resources: &Resources,
    dir: &Utf8Path,
    manifest: &Manifest,
    bucket: Option<&InBucket>,
) -> Result<Recovered, StorageError> {
    let whose = (manifest.tenant_shard_id, manifest.timeline_id);
    let prefix = RemotePath::timeline(&whose.0, &whose.1);
    let files = fs::list_dir(dir).await?;
    let names: HashSet<&str> = files.iter().map(String::as_str).collect();
    let mut layers: Vec<Arc<Layer>> = Vec::with_capacity(manifest.layers.len());
    for entry in &manifest.layers {
        let local = entry.to_layer(resources, dir, whose.0, whose.1);
        let remote = bucket.and_then(|bucket| bucket.object(&prefix, &local));
        let layer = match (check_file(&names, &local), remote) {
            (Ok(()), None) => local,
            (Ok(()), Some(object)) => {
                local.set_remote(object);
                local
            }
            (Err(StorageError::Corrupt { .. }), Some(object)) => {
                // Of a tenant that is taken over most are missing.
                if local.path().file_name().is_some_and(|name| names.contains(name)) {
                    fs::unlink(local.path()).await?;
                }
                local.in_bucket_only(dir, object)
            }
            (Err(error), _) => return Err(error),
        };
        layers.push(Arc::new(layer));
    }
    let map = check_manifest(dir, manifest, &layers)?;
    let former_layers = remove_leftovers(dir, &files, &layers).await?;
    Ok(Recovered { map, former_layers })
}

/// What the bucket has of a timeline.
pub(super) struct InBucket {
    pub(super) storage: RemoteStorage,
    /// Names of the layers there; `None` if not known: then the bucket is taken to have all of them.
    pub(super) layers: Option<HashSet<LayerFileName>>,
}

impl InBucket {
    /// The object of a layer of the timeline at `prefix`, if there is one.
    fn object(&self, prefix: &RemotePath, layer: &Layer) -> Option<RemoteObject> {
        let there = self.layers.as_ref().is_none_or(|layers| layers.contains(layer.file_name()));
        let name = layer.path().file_name().filter(|_| there)?;
        Some(RemoteObject { storage: self.storage.clone(), path: prefix.child(name) })
    }
}

fn check_manifest(dir: &Utf8Path, manifest: &Manifest, layers: &[Arc<Layer>]) -> Result<LayerMap, StorageError> {
    let contradiction = |reason: String| StorageError::Corrupt { path: Manifest::path(dir), offset: 0, reason };
    if manifest.disk_consistent_lsn < manifest.origin.import_lsn {
        let reason = format!(
            "consistent LSN {} is below the import LSN {}",
            manifest.disk_consistent_lsn, manifest.origin.import_lsn
        );
        return Err(contradiction(reason));
    }
    let descs = layers.iter().map(|layer| layer.desc());
    invariants::within_consistent(descs, manifest.disk_consistent_lsn)
        .map_err(|violation| contradiction(violation.to_string()))?;
    LayerMap::new(layers.to_vec()).map_err(|violation| contradiction(violation.to_string()))
}

/// Checks that the layer's file exists and has its size. Contents are checked when they are read.
fn check_file(names: &HashSet<&str>, layer: &Layer) -> Result<(), StorageError> {
    let corrupt = |offset, reason| StorageError::Corrupt { path: layer.path().to_owned(), offset, reason };
    if !layer.path().file_name().is_some_and(|name| names.contains(name)) {
        return Err(corrupt(0, "the manifest names this layer, but the file is missing".to_owned()));
    }
    let (found, expected) = (fs::file_len(layer.path())?, layer.desc().file_size);
    if found == expected {
        return Ok(());
    }
    Err(corrupt(found.min(expected), format!("file has {found} bytes, the manifest says {expected}")))
}

/// Removes files of ours that the manifest does not name, but for those of layers, which it returns. Other files are
/// left alone.
async fn remove_leftovers(
    dir: &Utf8Path,
    names: &[String],
    layers: &[Arc<Layer>],
) -> Result<Vec<Utf8PathBuf>, StorageError> {
    let kept: HashMap<&str, &Arc<Layer>> =
        layers.iter().filter_map(|layer| Some((layer.path().file_name()?, layer))).collect();
    // Cached blocks of a layer whose whole file is not here.
    let is_cache = |name: &str| {
        let layer = name.strip_suffix(PARTIAL_SUFFIX).and_then(|layer| kept.get(layer));
        layer.is_some_and(|layer| !layer.is_local())
    };
    let is_kept = |name: &str| is_kept_by_name(name) || kept.contains_key(name) || is_cache(name);
    let mut former_layers = Vec::new();
    for name in names.iter().filter(|name| !is_kept(name)) {
        if fault::planted(fault::Bug::KeepLeftovers) {
            continue;
        }
        if is_layer(name) {
            former_layers.push(dir.join(name));
        } else if is_temporary(name) {
            tracing::info!("{dir}: removing leftover {name}");
            fs::unlink(&dir.join(name)).await?;
        } else {
            tracing::warn!("{dir}: leaving {name} alone, which is no file of a timeline");
        }
    }
    if let Some(first) = former_layers.first() {
        tracing::info!("{dir}: removing leftovers of {} layers, such as {first}", former_layers.len());
    }
    Ok(former_layers)
}

/// Removes files while the timeline is served: a server that owned it before may have thousands. A start removes those
/// that are left when it is closed.
pub(super) fn remove_aside(state: &Arc<TimelineState>, files: Vec<Utf8PathBuf>) {
    let Some(entered) = state.enter().ok().filter(|_| !files.is_empty()) else { return };
    let cancel = state.cancel.clone();
    let work = async move {
        let _entered = entered;
        for file in files {
            if cancel.is_cancelled() {
                return;
            }
            if let Err(error) = fs::unlink(&file).await {
                tracing::warn!("could not remove a leftover, the next start will: {error}");
            }
        }
    };
    drop(env::spawn::aside("removal of former layers", work, drop));
}

pub(super) async fn remove_all(files: &[Utf8PathBuf]) -> Result<(), StorageError> {
    for file in files {
        fs::unlink(file).await?;
    }
    Ok(())
}

/// Removes what an unfinished import wrote into `dir`. Does nothing to a timeline.
pub(super) async fn remove_unfinished(dir: &Utf8Path) -> Result<(), StorageError> {
    let names = fs::list_dir(dir).await?;
    if names.iter().any(|name| name == MANIFEST_NAME) {
        return Ok(());
    }
    remove_all(&remove_leftovers(dir, &names, &[]).await?).await
}

fn is_kept_by_name(name: &str) -> bool {
    name == MANIFEST_NAME || name == WAL_SOURCE_NAME
}

fn is_layer(name: &str) -> bool {
    name.strip_suffix(PARTIAL_SUFFIX).unwrap_or(name).parse::<LayerFileName>().is_ok()
}

/// Of an earlier process. This one may use the name again.
fn is_temporary(name: &str) -> bool {
    let name = name.strip_suffix(PARTIAL_SUFFIX).unwrap_or(name);
    name.ends_with(TEMP_SUFFIX) || name.starts_with(EPHEMERAL_PREFIX)
}

/// Whether the directory has a manifest, and thus is a timeline rather than the rest of an unfinished import.
pub async fn has_manifest(dir: &Utf8Path) -> Result<bool, StorageError> {
    match fs::file_len(&Manifest::path(dir)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::Gone => Ok(false),
        Err(error) => Err(error),
    }
}
