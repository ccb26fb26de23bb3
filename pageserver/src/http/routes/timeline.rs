//! Timelines: listing, branching, deletion, checkpoints; and following a server, which creates the first one.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use pageserver_api::shard::TenantShardId;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::auth::Permission;
use crate::http::app::{App, to_the_end};
use crate::http::audit::Known;
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{Args, At, Body, TenantPath, TimelinePath};
use crate::http::guard::Subject;
use crate::http::logical_size::LogicalSize;
use crate::http::models::{
    BrokenTimeline, DeleteAnswer, FollowAnswer, FollowBody, ListedTimeline, SqlInfo, TimelineCreate, TimelineInfo,
    TimelineState,
};
use crate::http::{init, life, moment, quotas};
use crate::walreceiver::card::BranchCard;
use crate::walreceiver::stored::{name_of, of_new_branch};
use engine::tenant::manager::{ManageError, NewBranch};
use engine::tenant::timeline::Timeline;

use super::branch_rules::{card_of, check_name, check_room};
use super::history::named;
use super::lsn::{lsn_of_moment, not_readable};

/// What to wait for.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DescribeArgs {
    /// Wait until the logical size as of the last record is known.
    #[serde(default, rename = "force-await-initial-logical-size")]
    wait: bool,
    /// Without effect: there is one way to count the logical size.
    #[serde(default, rename = "include-non-incremental-logical-size")]
    _again: bool,
}

/// Whether the ancestor still has every LSN from the branch point on.
fn is_within_ancestor(app: &App, tenant: TenantShardId, info: &engine::tenant::timeline::TimelineInfo) -> bool {
    let ancestor = info.ancestor_timeline_id.and_then(|id| app.manager.get(tenant, id).ok());
    ancestor.zip(info.ancestor_lsn).is_some_and(|(ancestor, lsn)| lsn >= ancestor.min_readable_lsn())
}

/// The state of a WAL receiver, where it receives from, and why it does not.
fn in_words(status: &serde_json::Value) -> String {
    let text = |name: &str| status[name].as_str().unwrap_or_default();
    let mut words = format!("{}, from {}", text("state"), text("host"));
    if let Some(error) = status["last_error"].as_str() {
        words.push_str(&format!("; last error: {error}"));
    }
    words
}

/// Whether it is in service.
fn state_of(timeline: &Timeline, info: &engine::tenant::timeline::TimelineInfo) -> TimelineState {
    let reason = timeline.broken().or_else(|| info.fenced.clone());
    reason.map_or(TimelineState::Active, |reason| TimelineState::Broken { reason })
}

/// Its logical size, if that is known or wanted.
async fn size(app: &App, timeline: &Timeline, args: &DescribeArgs) -> Result<Option<LogicalSize>, ApiError> {
    Ok(match args.wait {
        true => Some(app.sizes.now(timeline, &app.ctx).await.map_err(not_readable)?),
        false => app.sizes.latest(timeline, &app.manager, &app.ctx),
    })
}

/// What is known of a timeline.
pub(super) async fn info(app: &App, timeline: &Timeline, args: &DescribeArgs) -> Result<TimelineInfo, ApiError> {
    let (tenant_id, timeline_id) = (timeline.tenant_shard_id(), timeline.timeline_id());
    let size = size(app, timeline, args).await?;
    let (info, condition) = (timeline.info(), timeline.condition());
    let (state, within_ancestor_pitr) = (state_of(timeline, &info), is_within_ancestor(app, tenant_id, &info));
    let (min_readable_lsn, card) = (timeline.min_readable_lsn(), BranchCard::of(timeline).unwrap_or_default());
    let init = init::of(timeline);
    let walreceiver = app.sources.status(tenant_id, timeline_id);
    Ok(TimelineInfo {
        tenant_id,
        timeline_id,
        name: name_of(timeline).unwrap_or_default(),
        ancestor_timeline_id: info.ancestor_timeline_id,
        ancestor_lsn: info.ancestor_lsn,
        detached_lsn: info.detached_lsn,
        detach: info.detach.map(Into::into),
        last_record_lsn: info.last_record_lsn,
        prev_record_lsn: Some(info.prev_record_lsn).filter(|lsn| lsn.is_valid()),
        disk_consistent_lsn: info.disk_consistent_lsn,
        min_readable_lsn,
        applied_gc_cutoff_lsn: min_readable_lsn,
        gc_cutoff_lsn: info.gc_cutoff,
        retained_lsns: info.retained_lsns,
        holds: named(timeline),
        initdb_lsn: info.import_lsn,
        current_physical_size: info.layer_bytes,
        current_logical_size: size.map_or(0, |size| size.bytes),
        current_logical_size_is_accurate: size.is_some_and(|size| size.lsn == info.last_record_lsn),
        directory_entries_counts: size.map_or_else(Vec::new, |size| size.entries.to_vec()),
        pitr_history_size: info.last_record_lsn.0.saturating_sub(min_readable_lsn.0),
        within_ancestor_pitr,
        pg_version: info.pg_version,
        state,
        walreceiver_status: walreceiver.as_ref().map_or_else(String::new, in_words),
        walreceiver,
        is_archived: timeline.is_archived(),
        archived_at: info.archived_at.map(moment::of_unix),
        children: app.manager.children(tenant_id, timeline_id),
        created_at: card.created_at.map(moment::of_unix),
        expires_at: card.expires_at.map(moment::of_unix),
        expired: life::expired(app, timeline, &card),
        protected: card.protected,
        labels: card.labels,
        owner: card.owner,
        reason: card.reason,
        init,
        branches_init_sql: card.branches_init.as_ref().map(SqlInfo::of),
        system_identifier: info.system_identifier,
        wal_segment_size: info.wal_segment_size,
        layer_count: info.layers,
        l0_layer_count: info.l0_layers,
        height: condition.height,
        replaced_layer_count: info.replaced_layers,
        replaced_bytes: info.replaced_bytes,
        compaction: info.compaction.into(),
        compaction_error: info.compaction_error,
        condition: condition.into(),
        frozen_layer_count: info.frozen_layers,
        in_memory_bytes: info.in_memory_bytes,
        remote_consistent_lsn: info.remote_consistent_lsn,
        remote_consistent_lsn_visible: info.remote_consistent_lsn,
        generation: info.generation,
        fenced: info.fenced,
        resident_bytes: info.resident_bytes,
        in_bucket_bytes: info.in_bucket_bytes,
        upload_layers: info.upload_layers,
        upload_bytes: info.upload_bytes,
        upload_error: info.upload_error,
    })
}

