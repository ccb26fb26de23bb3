//! SQL that runs on a branch before anybody uses it: who runs it, and how it ended.

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utoipa::{IntoParams, ToSchema};

use super::timeline::{DescribeArgs, info};
use crate::http::app::{App, to_the_end};
use crate::http::audit::Known;
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{Args, At, Body, TimelinePath};
use crate::http::ids::{LsnText, TimelineText};
use crate::http::init::{self, Standing};
use crate::http::init_turns::{self, Ended, Turn};
use crate::http::models::{InitInfo, SqlBody, TimelineInfo};
use engine::tenant::timeline::Timeline;

/// Maximum length of the name of a run.
const RUN_MAX: usize = 64;

/// What to tell.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct InitArgs {
    /// Whoever runs it says so with the name of the run, at least every few seconds.
    run: Option<String>,
    /// Whether to tell the SQL too.
    #[serde(default)]
    sql: bool,
}

/// Who wants to run it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InitBody {
    /// A name for this run, made up by the caller.
    run: String,
    /// Run it again if it has failed.
    #[serde(default)]
    retry: bool,
    /// In place of the branch's own SQL.
    init_sql: Option<SqlBody>,
    /// The id of the timeline that takes the place of this one if something may have been written to it.
    #[schema(value_type = TimelineText)]
    new_timeline_id: TimelineId,
}

/// How a run has ended: `lsn`, `failed` or `gave_up`, one of them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InitEndBody {
    /// The name of the run.
    run: String,
    /// All of it has succeeded, and the branch has what was written up to here.
    #[schema(value_type = Option<LsnText>)]
    lsn: Option<Lsn>,
    /// It has failed, for this reason.
    failed: Option<String>,
    /// It could not be run, for this reason: anybody may try again.
    gave_up: Option<String>,
}

/// SQL as it is run.
#[derive(Serialize, ToSchema)]
pub(crate) struct SqlAnswer {
    /// The SQL.
    sql: String,
    /// The database that it runs in.
    database: String,
    /// It is that of all branches of the one that this was made of.
    standing: bool,
}

/// How far it is.
#[derive(Serialize, ToSchema)]
pub(crate) struct InitAnswer {
    /// Whether the caller may run it, or go on to.
    granted: bool,
    /// How far it is; null if the branch has none.
    init: Option<InitInfo>,
    /// What to run.
    sql: Vec<SqlAnswer>,
    /// The branch: another timeline than the one that was asked about if something may have been written to that.
    branch: TimelineInfo,
}

async fn answer(app: &App, timeline: &Timeline, granted: bool, sql: bool) -> Result<Json<InitAnswer>, ApiError> {
    let scripts = Standing::of(timeline)?.map(|standing| standing.init.scripts).unwrap_or_default();
    let unpacked = |script: &crate::walreceiver::init_sql::Script| {
        let (database, standing) = (script.database.clone(), script.standing);
        script.sql().map(|sql| SqlAnswer { sql, database, standing }).map_err(ApiError::precondition)
    };
    let sql = if sql { scripts.iter().map(unpacked).collect::<Result<_, _>>()? } else { Vec::new() };
    let branch = info(app, timeline, &DescribeArgs::default()).await?;
    Ok(Json(InitAnswer { granted, init: init::of(timeline), sql, branch }))
}

/// Tells how far the SQL of a branch is that runs before anybody uses it. Whoever runs it asks with the name of the
/// run, and is taken to be at it still.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/init", tag = "timelines",
    params(TimelinePath, InitArgs),
    responses((status = 200, body = InitAnswer), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Args(args): Args<InitArgs>,
) -> Result<Json<InitAnswer>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let granted = match &args.run {
        Some(run) => init_turns::renew(&app, &timeline, run)?,
        None => false,
    };
    answer(&app, &timeline, granted, args.sql).await
}

/// Asks to run the SQL of a branch. If it is granted, the caller runs it on the branch of the answer, says every few
/// seconds that it is at it (GET), and tells how that ended (`init_end`). Whoever is not heard of for 10 seconds has
/// lost the turn. If something may have been written to the branch, it begins anew before, as another timeline.
#[utoipa::path(post, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/init", tag = "timelines",
    params(TimelinePath), request_body = InitBody,
    responses((status = 200, body = InitAnswer), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "It was run already, or is being run"),
        (status = 412, body = ErrorBody, description = "The branch has none, or cannot begin anew")))]
pub(crate) async fn begin(
    State(app): State<App>,
    Extension(known): Extension<Known>,
    At(path): At<TimelinePath>,
    Body(body): Body<InitBody>,
) -> Result<Json<InitAnswer>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    if body.run.is_empty() || body.run.len() > RUN_MAX || !body.run.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ApiError::bad_request(format!("run: expected {RUN_MAX} plain characters at most")));
    }
    let own = body.init_sql.map(|sql| init::script(&sql.sql, sql.database)).transpose()?;
    let own = own.map(|script| known.sql(script));
    let turn = Turn { run: body.run, retry: body.retry, own, new_timeline_id: body.new_timeline_id };
    to_the_end("beginning of a branch", async move {
        let (timeline, granted) = init_turns::begin(&app, &timeline, turn).await?;
        answer(&app, &timeline, granted, granted).await
    })
    .await
}

/// Tells how a run of a branch's SQL has ended. If it is done, the branch is open once what was written is durable.
#[utoipa::path(post, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/init_end", tag = "timelines",
    params(TimelinePath), request_body = InitEndBody,
    responses((status = 200, body = InitAnswer), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The run is over, or a compute still writes the branch"),
        (status = 412, body = ErrorBody, description = "What was written has not come")))]
pub(crate) async fn end(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Body(body): Body<InitEndBody>,
) -> Result<Json<InitAnswer>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let ended = match (body.lsn, body.failed, body.gave_up) {
        (Some(lsn), None, None) => Ended::Done(lsn),
        (None, Some(reason), None) => Ended::Failed(reason),
        (None, None, Some(reason)) => Ended::GaveUp(reason),
        _ => return Err(ApiError::bad_request("give lsn, failed or gave_up, one of them")),
    };
    to_the_end("end of a branch's SQL", async move {
        init_turns::end(&app, &timeline, &body.run, ended).await?;
        answer(&app, &timeline, false, false).await
    })
    .await
}
