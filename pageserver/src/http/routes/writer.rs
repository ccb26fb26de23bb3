//! The writer of a timeline: its WAL is received as long as it is registered.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utils::lsn::Lsn;
use utoipa::{IntoParams, ToSchema};

use crate::http::app::{App, to_the_end};
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{Args, At, Body, TimelinePath};
use crate::http::ids::LsnText;
use crate::http::init::check_writer;
use crate::http::quotas::check_computes;
use crate::walreceiver::{NewWriter, Writer};

/// A compute that wants to write a timeline.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriterBody {
    /// The compute's unique id.
    id: String,
    /// Its name, for people.
    name: String,
    /// How to reach it, as a libpq connection string. The user needs REPLICATION.
    connstr: String,
    /// The replication slot to use there; created if it is missing.
    slot: String,
    /// Where its WAL starts: the timeline's present end.
    #[schema(value_type = LsnText)]
    start_lsn: Lsn,
    /// Replace another compute whose host is lost. Whatever that has not sent is lost, too.
    #[serde(default)]
    replace: bool,
    /// The run of the branch's SQL that it is for, while that is run.
    init_run: Option<String>,
    /// Write the branch although its SQL has not succeeded, to repair something.
    #[serde(default)]
    uninitialized: bool,
}

/// The writer of a timeline.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WriterAnswer {
    /// The compute's unique id.
    id: String,
    /// Its name.
    name: String,
    /// Its WAL is received from here on.
    #[schema(value_type = LsnText)]
    start_lsn: Lsn,
    /// The timeline's present end.
    #[schema(value_type = LsnText)]
    last_record_lsn: Lsn,
}

/// Selects a compute.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WriterArgs {
    /// The compute's unique id.
    id: String,
}

/// Registers a compute as the writer of a timeline, and receives its WAL. Registering the same compute again only
/// updates how to reach it.
#[utoipa::path(put, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/writer", tag = "computes",
    params(TimelinePath), request_body = WriterBody,
    responses((status = 200, body = WriterAnswer), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "Another server writes it"),
        (status = 412, body = ErrorBody, description = "The timeline does not end where the \
            compute starts, is archived, its SQL has not succeeded, or the \
            quota is used up")))]
pub(crate) async fn register(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Body(body): Body<WriterBody>,
) -> Result<Json<WriterAnswer>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let WriterBody { id, name, connstr, slot, start_lsn, replace, init_run, uninitialized } = body;
    to_the_end("registering of a compute", async move {
        check_writer(&timeline, init_run.as_deref(), uninitialized)?;
        let _counted = app.registering.lock(timeline.tenant_shard_id()).await;
        check_computes(&app, &timeline)?;
        let writer = Writer { id, name, start_lsn };
        app.sources.register_writer(&timeline, NewWriter { writer, connstr, slot, replace }).await?;
        let Writer { id, name, start_lsn } = app
            .sources
            .writer(&timeline)
            .ok_or_else(|| ApiError::precondition("the server shuts down: the compute is followed after its start"))?;
        tracing::info!(timeline = %timeline.timeline_id(), compute = %name, %start_lsn, "compute registered");
        Ok(Json(WriterAnswer { id, name, start_lsn, last_record_lsn: timeline.last_record_lsn() }))
    })
    .await
}

/// Releases the writer of a timeline, which must have stopped. Another compute may then write the timeline.
#[utoipa::path(delete, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/writer", tag = "computes",
    params(TimelinePath, WriterArgs),
    responses((status = 200, body = Object), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "Another compute writes it")))]
pub(crate) async fn release(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Args(args): Args<WriterArgs>,
) -> Result<Json<serde_json::Value>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    to_the_end("release of a compute", async move {
        app.sources.release_writer(&timeline, &args.id).await?;
        Ok(Json(serde_json::json!({ "last_record_lsn": timeline.last_record_lsn() })))
    })
    .await
}
