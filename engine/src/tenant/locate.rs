//! Finds the timelines in a working directory.

use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::timeline::has_manifest;
use crate::config::PageServerConf;
use errors::StorageError;
use virtual_file::fs;

/// All timelines of the working directory. The remains of an unfinished import do not count.
pub async fn list_timelines(conf: &PageServerConf) -> Result<Vec<(TenantShardId, TimelineId)>, StorageError> {
    let mut found = Vec::new();
    for tenant in fs::list_dir_if_any(&conf.tenants_path()).await? {
        let Ok(tenant_shard_id) = tenant.parse::<TenantShardId>() else { continue };
        for timeline in fs::list_dir_if_any(&conf.timelines_path(&tenant_shard_id)).await? {
            let Ok(timeline_id) = timeline.parse::<TimelineId>() else { continue };
            if has_manifest(&conf.timeline_path(&tenant_shard_id, &timeline_id)).await? {
                found.push((tenant_shard_id, timeline_id));
            }
        }
    }
    Ok(found)
}

/// The only timeline of the working directory.
///
/// # Errors
/// [`StorageError::Invalid`] if there is none, or more than one.
pub async fn find_single_timeline(conf: &PageServerConf) -> Result<(TenantShardId, TimelineId), StorageError> {
    match list_timelines(conf).await?.as_slice() {
        [only] => Ok(*only),
        [] => Err(StorageError::Invalid(format!("{} holds no timeline: import one first", conf.workdir))),
        several => {
            let count = several.len();
            Err(StorageError::Invalid(format!("{} holds {count} timelines: say which one is meant", conf.workdir)))
        }
    }
}
