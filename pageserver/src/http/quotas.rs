//! How much a tenant may have: branches, computes that write, bytes of layers. What is set is stored with each of its
//! timelines, and the newest counts, so that it is kept as long as the tenant has anything, wherever that is attached.

use pageserver_api::shard::TenantShardId;
use serde::Serialize;
use utoipa::ToSchema;

use super::app::App;
use super::error::ApiError;
use crate::walreceiver::card::{BranchCard, Quota};
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::Timeline;

/// What a tenant has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Used {
    /// Branches.
    pub(super) branches: u64,
    /// Computes that are registered to write a branch.
    pub(super) computes: u64,
    /// Bytes of layer files, of all timelines.
    pub(super) bytes: u64,
}

/// What is set for a tenant, which is nothing if nothing is.
pub(super) fn of(manager: &TenantManager, tenant: TenantShardId) -> Option<Quota> {
    let all = manager.timelines(tenant).unwrap_or_default();
    // One whose card cannot be read says nothing.
    all.iter().filter_map(|timeline| BranchCard::of(timeline).ok()?.quota).max_by_key(|quota| quota.edition)
}

/// What a tenant has of it.
pub(super) fn used(app: &App, tenant: TenantShardId) -> Used {
    let all = app.manager.timelines(tenant).unwrap_or_default();
    let count = |is_one: &dyn Fn(&Timeline) -> bool| all.iter().filter(|timeline| is_one(timeline)).count() as u64;
    Used {
        branches: count(&|timeline| timeline.origin().ancestor.is_some()),
        computes: count(&|timeline| app.sources.writer(timeline).is_some()),
        bytes: stored(&app.manager, tenant),
    }
}

/// Bytes of the layer files of a tenant.
pub(super) fn stored(manager: &TenantManager, tenant: TenantShardId) -> u64 {
    let all = manager.timelines(tenant).unwrap_or_default();
    all.iter().map(|timeline| timeline.info().layer_bytes).sum()
}

fn refused(tenant: TenantShardId, has: u64, what: &str, most: u64, flag: &str, hint: &str) -> ApiError {
    ApiError::precondition(format!(
        "tenant {tenant} has {has} {what}, and its quota is {most}: {hint}, or pagectl tenant quota {tenant} --{flag}"
    ))
}

/// Refuses one more branch.
pub(super) fn check_branches(app: &App, tenant: TenantShardId) -> Result<(), ApiError> {
    let Some(most) = of(&app.manager, tenant).and_then(|quota| quota.branches) else { return Ok(()) };
    match used(app, tenant).branches {
        count if count < most => Ok(()),
        count => Err(refused(tenant, count, "branches", most, "branches", "delete one")),
    }
}

/// Refuses to make something that will take room. What is there goes on, whatever room it takes.
pub(super) fn check_bytes(app: &App, tenant: TenantShardId) -> Result<(), ApiError> {
    let Some(most) = of(&app.manager, tenant).and_then(|quota| quota.bytes) else { return Ok(()) };
    match stored(&app.manager, tenant) {
        bytes if bytes <= most => Ok(()),
        bytes => Err(refused(tenant, bytes, "bytes of layers", most, "bytes", "delete branches, or keep less history")),
    }
}

/// Refuses one more compute that writes, other than the one that writes this timeline already.
pub(super) fn check_computes(app: &App, timeline: &Timeline) -> Result<(), ApiError> {
    let tenant = timeline.tenant_shard_id();
    let Some(most) = of(&app.manager, tenant).and_then(|quota| quota.computes) else { return Ok(()) };
    if app.sources.writer(timeline).is_some() {
        return Ok(());
    }
    match used(app, tenant).computes {
        count if count < most => Ok(()),
        count => Err(refused(tenant, count, "computes that write", most, "computes", "stop one")),
    }
}

/// Changes what is set, with each timeline of the tenant. It holds from the first one on.
pub(super) async fn change(
    app: &App,
    tenant: TenantShardId,
    change: impl FnOnce(&mut Quota),
) -> Result<Quota, ApiError> {
    let _naming = app.naming.lock(tenant).await;
    let all = app.manager.timelines(tenant)?;
    if all.is_empty() {
        return Err(ApiError::precondition(format!("tenant {tenant} has no timeline yet, to keep a quota with")));
    }
    let mut quota = of(&app.manager, tenant).unwrap_or_default();
    change(&mut quota);
    quota.edition += 1;
    for timeline in all {
        app.sources
            .change_card(&timeline, |_, card| {
                card.quota = Some(quota);
                Ok::<(), ApiError>(())
            })
            .await?;
    }
    Ok(quota)
}
