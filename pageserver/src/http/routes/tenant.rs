//! Tenants.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use pageserver_api::shard::TenantShardId;

use crate::http::app::{App, NODE_ID, to_the_end};
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{At, Body, TenantPath};
use crate::http::life::check_unprotected;
use crate::http::models::{
    DeleteAnswer, LocationAnswer, LocationConfig, LocationMode, OwnerInfo, ShardLocation, Slug, TenantInfo, WaitLsn,
};
use engine::lease::Verdict;
use engine::tenant::manager::{StandbyInfo, TenantManager};
use errors::ErrorKind;

fn info(app: &App, id: TenantShardId) -> Result<TenantInfo, ApiError> {
    let timelines = app.manager.timelines(id)?;
    let broken = app.manager.broken().into_iter().filter(|(tenant, ..)| *tenant == id).map(|(_, timeline, _)| timeline);
    let mut ids: Vec<_> = timelines.iter().map(|timeline| timeline.timeline_id()).chain(broken).collect();
    ids.sort();
    let remote = app.manager.remote_of(id);
    let fenced = remote.as_ref().and_then(|remote| remote.fenced());
    let unattached = app.manager.unattached(id);
    let unleased = remote.as_ref().and_then(|remote| remote.check_lease().err()).map(|error| error.to_string());
    let infos: Vec<_> = timelines.iter().map(|timeline| timeline.info()).collect();
    Ok(TenantInfo {
        id,
        state: Slug {
            slug: if unattached.is_some() {
                "Broken"
            } else if fenced.is_some() {
                "Fenced"
            } else if unleased.is_some() {
                "Unleased"
            } else {
                "Active"
            },
        },
        reason: unattached.or(unleased.filter(|_| fenced.is_none())),
        owner: None,
        standby: Vec::new(),
        generation: remote.map(|remote| remote.generation()),
        fenced,
        resident_bytes: infos.iter().map(|info| info.resident_bytes).sum(),
        in_bucket_bytes: infos.iter().map(|info| info.in_bucket_bytes).sum(),
        current_physical_size: infos.iter().map(|info| info.layer_bytes).sum(),
        attachment_status: Slug { slug: "attached" },
        timelines: ids,
    })
}

/// A tenant of which this server is a standby.
fn standby_info(app: &App, id: TenantShardId, standby: StandbyInfo) -> TenantInfo {
    let (lease, left) = match standby.lease {
        None => ("Unknown", None),
        Some(Verdict::None) => ("None", None),
        Some(Verdict::Believed(left)) => ("Believed", Some(left)),
        Some(Verdict::Overdue) => ("Overdue", None),
    };
    let overdue_in_ms = left.and_then(|left| u64::try_from(left.as_millis()).ok());
    TenantInfo {
        id,
        state: Slug { slug: "Standby" },
        reason: standby.error,
        owner: standby.owner.map(|(server, host)| OwnerInfo {
            server,
            host,
            lease: Slug { slug: lease },
            overdue_in_ms,
        }),
        standby: app.sources.as_standby(id),
        current_physical_size: 0,
        attachment_status: Slug { slug: "standby" },
        timelines: Vec::new(),
        generation: standby.generation,
        fenced: None,
        resident_bytes: 0,
        in_bucket_bytes: 0,
    }
}

fn standby(app: &App, id: TenantShardId) -> Option<TenantInfo> {
    let (_, found) = app.manager.standbys().into_iter().find(|(standby, _)| *standby == id)?;
    Some(standby_info(app, id, found))
}

/// Lists all tenants, those of which this server is a standby at the end.
#[utoipa::path(get, path = "/v1/tenant", tag = "tenants", responses((status = 200, body = Vec<TenantInfo>)))]
pub(crate) async fn list(State(app): State<App>) -> Json<Vec<TenantInfo>> {
    // A tenant that is deleted concurrently is left out.
    let own = app.manager.tenants().into_iter().filter_map(|id| info(&app, id).ok());
    let standbys = app.manager.standbys().into_iter().map(|(id, standby)| standby_info(&app, id, standby));
    Json(own.chain(standbys).collect())
}

/// Shows a tenant.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}", tag = "tenants", params(TenantPath),
    responses((status = 200, body = TenantInfo), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(State(app): State<App>, At(path): At<TenantPath>) -> Result<Json<TenantInfo>, ApiError> {
    let id = path.tenant_shard_id;
    info(&app, id).or_else(|error| standby(&app, id).ok_or(error)).map(Json)
}

/// Deletes a tenant and everything stored for it. Deleting a tenant that does not exist is not an error.
#[utoipa::path(delete, path = "/v1/tenant/{tenant_shard_id}", tag = "tenants", params(TenantPath),
    responses((status = 200, body = DeleteAnswer), (status = 503, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "A branch of it is protected")))]
pub(crate) async fn delete(State(app): State<App>, At(path): At<TenantPath>) -> Result<Json<DeleteAnswer>, ApiError> {
    let id = path.tenant_shard_id;
    let answer = to_the_end("deletion of a tenant", async move {
        let _naming = app.naming.lock(id).await;
        let mut left_slots = Vec::new();
        let timelines = app.manager.timelines(id).unwrap_or_default();
        timelines.iter().try_for_each(check_unprotected)?;
        for timeline in timelines {
            left_slots.extend(app.sources.stop(id, timeline.timeline_id()).await);
        }
        if let Err(error) = app.manager.delete_tenant(id).await {
            // It still exists and stays in service.
            app.sources.receive_tenant(id).await;
            return Err(error.into());
        }
        tracing::info!(tenant = %id, ?left_slots, "tenant deleted");
        Ok(DeleteAnswer { left_slots })
    });
    answer.await.map(Json)
}

