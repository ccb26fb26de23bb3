//! What is noted of a branch, and its restoration to an earlier moment.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utoipa::ToSchema;

use super::branch_rules::{NAME_MAX, check_name, check_room, check_texts, end_of};
use super::lsn::{lsn_of_moment, not_readable};
use super::timeline::{DescribeArgs, info};
use super::window::Change;
use crate::http::app::{App, to_the_end};
use crate::http::audit::Known;
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{At, Body, TimelinePath};
use crate::http::ids::{LsnText, TimelineText};
use crate::http::models::{SqlBody, TimelineInfo};
use crate::http::{init, life, moment};
use crate::walreceiver::card::{BranchCard, Successor};
use crate::walreceiver::stored::name_of;
use engine::tenant::manager::ManageError;
use engine::tenant::timeline::Timeline;

/// Changes of what is noted of a branch. What is not given stays as it is, and null takes back what was given.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BranchBody {
    /// Its name, unique among the tenant's branches.
    name: Option<String>,
    /// Have the server delete it after this time from now on, such as `3d`: whole seconds, at least one.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    ttl: Change<String>,
    /// Whether deletion is refused.
    protected: Option<bool>,
    /// Labels to set; null removes one.
    #[serde(default)]
    labels: BTreeMap<String, Option<String>>,
    /// Whose it is.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    owner: Change<String>,
    /// What it is for.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    reason: Change<String>,
    /// SQL to run on each branch that is made of it from now on, before anybody uses that branch. Null: none.
    #[serde(default)]
    #[schema(value_type = Option<SqlBody>)]
    branches_init_sql: Change<SqlBody>,
}

/// The moment that a branch is restored to: an LSN or a time.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RestoreBody {
    /// An LSN.
    #[schema(value_type = Option<LsnText>)]
    lsn: Option<Lsn>,
    /// The last commit up to this time (RFC 3339, or relative to the server's clock, such as `10 minutes ago`).
    timestamp: Option<String>,
    /// Id of the timeline that takes its place, chosen by the caller so that the request can be repeated.
    #[schema(value_type = TimelineText)]
    new_timeline_id: TimelineId,
    /// The name under which the branch is kept as it is now; by default its name, `-before-` and the time.
    keep_as: Option<String>,
}

/// A branch that was restored.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RestoreAnswer {
    /// It, as of the moment: another timeline, under the same name.
    branch: TimelineInfo,
    /// What it was before, under another name.
    kept: TimelineInfo,
}

/// Changes what is noted of a branch: its name, when it expires, whether it is protected, labels, owner and reason.
#[utoipa::path(put, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/branch", tag = "timelines",
    params(TimelinePath), request_body = BranchBody,
    responses((status = 200, body = TimelineInfo), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The name is that of another branch"),
        (status = 412, body = ErrorBody, description = "It is not a branch, and does not expire")))]
pub(crate) async fn set(
    State(app): State<App>,
    Extension(known): Extension<Known>,
    At(path): At<TimelinePath>,
    Body(mut body): Body<BranchBody>,
) -> Result<Json<TimelineInfo>, ApiError> {
    let tenant = path.tenant_shard_id;
    let timeline = app.manager.get(tenant, path.timeline_id)?;
    let script = match std::mem::take(&mut body.branches_init_sql) {
        Change::To(Some(sql)) => Change::To(Some(known.sql(init::script(&sql.sql, sql.database)?))),
        Change::To(None) => Change::To(None),
        Change::Nothing => Change::Nothing,
    };
    to_the_end("change of a branch", async move {
        let _naming = app.naming.lock(tenant).await;
        if let Some(name) = &body.name {
            check_name(&app, tenant, path.timeline_id, name)?;
        }
        if matches!(body.ttl, Change::To(Some(_))) && timeline.origin().ancestor.is_none() {
            let reason = format!("timeline {} was not made of another one: only branches expire", path.timeline_id);
            return Err(ApiError::precondition(reason));
        }
        app.sources
            .change_card(&timeline, |name, card| {
                script.apply(&mut card.branches_init);
                apply(body, name, card)
            })
            .await?;
        app.life.look_soon();
        Ok(Json(info(&app, &timeline, &DescribeArgs::default()).await?))
    })
    .await
}

fn apply(body: BranchBody, name: &mut Option<String>, card: &mut BranchCard) -> Result<(), ApiError> {
    let BranchBody { name: new_name, ttl, protected, labels, owner, reason, branches_init_sql: _ } = body;
    *name = new_name.or(name.take());
    match ttl {
        Change::To(Some(ttl)) => card.expires_at = Some(end_of(&ttl)?),
        Change::To(None) => card.expires_at = None,
        Change::Nothing => {}
    }
    card.protected = protected.unwrap_or(card.protected);
    for (name, value) in labels {
        match value {
            Some(value) => drop(card.labels.insert(name, value)),
            None => drop(card.labels.remove(&name)),
        }
    }
    owner.apply(&mut card.owner);
    reason.apply(&mut card.reason);
    check_texts(card)
}

