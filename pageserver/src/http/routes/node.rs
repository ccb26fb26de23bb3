//! The server as a whole.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use bytes::Bytes;
use pageserver_api::models::virtual_file::{IoEngineKind, IoMode};
use pageserver_api::shard::TenantShardId;

use crate::http::app::{App, NODE_ID};
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::Body;
use crate::http::models::{DiskStatus, Slug, StatusAnswer};
use crate::http::scrape;
use crate::walreceiver::{OWNER_NAME, standby_name};
use engine::disk_budget::{DiskBudget, Measured};
use engine::lease::LeaseState;
use metrics::Exposition;

/// Reports whether the server is alive.
#[utoipa::path(get, path = "/v1/status", tag = "server", responses((status = 200, body = StatusAnswer)))]
pub(crate) async fn status(State(app): State<App>) -> Json<StatusAnswer> {
    let is_fenced = |id: &TenantShardId| app.manager.remote_of(*id).is_some_and(|remote| remote.fenced().is_some());
    let fenced_tenants = app.manager.tenants().into_iter().filter(is_fenced).collect();
    let disk = disk_status(&app.manager.conf().disk_budget);
    let durability = if app.sources.has_journal() { "journal" } else { "bucket" };
    let (lease, lease_ended) = match app.manager.lease() {
        LeaseState::None => ("None", None),
        LeaseState::Held(_) => ("Held", None),
        LeaseState::Ended(reason) => ("Ended", Some(reason)),
    };
    Json(StatusAnswer {
        id: NODE_ID,
        version: env!("CARGO_PKG_VERSION"),
        durability,
        standby_name: standby_name(OWNER_NAME, &app.manager.conf().server.id),
        lease: Slug { slug: lease },
        lease_ended,
        standbys: app.manager.standbys().into_iter().map(|(id, _)| id).collect(),
        fenced_tenants,
        disk,
    })
}

fn disk_status(budget: &DiskBudget) -> Option<DiskStatus> {
    let Measured { resident, not_uploaded, in_memory, disk_free, .. } = budget.measured()?;
    let (intake, room) = (budget.level(), budget.room());
    Some(DiskStatus { intake, room, resident, not_uploaded, in_memory, free: disk_free })
}

/// Metrics for Prometheus: in its text format, or in OpenMetrics if the Accept header asks for it.
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, content((String = "text/plain"), (String = "application/openmetrics-text")))))]
pub(crate) async fn metrics(State(app): State<App>, headers: HeaderMap) -> Result<Response, ApiError> {
    let accept: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let wanted = Exposition::accepted(&accept.join(","));
    let text = scrape::text(&app.manager, &app.sources, wanted)
        .map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("metrics: {error}")))?;
    Ok(([(header::CONTENT_TYPE, wanted.content_type()), (header::VARY, "Accept")], text).into_response())
}

/// Reloads the public keys for token signatures. On error the present keys stay in use.
#[utoipa::path(post, path = "/v1/reload_auth_validation_keys", tag = "server",
    responses((status = 200, body = Object), (status = 412, body = ErrorBody)))]
pub(crate) async fn reload_auth_validation_keys(State(app): State<App>) -> Result<Json<serde_json::Value>, ApiError> {
    let Some(keys) = app.keys.clone() else {
        return Err(ApiError::precondition("there are no keys: no port is set to authenticate by JWT"));
    };
    let count = keys.reload().map_err(|error| ApiError::precondition(error.to_string()))?;
    tracing::info!("{count} public keys for authentication are in use");
    Ok(Json(serde_json::json!({ "keys": count })))
}

/// Changes when files bypass the kernel's page cache: `buffered`, `direct` or `direct-rw`. Files that are open keep
/// theirs, and so does the next start.
#[utoipa::path(put, path = "/v1/io_mode", tag = "server", request_body = String,
    responses((status = 200, description = "Done: null")))]
pub(crate) async fn io_mode(Body(mode): Body<IoMode>) -> Json<()> {
    tracing::info!("files are opened with I/O mode {mode} from now on");
    virtual_file::set_io_mode(mode);
    Json(())
}

/// Changes what performs file I/O: `std-fs` or `tokio-epoll-uring`. The next start does as configured again.
#[utoipa::path(put, path = "/v1/io_engine", tag = "server", request_body = String,
    responses((status = 200, description = "Done: null"),
        (status = 412, body = ErrorBody, description = "It does not work on this machine")))]
pub(crate) async fn io_engine(Body(engine): Body<IoEngineKind>) -> Result<Json<()>, ApiError> {
    virtual_file::set_io_engine(engine).map_err(|error| ApiError::precondition(format!("{engine}: {error}")))?;
    tracing::info!("file I/O goes through {engine} from now on");
    Ok(Json(()))
}

/// The OpenAPI document of this interface.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "server",
    responses((status = 200, body = Object)))]
pub(crate) async fn openapi(State(app): State<App>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], app.document.clone()).into_response()
}

/// The OpenAPI document, for clients that expect it here. (JSON is YAML.)
#[utoipa::path(get, path = "/swagger.yml", tag = "server",
    responses((status = 200, body = Object, content_type = "application/yaml")))]
pub(crate) async fn swagger(State(app): State<App>) -> Response {
    ([(header::CONTENT_TYPE, "application/yaml")], app.document.clone()).into_response()
}

/// The documentation of this interface, as a page for people.
#[utoipa::path(get, path = "/v1/doc", tag = "server",
    responses((status = 200, body = String, content_type = "text/html")))]
pub(crate) async fn doc(State(app): State<App>) -> Html<Bytes> {
    Html(app.page.clone())
}