/// Lists all timelines of a tenant.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline", tag = "timelines", params(TenantPath),
    responses((status = 200, body = Vec<ListedTimeline>), (status = 404, body = ErrorBody)))]
pub(crate) async fn list(
    State(app): State<App>,
    At(path): At<TenantPath>,
) -> Result<Json<Vec<ListedTimeline>>, ApiError> {
    let mut all = Vec::new();
    for timeline in app.manager.timelines(path.tenant_shard_id)? {
        all.push(ListedTimeline::Open(Box::new(info(&app, &timeline, &DescribeArgs::default()).await?)));
    }
    let broken = app.manager.broken().into_iter().filter(|(tenant, ..)| *tenant == path.tenant_shard_id);
    let broken = broken.map(|(tenant_id, timeline_id, reason)| {
        ListedTimeline::Broken(BrokenTimeline { tenant_id, timeline_id, state: TimelineState::Broken { reason } })
    });
    all.extend(broken);
    Ok(Json(all))
}

/// Shows a timeline.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}", tag = "timelines",
    params(TimelinePath, DescribeArgs),
    responses((status = 200, body = TimelineInfo), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Args(args): Args<DescribeArgs>,
) -> Result<Json<TimelineInfo>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    Ok(Json(info(&app, &timeline, &args).await?))
}

/// Creates a branch at an LSN, a time, or the ancestor's last record. Repeating the request returns the same
/// timeline.
#[utoipa::path(post, path = "/v1/tenant/{tenant_shard_id}/timeline", tag = "timelines", params(TenantPath),
    request_body = TimelineCreate,
    responses((status = 201, body = TimelineInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 406, body = ErrorBody, description = "The LSN or moment is not one to branch at"),
        (status = 409, body = ErrorBody, description = "The timeline exists and is another one"),
        (status = 412, body = ErrorBody, description = "The tenant has as many branches as it may have")))]