/// Sets the location of a tenant. AttachedSingle takes it over from its current owner, even if its generations were
/// damaged, and creates it, without timelines, if it does not exist anywhere; Detached lets go of it once everything
/// is in the bucket, so that another server may attach it; Secondary follows its owner, which keeps a lease in the
/// bucket then, and takes the tenant over when that was not renewed for `takeover_after`.
#[utoipa::path(put, path = "/v1/tenant/{tenant_shard_id}/location_config", tag = "tenants", params(TenantPath),
    request_body = LocationConfig,
    responses((status = 200, body = LocationAnswer), (status = 400, body = ErrorBody)))]
pub(crate) async fn location_config(
    State(app): State<App>,
    At(path): At<TenantPath>,
    Body(config): Body<LocationConfig>,
) -> Result<Json<LocationAnswer>, ApiError> {
    let id = path.tenant_shard_id;
    if !id.shard_count.is_unsharded() || config.shard_count != 0 || config.shard_number != 0 {
        return Err(ApiError::bad_request("tenants of several shards are not supported"));
    }
    if config.secondary_conf.is_some() {
        return Err(ApiError::bad_request("secondary_conf must be null: what is kept warm is not set for each tenant"));
    }
    match config.mode {
        LocationMode::AttachedSingle => {
            let manager = app.manager.clone();
            let sources = app.sources.clone();
            to_the_end("attaching of a tenant", async move {
                let known = manager.tenants().contains(&id).then(|| generation(&manager, id));
                if known.is_none() && manager.is_drained() {
                    manager.check_not_drained().await?;
                }
                manager.take_tenant_over(id).await?;
                // Whoever says so may have made a standby of it somewhere.
                manager.conf().resources.lease.look_soon();
                if known != Some(generation(&manager, id)) {
                    sources.receive_tenant(id).await;
                }
                Ok(())
            })
            .await?;
        }
        LocationMode::Secondary => {
            to_the_end("following of a tenant's owner", async move {
                app.manager.make_standby(id).await?;
                // Once it has taken the tenant over, nobody says so.
                app.sources.receive_tenant(id).await;
                Ok(())
            })
            .await?;
        }
        LocationMode::Detached if app.manager.conf().remote_storage.is_some() => {
            to_the_end("detaching of a tenant", async move {
                if app.manager.end_standby(id).await? { Ok(()) } else { detach(&app, id).await }
            })
            .await?;
        }
        LocationMode::Detached => {
            let reason = "mode Detached is not supported: nothing of the tenant is kept elsewhere. To remove it for \
                          good, DELETE it";
            return Err(ApiError::bad_request(reason));
        }
        other => {
            let reason = format!("mode {other:?} is not supported: use AttachedSingle or Secondary");
            return Err(ApiError::bad_request(reason));
        }
    }
    let shards = vec![ShardLocation { shard_id: id, node_id: NODE_ID }];
    Ok(Json(LocationAnswer { shards, stripe_size: None }))
}

fn generation(manager: &TenantManager, id: TenantShardId) -> Option<u32> {
    manager.remote_of(id).map(|remote| remote.generation())
}

/// The servers that it follows retain their WAL until the tenant is attached again.
async fn detach(app: &App, id: TenantShardId) -> Result<(), ApiError> {
    for timeline in app.manager.timelines(id)? {
        app.sources.stop(id, timeline.timeline_id()).await;
    }
    let detached = app.manager.detach_tenant(id).await;
    if detached.is_err() {
        app.sources.receive_tenant(id).await;
    }
    Ok(detached?)
}

/// Waits until timelines have WAL up to given LSNs: 200 if all have, 202 if some have, 404 if none has.
#[utoipa::path(post, path = "/v1/tenant/{tenant_shard_id}/wait_lsn", tag = "tenants", params(TenantPath),
    request_body = WaitLsn,
    responses((status = 200), (status = 202), (status = 404), (status = 400, body = ErrorBody)))]
pub(crate) async fn wait_lsn(
    State(app): State<App>,
    At(path): At<TenantPath>,
    Body(wanted): Body<WaitLsn>,
) -> Result<StatusCode, ApiError> {
    let timeout = humantime::parse_duration(&wanted.timeout)
        .map_err(|error| ApiError::bad_request(format!("timeout {:?}: {error}", wanted.timeout)))?;
    app.manager.timelines(path.tenant_shard_id)?;
    let deadline = tokio::time::Instant::from_std(env::clock::now()).checked_add(timeout);
    let mut reached = 0;
    for (timeline, lsn) in &wanted.timelines {
        let Ok(timeline) = app.manager.get(path.tenant_shard_id, *timeline) else { continue };
        let left = deadline.map_or(timeout, |deadline| deadline.duration_since(env::clock::now().into()));
        match timeline.wait_for_lsn_timeout(*lsn, left).await {
            Ok(()) => reached += 1,
            Err(error) if matches!(error.kind(), ErrorKind::Retry) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(match reached {
        all if all == wanted.timelines.len() => StatusCode::OK,
        0 => StatusCode::NOT_FOUND,
        _ => StatusCode::ACCEPTED,
    })
}
