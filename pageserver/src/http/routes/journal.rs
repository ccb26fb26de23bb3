//! WAL that a standby has of a compute that is lost, on its way to the owner of its branch.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;
use utils::lsn::Lsn;
use utoipa::IntoParams;

use crate::http::app::{App, to_the_end};
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{Args, At, TimelinePath};
use crate::http::ids::LsnText;

/// About so many bytes are handed over at once.
const PART_BYTES: usize = 32 << 20;
/// Larger bodies are refused: a part ends with what was journaled together.
pub(crate) const MAX_BYTES: usize = 48 << 20;

/// Selects WAL of a compute.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct JournalArgs {
    /// The compute's unique id.
    writer: String,
    /// The first byte.
    #[param(value_type = LsnText)]
    from: Lsn,
}

/// Where WAL begins.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct FromArgs {
    /// The first byte: the beginning of the page in which the timeline ends.
    #[param(value_type = LsnText)]
    from: Lsn,
}

/// Returns what this server has, as a standby with a journal, of the WAL of a compute that is lost: some 32 MiB at
/// once, and nothing if it has no more. From then on it receives nothing from that compute for a minute, or until
/// another one has its place.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/journal", tag = "computes",
    params(TimelinePath, JournalArgs),
    responses((status = 200, content_type = "application/octet-stream"),
        (status = 404, body = ErrorBody, description = "This server is no standby with WAL of that compute")))]
pub(crate) async fn give(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Args(args): Args<JournalArgs>,
) -> Result<Response, ApiError> {
    let id = (path.tenant_shard_id, path.timeline_id);
    let wal = app.sources.hand_over(id, &args.writer, args.from, PART_BYTES).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], wal).into_response())
}

/// Takes in WAL of the compute that writes a timeline and is lost, as a standby has it. Answers with the end of the
/// last record.
#[utoipa::path(put, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/journal", tag = "computes",
    params(TimelinePath, FromArgs), request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = Object),
        (status = 412, body = ErrorBody, description = "It does not continue what the timeline has")))]
pub(crate) async fn take(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Args(args): Args<FromArgs>,
    wal: Bytes,
) -> Result<Json<serde_json::Value>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    to_the_end("taking in WAL of a standby", async move {
        let last = app.sources.take_over(&timeline, args.from, wal).await?;
        Ok(Json(serde_json::json!({ "last_record_lsn": last })))
    })
    .await
}