pub(crate) async fn create(
    State(app): State<App>,
    Extension(subject): Extension<Subject>,
    Extension(known): Extension<Known>,
    At(path): At<TenantPath>,
    Body(wanted): Body<TimelineCreate>,
) -> Result<(StatusCode, Json<TimelineInfo>), ApiError> {
    let tenant = path.tenant_shard_id;
    known.makes(wanted.new_timeline_id);
    let Some(ancestor_id) = wanted.ancestor_timeline_id else {
        let reason = "ancestor_timeline_id is missing: only branches are made here; the first timeline of a tenant \
                      comes from POST /v1/follow or an import";
        return Err(ApiError::bad_request(reason));
    };
    if wanted.read_only {
        return Err(ApiError::bad_request("read_only must be false: there are no read-only timelines"));
    }
    let ancestor = app.manager.get(tenant, ancestor_id)?;
    let version = ancestor.origin().pg_version.major();
    if wanted.pg_version.is_some_and(|wanted| wanted != version && wanted / 10_000 != version) {
        return Err(ApiError::bad_request(format!("pg_version: the ancestor is of Postgres {version}")));
    }
    let lsn = match (wanted.ancestor_start_lsn, &wanted.ancestor_start_timestamp) {
        (Some(_), Some(_)) => {
            return Err(ApiError::bad_request("give ancestor_start_lsn or ancestor_start_timestamp, not both"));
        }
        (lsn, None) => lsn,
        (None, Some(text)) => Some(lsn_of_moment(&ancestor, text).await?),
    };
    let mut card = card_of(&wanted, subject)?;
    let own = wanted.init_sql.as_ref().map(|sql| init::script(&sql.sql, sql.database.clone())).transpose()?;
    let own = own.map(|script| known.sql(script));
    let new = NewBranch { timeline_id: wanted.new_timeline_id, ancestor_id, lsn };
    let named = app.clone();
    let timeline = to_the_end("making of a branch", async move {
        let _naming = named.naming.lock(tenant).await;
        if let Some(name) = &wanted.name {
            check_name(&named, tenant, new.timeline_id, name)?;
        }
        check_room(&named, tenant, new.timeline_id)?;
        if named.manager.get(tenant, new.timeline_id).is_err() {
            quotas::check_bytes(&named, tenant)?;
            card.quota = quotas::of(&named.manager, tenant);
            card.init = init::of_branch(&ancestor, lsn.unwrap_or_else(|| ancestor.last_record_lsn()), own)?;
        }
        let told = of_new_branch(wanted.name, card)?;
        let (timeline, created) = named.manager.branch_with(tenant, new, Some(told)).await?;
        named.life.look_soon();
        let at = timeline.origin().import_lsn;
        tracing::info!(%tenant, timeline = %new.timeline_id, ancestor = %ancestor_id, %at, ?created, "branch made");
        Ok(timeline)
    });
    let timeline = timeline.await?;
    Ok((StatusCode::CREATED, Json(info(&app, &timeline, &DescribeArgs::default()).await?)))
}

/// Deletes a timeline and everything stored for it. If its base backup is still in progress, that is aborted.
/// Deleting a timeline that is not a branch destroys the cluster, so it needs a token that may delete the tenant.
#[utoipa::path(delete, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}", tag = "timelines",
    params(TimelinePath),
    responses((status = 200, body = DeleteAnswer), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "It is protected"),
        (status = 412, body = ErrorBody, description = "Other timelines branch off it")))]
pub(crate) async fn delete(
    State(app): State<App>,
    Extension(permission): Extension<Permission>,
    At(path): At<TimelinePath>,
) -> Result<Json<DeleteAnswer>, ApiError> {
    let TimelinePath { tenant_shard_id: tenant, timeline_id } = path;
    match app.manager.get(tenant, timeline_id) {
        Ok(timeline) if timeline.info().ancestor_timeline_id.is_some() => {}
        Err(ManageError::NotFound(_)) if !app.sources.is_copying(tenant, timeline_id) => {}
        _ => permission.check_tenant_admin(tenant.tenant_id)?,
    }
    let answer = to_the_end("deletion of a timeline", async move { life::delete(&app, tenant, timeline_id).await });
    answer.await.map(Json)
}

/// Makes everything up to the last record durable.
#[utoipa::path(put, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/checkpoint", tag = "timelines",
    params(TimelinePath), responses((status = 200, body = Object), (status = 503, body = ErrorBody)))]
pub(crate) async fn checkpoint(
    State(app): State<App>,
    At(path): At<TimelinePath>,
) -> Result<Json<serde_json::Value>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    to_the_end("checkpoint", async move {
        timeline.flush(&app.ctx).await?;
        Ok(Json(serde_json::json!({ "disk_consistent_lsn": timeline.disk_consistent_lsn() })))
    })
    .await
}

/// Starts to follow a running server: takes a base backup, then streams its WAL. Continues in the background: see
/// `follow_status`.
#[utoipa::path(post, path = "/v1/follow", tag = "timelines", request_body = FollowBody,
    responses((status = 202, body = FollowAnswer), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn follow(
    State(app): State<App>,
    Extension(known): Extension<Known>,
    Body(wanted): Body<FollowBody>,
) -> Result<(StatusCode, Json<FollowAnswer>), ApiError> {
    let (tenant_id, timeline_id) = app.sources.follow(wanted)?;
    known.makes(timeline_id);
    tracing::info!(tenant = %tenant_id, timeline = %timeline_id, "copying a running cluster, to follow it");
    Ok((StatusCode::ACCEPTED, Json(FollowAnswer { tenant_id, timeline_id })))
}

/// Returns the progress of starting to follow a server.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/follow_status", tag = "timelines",
    params(TimelinePath), responses((status = 200, body = Object), (status = 404, body = ErrorBody)))]
pub(crate) async fn follow_status(
    State(app): State<App>,
    At(path): At<TimelinePath>,
) -> Result<Json<serde_json::Value>, ApiError> {
    let status = app.sources.follow_status(path.tenant_shard_id, path.timeline_id);
    let none = || ApiError::not_found("this timeline was not followed since the server started");
    status.ok_or_else(none).map(Json)
}
