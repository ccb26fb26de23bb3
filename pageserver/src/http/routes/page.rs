//! Keys and their values.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use serde::Deserialize;
use utils::lsn::Lsn;
use utoipa::IntoParams;

use super::lsn::lsn_to_read;
use crate::http::app::App;
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{Args, At, TimelinePath};
use crate::http::ids::{KeyText, LsnText};
use crate::http::models::KeySpaceAnswer;
use pgdata::TimelineStore;
use pgdata::keys::ExistingKeys;
use pgdata::listing::Listing;

/// The LSN to read at.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct AtLsnArgs {
    /// Such as 0/16B3748; defaults to the last record.
    #[param(value_type = Option<LsnText>)]
    at_lsn: Option<Lsn>,
}

/// Lists the keys that exist at an LSN.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/keyspace", tag = "pages",
    params(TimelinePath, AtLsnArgs),
    responses((status = 200, body = KeySpaceAnswer), (status = 412, body = ErrorBody)))]
pub(crate) async fn keyspace(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Args(args): Args<AtLsnArgs>,
) -> Result<Json<KeySpaceAnswer>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let at_lsn = lsn_to_read(&timeline, args.at_lsn)?;
    let version = timeline.origin().pg_version;
    let store = TimelineStore::new(timeline, app.ctx.clone());
    let found = ExistingKeys::of(&Listing::new(&store, at_lsn), version).await?;
    let text = |ranges| {
        let space = KeySpace::from_ranges(ranges);
        space.ranges().iter().map(|range| [range.start.to_string(), range.end.to_string()]).collect()
    };
    Ok(Json(KeySpaceAnswer { keys: text(found.dense), sparse_keys: text(found.sparse), at_lsn }))
}

/// One key.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct KeyArgs {
    /// 36 hexadecimal digits.
    #[param(value_type = KeyText)]
    key: String,
    /// Such as 0/16B3748; defaults to the last record.
    #[param(value_type = Option<LsnText>)]
    lsn: Option<Lsn>,
}

async fn read(app: &App, path: TimelinePath, args: KeyArgs) -> Result<Bytes, ApiError> {
    let key: Key = args.key.parse().map_err(|error| ApiError::bad_request(format!("{error}")))?;
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let lsn = lsn_to_read(&timeline, args.lsn)?;
    Ok(timeline.get(key, lsn, &app.ctx).await?)
}

/// Returns the raw value of a key at an LSN.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/getpage", tag = "pages",
    params(TimelinePath, KeyArgs),
    responses((status = 200, content_type = "application/octet-stream"), (status = 404, body = ErrorBody),
        (status = 412, body = ErrorBody)))]
pub(crate) async fn getpage(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Args(args): Args<KeyArgs>,
) -> Result<Response, ApiError> {
    let value = read(&app, path, args).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], value).into_response())
}

/// Reads a key at an LSN without returning its value, to warm the caches.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/touchpage", tag = "pages",
    params(TimelinePath, KeyArgs),
    responses((status = 200, body = Object), (status = 404, body = ErrorBody), (status = 412, body = ErrorBody)))]
pub(crate) async fn touchpage(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Args(args): Args<KeyArgs>,
) -> Result<Json<serde_json::Value>, ApiError> {
    let value = read(&app, path, args).await?;
    Ok(Json(serde_json::json!({ "bytes": value.len() })))
}
