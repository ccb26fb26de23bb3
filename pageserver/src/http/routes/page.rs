//! Keys and their values.

use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use serde::{Deserialize, Serialize};
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utoipa::{IntoParams, ToSchema};

use super::lsn::{lsn_to_read, not_readable};
use crate::http::app::App;
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{Args, At, TimelinePath};
use crate::http::ids::{KeyText, LsnText, TimelineText};
use crate::http::models::KeySpaceAnswer;
use engine::tenant::storage_layer::Visited;
use engine::tenant::timeline::Timeline;
use pgdata::TimelineStore;
use pgdata::keys::ExistingKeys;
use pgdata::listing::Listing;
use traces::Trace;

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
    let found = ExistingKeys::of(&Listing::new(&store, at_lsn), version).await.map_err(not_readable)?;
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

fn find(app: &App, path: TimelinePath, args: KeyArgs) -> Result<(Timeline, Key, Lsn), ApiError> {
    let key: Key = args.key.parse().map_err(|error| ApiError::bad_request(format!("{error}")))?;
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let lsn = lsn_to_read(&timeline, args.lsn)?;
    Ok((timeline, key, lsn))
}

async fn read(app: &App, path: TimelinePath, args: KeyArgs, trace: Option<Trace>) -> Result<Bytes, ApiError> {
    let (timeline, key, lsn) = find(app, path, args)?;
    timeline.get(key, lsn, &app.ctx.with_trace(trace)).await.map_err(not_readable)
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
    trace: Option<Extension<Trace>>,
) -> Result<Response, ApiError> {
    let value = read(&app, path, args, trace.map(|Extension(trace)| trace)).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], value).into_response())
}

/// A layer that a read visited.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TracedVisit {
    /// The timeline that has the layer: this one, or an ancestor.
    #[schema(value_type = TimelineText)]
    timeline_id: TimelineId,
    /// Its file, or "in memory".
    layer: String,
    /// Versions from here on were asked for.
    #[schema(value_type = LsnText)]
    lsn_start: Lsn,
    /// Versions below this LSN were asked for.
    #[schema(value_type = LsnText)]
    lsn_end: Lsn,
    /// False if its key filter told that it has nothing.
    searched: bool,
    /// How many key filters were asked.
    filters_asked: u32,
    /// Whether all of it was on the local disk or in memory.
    local: bool,
    /// Records found.
    records: usize,
    /// Whether an image was found, which ends the search.
    image: bool,
    /// Stored bytes of what was found.
    bytes: u64,
    /// Microseconds that the visit took, with waits for the disk or the bucket.
    micros: u64,
}

/// How a read came to its value.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TraceAnswer {
    /// The LSN read at.
    #[schema(value_type = LsnText)]
    lsn: Lsn,
    /// Layers visited, in order.
    visits: Vec<TracedVisit>,
    /// Layers searched: those visited whose filters did not end the search at once.
    layers_searched: usize,
    /// Records applied.
    records: usize,
    /// Where the image is that they were applied to; null if the oldest record makes the page.
    #[schema(value_type = Option<LsnText>)]
    image_lsn: Option<Lsn>,
    /// Older versions than the visits tell were read in further pieces, as together they would take too much memory.
    in_pieces: bool,
    /// Key filters asked.
    filters_asked: u32,
    /// Bytes of layers read from the local disk.
    local_bytes: u64,
    /// Requests to the bucket.
    bucket_requests: u64,
    /// Bytes that these fetched.
    bucket_bytes: u64,
    /// Microseconds that the search took: of these, waits, the search of indexes, and fetching follow.
    search_micros: u64,
    /// Microseconds waited for WAL that had not arrived, and for memory.
    wait_micros: u64,
    /// Microseconds that the search of indexes took.
    plan_micros: u64,
    /// Microseconds waited for the disk and the bucket.
    fetch_micros: u64,
    /// Microseconds that rebuilding the value took.
    redo_micros: u64,
    /// Length of the value.
    bytes: Option<usize>,
    /// Why there is none.
    error: Option<String>,
}

/// Reads a key at an LSN, past the cache of rebuilt pages, and explains how: which layers were visited, what each gave,
/// and how long that took.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/trace", tag = "pages",
    params(TimelinePath, KeyArgs),
    responses((status = 200, body = TraceAnswer), (status = 404, body = ErrorBody), (status = 412, body = ErrorBody)))]
pub(crate) async fn trace(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Args(args): Args<KeyArgs>,
) -> Result<Json<TraceAnswer>, ApiError> {
    let (timeline, key, lsn) = find(&app, path, args)?;
    let traced = timeline.explain(key, lsn, &app.ctx).await.map_err(not_readable)?;
    let micros = |took: Duration| u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let visit = |visited: Visited| TracedVisit {
        timeline_id: visited.timeline_id,
        layer: visited.layer,
        lsn_start: visited.lsns.start,
        lsn_end: visited.lsns.end,
        searched: visited.searched,
        filters_asked: visited.filters,
        local: visited.local,
        records: visited.records,
        image: visited.image,
        bytes: visited.bytes,
        micros: micros(visited.took),
    };
    let costs = traced.costs;
    let visits: Vec<TracedVisit> = traced.visits.into_iter().map(visit).collect();
    Ok(Json(TraceAnswer {
        lsn,
        layers_searched: visits.iter().filter(|visit| visit.searched).count(),
        visits,
        records: traced.records,
        image_lsn: traced.image_lsn,
        in_pieces: traced.in_pieces,
        filters_asked: costs.filters,
        local_bytes: costs.local_bytes,
        bucket_requests: costs.requests,
        bucket_bytes: costs.fetched_bytes,
        search_micros: micros(traced.search),
        wait_micros: micros(costs.waiting),
        plan_micros: micros(traced.search.saturating_sub(costs.waiting + costs.fetching)),
        fetch_micros: micros(costs.fetching),
        redo_micros: micros(traced.redo),
        bytes: traced.value.as_ref().ok().map(Bytes::len),
        error: traced.value.err().map(|error| error.to_string()),
    }))
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
    let value = read(&app, path, args, None).await?;
    Ok(Json(serde_json::json!({ "bytes": value.len() })))
}
