//! Decides the state of a timeline from its manifest on disk and its index part in the bucket, even if the index part
//! is damaged, missing, or older than it should be.
//!
//! An intact manifest of the generation that wrote the index part, or of a later one, contains everything that the
//! index part did. Without such a manifest nothing is guessed here: the timeline does not open until a scrub has
//! rewritten the index part.

use std::collections::HashMap;
use std::sync::Arc;

use camino::Utf8Path;
use utils::id::TimelineId;

use super::removal::remove_deleted;
use crate::config::PageServerConf;
use crate::tenant::remote::{
    Decision, IndexPart, Own, Said, Spare, TenantRemote, decide, lost_index_part, outdated, said_of, trace,
};
use crate::tenant::storage_layer::LayerFileName;
use crate::tenant::timeline::{Manifest, Opening, has_manifest};
use errors::{ErrorKind, StorageError};
use remote_storage::{Listed, RemotePath, RequestClass};
use virtual_file::fs;

/// How to repair an index part.
const MEND: &str = "`pagectl scrub --running --repair-bucket` writes it anew from the timeline's layers";

/// Decides the state of a timeline; `None` if it does not exist.
pub(super) async fn locate(
    conf: &'static PageServerConf,
    remote: Arc<TenantRemote>,
    id: TimelineId,
    own: Own,
) -> (TimelineId, Result<Option<Opening>, StorageError>) {
    (id, locate_inner(conf, remote, id, own).await)
}

async fn locate_inner(
    conf: &'static PageServerConf,
    remote: Arc<TenantRemote>,
    id: TimelineId,
    own: Own,
) -> Result<Option<Opening>, StorageError> {
    let dir = conf.timeline_path(&remote.tenant_shard_id(), &id);
    let said = said_of(&remote, id, own).await?;
    let local = local_manifest(&remote, id, &dir, &said).await?;
    let found = match said {
        Said::Whole(found) => Some(found),
        Said::Nothing { spare } => without(&remote, id, local.as_ref(), spare).await?,
        Said::Damaged { generation, error, older, spare } => {
            let manifest = instead(&remote, id, local.as_ref(), generation, error).await?;
            Some(IndexPart { manifest, older, modified: 0, spare })
        }
    };
    let opening = |manifest, from_bucket, found: Option<IndexPart>| {
        let found = found.filter(|found| !found.manifest.deleted);
        Ok(Some(Opening { manifest, from_bucket, found, remote: Arc::clone(&remote) }))
    };
    let index = found.as_ref().map(|found| &found.manifest);
    match decide(local, index, remote.storage().url()) {
        Decision::Nothing => Ok(None),
        Decision::Local(manifest) => opening(manifest, false, found),
        Decision::Bucket(manifest) => {
            if let Some(found) = &found {
                check_age(&remote, id, found).await?;
            }
            opening(manifest, true, found)
        }
        Decision::Refused(reason) => Err(StorageError::Invalid(reason)),
        Decision::Deleted => {
            remove_deleted(Arc::clone(&conf.resources.removals), &remote, id, &dir, found).await?;
            Ok(None)
        }
    }
}

/// Loads the manifest in the timeline's directory. A directory without one is the remains of something unfinished.
async fn local_manifest(
    remote: &TenantRemote,
    id: TimelineId,
    dir: &Utf8Path,
    said: &Said,
) -> Result<Option<Manifest>, StorageError> {
    let is_there = matches!(said, Said::Whole(found) if !found.manifest.deleted);
    if has_manifest(dir).await? {
        return match Manifest::load(dir, remote.tenant_shard_id(), id).await {
            Err(error) if error.kind() == ErrorKind::Corrupt && is_there => {
                tracing::warn!(timeline = %id, "{error}: what the bucket has is taken instead");
                Ok(None)
            }
            manifest => manifest.map(Some),
        };
    }
    let is_lost = match said {
        Said::Whole(_) => false,
        Said::Nothing { spare } => spare.is_there(),
        Said::Damaged { .. } => true,
    };
    if !is_lost {
        fs::remove_tree(dir).await?;
    }
    Ok(None)
}