/// Restores a branch to an earlier moment, in its place: its name is then that of a new timeline, which begins there,
/// and what it was is kept under another name, on which whatever WAL it receives goes on to arrive. Nothing is deleted.
/// Refused while a compute writes it. If the server ends in the middle, its next start completes it. Repeating the
/// request returns the same timelines.
#[utoipa::path(post, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/restore", tag = "timelines",
    params(TimelinePath), request_body = RestoreBody,
    responses((status = 201, body = RestoreAnswer), (status = 404, body = ErrorBody),
        (status = 406, body = ErrorBody, description = "The moment is not one of the history that is kept"),
        (status = 409, body = ErrorBody, description = "A compute writes it, or the name to keep it by is taken"),
        (status = 412, body = ErrorBody, description = "The branch has no name, or there are too many branches")))]
pub(crate) async fn restore(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Body(body): Body<RestoreBody>,
) -> Result<(StatusCode, Json<RestoreAnswer>), ApiError> {
    let tenant = path.tenant_shard_id;
    let former = app.manager.get(tenant, path.timeline_id)?;
    let lsn = match (body.lsn, &body.timestamp) {
        (Some(lsn), None) => lsn,
        (None, Some(text)) => lsn_of_moment(&former, text).await?,
        _ => return Err(ApiError::bad_request("give lsn or timestamp, one of them")),
    };
    to_the_end("restoration of a branch", async move {
        let _naming = app.naming.lock(tenant).await;
        life::complete(&app, &former).await?;
        if !is_done(&app, &former, body.new_timeline_id)? {
            begin(&app, &former, &body, lsn).await?;
            life::complete(&app, &former).await?;
        }
        app.life.look_soon();
        let restored = app.manager.get(tenant, body.new_timeline_id)?;
        let branch = info(&app, &restored, &DescribeArgs::default()).await?;
        let kept = info(&app, &former, &DescribeArgs::default()).await?;
        Ok((StatusCode::CREATED, Json(RestoreAnswer { branch, kept })))
    })
    .await
}

/// Whether the timeline has taken the place of `former` already.
fn is_done(app: &App, former: &Timeline, id: TimelineId) -> Result<bool, ApiError> {
    match app.manager.get(former.tenant_shard_id(), id) {
        Ok(present) if present.is_child_of(former.timeline_id()) => Ok(true),
        Err(ManageError::NotFound(_)) => Ok(false),
        _ => Err(ApiError::conflict(format!("timeline {id} exists, and is another one"))),
    }
}

/// Checks all that could fail, and notes durably, in one step, the new name and what takes the old one's place.
async fn begin(app: &App, former: &Timeline, body: &RestoreBody, lsn: Lsn) -> Result<(), ApiError> {
    let (tenant, id) = (former.tenant_shard_id(), former.timeline_id());
    let Some(name) = name_of(former)? else {
        let reason = format!("timeline {id} has no name to be kept: pagectl branch set {id} --name NAME gives it one");
        return Err(ApiError::precondition(reason));
    };
    if let Some(writer) = app.sources.writer(former) {
        let reason = format!("compute {} writes the branch {name}: stop it before the branch is restored", writer.name);
        return Err(ApiError::conflict(reason));
    }
    if former.is_archived() {
        return Err(ApiError::not_acceptable(format!("branch {name} is archived: unarchive it before it is restored")));
    }
    let keep_as = match &body.keep_as {
        Some(keep_as) => keep_as.clone(),
        None => kept_name(&name),
    };
    if keep_as == name {
        return Err(ApiError::bad_request(format!("keep_as: {name} is the name of what is restored")));
    }
    check_name(app, tenant, id, &keep_as)?;
    check_room(app, tenant, body.new_timeline_id)?;
    let last = former.last_record_lsn();
    if lsn > last {
        let reason = format!("LSN {lsn} is after the last record of {name}, which ends at {last}");
        return Err(ApiError::not_acceptable(reason));
    }
    init::check_open(former, lsn)?;
    former.check_readable(lsn).map_err(|error| ApiError::not_acceptable(error.to_string()))?;
    // If the server ends in the middle, the next one finds that moment.
    former.flush(&app.ctx).await?;
    former.lease(lsn, app.manager.conf().lsn_lease_length).await.map_err(not_readable)?;
    let successor = Successor { timeline_id: body.new_timeline_id, name: Some(name), lsn, anew_of: None };
    app.sources
        .change_card(former, |name, card| {
            *name = Some(keep_as);
            card.successor = Some(successor);
            Ok::<(), ApiError>(())
        })
        .await
}

/// The name of what a branch was before now.
fn kept_name(name: &str) -> String {
    let now: String = moment::print(env::clock::system_now()).chars().take(19).filter(|c| !"-:".contains(*c)).collect();
    let suffix = format!("-before-{now}");
    let room = NAME_MAX.saturating_sub(suffix.len());
    format!("{}{suffix}", name.get(..room).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_has_a_name_that_branches_may_have() {
        for name in ["main", &"x".repeat(NAME_MAX)] {
            let kept = kept_name(name);
            assert!(kept.len() <= NAME_MAX && kept.contains("-before-20") && kept.starts_with(&name[..4]), "{kept}");
        }
    }
}
