//! What a standby has of layers that are hot at the owner: whole files beside the tenant's timelines, which an attach
//! moves into these. They are a cache: each is read like any layer, block by block with its checksum, and one that is
//! damaged comes again from the bucket.

use std::collections::HashSet;

use camino::{Utf8Path, Utf8PathBuf};
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use crate::config::PageServerConf;
use crate::tenant::storage_layer::LayerFileName;
use errors::StorageError;
use virtual_file::fs;

/// Directory in that of a tenant, with one for each timeline.
const DIRECTORY: &str = "warm";

/// Where the files of a tenant are, in a directory for each timeline.
pub(crate) fn root(conf: &PageServerConf, tenant: TenantShardId) -> Utf8PathBuf {
    conf.tenant_path(&tenant).join(DIRECTORY)
}

/// Moves the files of a timeline that is being opened into its directory: those among `names`, which are asked for if
/// there are any.
pub(crate) async fn take(
    conf: &PageServerConf,
    (tenant, timeline): (TenantShardId, TimelineId),
    dir: &Utf8Path,
    names: impl FnOnce() -> HashSet<LayerFileName>,
) -> Result<(), StorageError> {
    let warm = root(conf, tenant).join(timeline.to_string());
    let there = fs::list_dir_if_any(&warm).await?;
    let names = if there.is_empty() { HashSet::new() } else { names() };
    for name in there.iter().filter(|name| name.parse().is_ok_and(|name| names.contains(&name))) {
        fs::rename(&warm.join(name), &dir.join(name)).await?;
    }
    Ok(())
}

/// Removes what is left of a tenant.
pub(crate) async fn forget(conf: &PageServerConf, tenant: TenantShardId) -> Result<(), StorageError> {
    fs::remove_tree(&root(conf, tenant)).await
}
