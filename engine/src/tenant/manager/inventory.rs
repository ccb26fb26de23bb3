//! The inventory of tenants: which are open, which are not, and what could not be opened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use crate::config::PageServerConf;
use crate::tenant::remote::TenantRemote;
use crate::tenant::timeline::Timeline;
use errors::StorageError;
use virtual_file::fs;

/// A file of this name in a tenant's directory keeps startup from attaching the tenant: another server has it, or it
/// was detached.
pub(super) const DETACHED_NAME: &str = "detached";

pub(super) type Timelines = BTreeMap<TimelineId, Timeline>;
/// Timelines that could not be opened, and why.
pub(super) type Broken = BTreeMap<(TenantShardId, TimelineId), String>;

/// A tenant that is attached.
#[derive(Debug, Default)]
pub(super) struct Tenant {
    pub(super) timelines: Timelines,
    /// Its state in the bucket.
    pub(super) remote: Option<Arc<TenantRemote>>,
    /// Since when it is attached.
    pub(super) attached: Option<Instant>,
    /// Why it could not be attached; if set, it has no timelines here.
    pub(super) unattached: Option<String>,
}

/// The tenants in the working directory: those to attach, and those that are detached.
pub(super) async fn local_tenants(
    conf: &PageServerConf,
) -> Result<(Vec<TenantShardId>, BTreeSet<TenantShardId>), StorageError> {
    let (mut attached, mut detached) = (Vec::new(), BTreeSet::new());
    for name in fs::list_dir_if_any(&conf.tenants_path()).await? {
        let Ok(id) = name.parse::<TenantShardId>() else { continue };
        match fs::list_dir_if_any(&conf.tenant_path(&id)).await?.iter().any(|name| name == DETACHED_NAME) {
            true => drop(detached.insert(id)),
            false => attached.push(id),
        }
    }
    for id in &detached {
        tracing::info!(tenant = %id, "not attached: it was detached, or another server has taken it over");
    }
    Ok((attached, detached))
}

pub(super) fn note_broken(broken: &mut Broken, id: TenantShardId, timeline_id: TimelineId, reason: String) {
    tracing::error!(tenant = %id, timeline = %timeline_id, "timeline cannot be opened: {reason}");
    broken.insert((id, timeline_id), reason);
}

/// See [`TenantManager::before_attach`](super::TenantManager::before_attach).
pub(super) struct BeforeAttach(
    pub(super) Box<dyn Fn(TenantShardId) -> BoxFuture<'static, Result<(), StorageError>> + Send + Sync>,
);

impl std::fmt::Debug for BeforeAttach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BeforeAttach")
    }
}
