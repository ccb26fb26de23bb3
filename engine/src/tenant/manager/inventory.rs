//! The inventory of tenants: which are open, which are not, and what could not be opened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

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

/// A file of this name in a tenant's directory has this server follow the tenant's owner, to take its place.
pub(super) const STANDBY_NAME: &str = "standby";

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

/// The tenants in the working directory.
#[derive(Debug, Default)]
pub(super) struct LocalTenants {
    /// Those to attach.
    pub(super) attached: Vec<TenantShardId>,
    /// Those that are not to be attached.
    pub(super) detached: BTreeSet<TenantShardId>,
    /// Those whose owner is to be followed; `detached` has them, too.
    pub(super) standbys: BTreeSet<TenantShardId>,
}

/// Finds the tenants in the working directory.
pub(super) async fn local_tenants(conf: &PageServerConf) -> Result<LocalTenants, StorageError> {
    let mut local = LocalTenants::default();
    for name in fs::list_dir_if_any(&conf.tenants_path()).await? {
        let Ok(id) = name.parse::<TenantShardId>() else { continue };
        let names = fs::list_dir_if_any(&conf.tenant_path(&id)).await?;
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        if has(STANDBY_NAME) {
            tracing::info!(tenant = %id, "this server is a standby of it");
            local.standbys.insert(id);
            local.detached.insert(id);
        } else if has(DETACHED_NAME) {
            tracing::info!(tenant = %id, "not attached: it was detached, or another server has taken it over");
            local.detached.insert(id);
        } else {
            local.attached.push(id);
        }
    }
    Ok(local)
}

pub(super) fn note_broken(broken: &mut Broken, id: TenantShardId, timeline_id: TimelineId, reason: String) {
    tracing::error!(tenant = %id, timeline = %timeline_id, "timeline cannot be opened: {reason}");
    broken.insert((id, timeline_id), reason);
}