/// The substitute for a damaged index part of `generation`: the local manifest, reduced to what the bucket has.
async fn instead(
    remote: &TenantRemote,
    id: TimelineId,
    local: Option<&Manifest>,
    generation: u32,
    error: StorageError,
) -> Result<Manifest, StorageError> {
    let Some(local) = local.filter(|local| local.in_bucket && local.generation >= generation) else {
        return Err(StorageError::Invalid(format!("{error}. {MEND}")));
    };
    tracing::warn!(timeline = %id, "{error}: the manifest on disk says the same, and it is written anew");
    let there = layers_there(remote, id).await?;
    Ok(Manifest { generation, ..in_bucket_of(local, &there) })
}

/// The substitute for a missing index part: the local manifest, if nobody else has changed the timeline since it was
/// written.
async fn without(
    remote: &TenantRemote,
    id: TimelineId,
    local: Option<&Manifest>,
    spare: Spare,
) -> Result<Option<IndexPart>, StorageError> {
    let there = layers_there(remote, id).await?;
    let Some(local) = local.filter(|local| local.in_bucket) else {
        if spare.is_there() {
            return Err(lost_index_part(remote, id));
        }
        if local.is_none() && !there.is_empty() {
            let bucket = remote.storage().url();
            tracing::warn!(
                timeline = %id,
                "{bucket} has {} layers of it and no index part, so it is not served: either its first upload did not \
                 end, or the index part was removed; a scrub tells more",
                there.len()
            );
        }
        return Ok(None);
    };
    if there.is_empty() && !spare.is_there() {
        // For all we know, this is a different bucket.
        return Ok(None);
    }
    let manifest = in_bucket_of(local, &there);
    // The manifest lacks what others have written since.
    let others = there.keys().filter_map(|name| trace(name)).any(|generation| generation > local.generation);
    if others {
        return Err(lost_index_part(remote, id));
    }
    tracing::warn!(timeline = %id, "its index part is gone: the manifest on disk says the same, it is written anew");
    Ok(Some(IndexPart { manifest, older: Vec::new(), modified: 0, spare }))
}

/// Checks that the index part is not outdated: an older one would lose data that was reported safe since.
async fn check_age(remote: &TenantRemote, id: TimelineId, found: &IndexPart) -> Result<(), StorageError> {
    let path = RemotePath::index_part(&remote.tenant_shard_id(), &id, found.manifest.generation);
    let name = remote.storage().name_of(&path);
    let older = |why: String| {
        let reason = format!("{why}. Nothing was changed. {MEND}");
        Err(StorageError::Corrupt { path: name.clone().into(), offset: 0, reason })
    };
    if let Some(why) = outdated::later_list(&found.manifest, &found.spare.lists) {
        return older(why);
    }
    let Some(beyond) = outdated::look(remote, id, found).await? else { return Ok(()) };
    if beyond.is_certain {
        return older(beyond.to_string());
    }
    tracing::warn!(timeline = %id, "{name}: {beyond}. What it says is served");
    Ok(())
}

/// The timeline's layers in the bucket, by name, with their sizes.
async fn layers_there(remote: &TenantRemote, id: TimelineId) -> Result<HashMap<String, u64>, StorageError> {
    let prefix = RemotePath::timeline(&remote.tenant_shard_id(), &id);
    let listed = remote.storage().list(RequestClass::Control, &prefix).await?;
    let named = |object: Listed| (object.path.file_name().to_owned(), object.size);
    let is_layer = |name: &str| name.parse::<LayerFileName>().is_ok();
    Ok(listed.into_iter().map(named).filter(|(name, _)| is_layer(name)).collect())
}

/// The manifest, reduced to the layers that the bucket has.
fn in_bucket_of(local: &Manifest, there: &HashMap<String, u64>) -> Manifest {
    let mut manifest = local.clone();
    let (tenant, timeline) = (local.tenant_shard_id, local.timeline_id);
    manifest.layers.retain(|entry| there.get(&entry.file_name(tenant, timeline).to_string()) == Some(&entry.file_size));
    manifest
}
