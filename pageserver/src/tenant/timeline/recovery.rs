//! What is on disk against what the manifest says.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use camino::Utf8Path;

use super::manifest::{MANIFEST_NAME, Manifest};
use crate::errors::{ErrorKind, StorageError};
use crate::tenant::layer_map::{Layer, LayerMap, invariants};
use crate::tenant::storage_layer::{EPHEMERAL_PREFIX, LayerName};
use crate::virtual_file::fs::{self, TEMP_SUFFIX};
use crate::virtual_file::{OpenMode, VirtualFile};

/// Where a timeline's WAL comes from; `crate::walreceiver` reads and writes it.
pub(crate) const WAL_SOURCE_NAME: &str = "wal_source";

/// The layers of the timeline in `dir`. Checks that they are there and whole, and removes leftovers.
pub(super) async fn recover(dir: &Utf8Path, manifest: &Manifest) -> Result<LayerMap, StorageError> {
    let layers: Vec<Arc<Layer>> = manifest
        .layers
        .iter()
        .map(|entry| Arc::new(entry.to_layer(dir, manifest.tenant_shard_id, manifest.timeline_id)))
        .collect();
    let map = check_manifest(dir, manifest, &layers)?;
    let names = fs::list_dir(dir).await?;
    check_files(&names, &layers).await?;
    remove_leftovers(dir, &names, &layers).await?;
    Ok(map)
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

/// Every layer's file exists and has its size. Contents are checked when they are read.
async fn check_files(names: &[String], layers: &[Arc<Layer>]) -> Result<(), StorageError> {
    let names: HashSet<&str> = names.iter().map(String::as_str).collect();
    for layer in layers {
        let corrupt = |offset, reason| StorageError::Corrupt { path: layer.path().to_owned(), offset, reason };
        if !layer.path().file_name().is_some_and(|name| names.contains(name)) {
            return Err(corrupt(0, "the manifest names this layer, but the file is missing".to_owned()));
        }
        let (found, expected) =
            (VirtualFile::open(layer.path(), OpenMode::Read).await?.size()?, layer.desc().file_size);
        if found != expected {
            return Err(corrupt(found.min(expected), format!("file has {found} bytes, the manifest says {expected}")));
        }
    }
    Ok(())
}

/// Removes files of ours that the manifest does not name. Others are left alone.
async fn remove_leftovers(dir: &Utf8Path, names: &[String], layers: &[Arc<Layer>]) -> Result<(), StorageError> {
    let kept: HashMap<&str, &Arc<Layer>> =
        layers.iter().filter_map(|layer| Some((layer.path().file_name()?, layer))).collect();
    for name in names.iter().filter(|name| !is_kept_by_name(name) && !kept.contains_key(name.as_str())) {
        if is_ours(name) && !fault::planted(fault::Bug::KeepLeftovers) {
            tracing::info!("{dir}: removing leftover {name}");
            fs::unlink(&dir.join(name)).await?;
        } else {
            tracing::warn!("{dir}: leaving {name} alone, which is no file of a timeline");
        }
    }
    Ok(())
}

/// Removes what was written into `dir` before an import ended early. Does nothing to a timeline.
pub(super) async fn remove_unfinished(dir: &Utf8Path) -> Result<(), StorageError> {
    let names = fs::list_dir(dir).await?;
    if names.iter().any(|name| name == MANIFEST_NAME) { Ok(()) } else { remove_leftovers(dir, &names, &[]).await }
}

fn is_kept_by_name(name: &str) -> bool {
    name == MANIFEST_NAME || name == WAL_SOURCE_NAME
}

fn is_ours(name: &str) -> bool {
    name.ends_with(TEMP_SUFFIX) || name.starts_with(EPHEMERAL_PREFIX) || LayerName::parse_file_name(name).is_ok()
}

/// The manifest is there: the directory is a timeline, not the rest of an import that did not end.
pub(crate) async fn has_manifest(dir: &Utf8Path) -> Result<bool, StorageError> {
    match fs::list_dir(dir).await {
        Ok(names) => Ok(names.iter().any(|name| name == MANIFEST_NAME)),
        Err(error) if error.kind() == ErrorKind::Gone => Ok(false),
        Err(error) => Err(error),
    }
}
