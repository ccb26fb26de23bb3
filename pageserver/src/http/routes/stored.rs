//! Storage locations: manual download and eviction of layers, and the scrub of a tenant.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use pageserver_api::shard::TenantShardId;
use serde::{Deserialize, Serialize};
use utils::id::TimelineId;
use utoipa::{IntoParams, ToSchema};

use crate::http::app::{App, new_ctx, to_the_end};
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{Args, At, TenantPath};
use crate::http::ids::{TenantShardText, TimelineText};
use crate::http::scrubs::{GRACE, ScrubAnswer};
use engine::tenant::layer_map::Layer;
use engine::tenant::scrub::Options;
use errors::ErrorKind;

/// A layer of a timeline.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct LayerPath {
    /// The tenant, 32 hexadecimal digits.
    #[param(value_type = TenantShardText)]
    tenant_shard_id: TenantShardId,
    /// The timeline, 32 hexadecimal digits.
    #[param(value_type = TimelineText)]
    timeline_id: TimelineId,
    /// The layer's file name, as in the list of layers.
    layer_file_name: String,
}

/// The residency of a layer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResidencyAnswer {
    /// The layer's file name.
    layer_file_name: String,
    /// Whether the whole file is on the local disk.
    resident: bool,
    /// Bytes freed on the local disk.
    freed_bytes: u64,
}

fn find(app: &App, path: &LayerPath) -> Result<Arc<Layer>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let mut layers = timeline.layer_files().into_iter();
    let found = layers.find(|layer| layer.path().file_name() == Some(path.layer_file_name.as_str()));
    found.ok_or_else(|| ApiError::not_found(format!("timeline {} has no such layer", path.timeline_id)))
}

async fn fetch(app: &App, path: LayerPath) -> Result<Json<ResidencyAnswer>, ApiError> {
    let layer = find(app, &path)?;
    to_the_end("download of a layer", async move {
        layer.download(&new_ctx()).await?;
        let resident = layer.is_local();
        Ok(Json(ResidencyAnswer { layer_file_name: path.layer_file_name, resident, freed_bytes: 0 }))
    })
    .await
}

/// Downloads a layer from the bucket. Does nothing if it is resident.
#[utoipa::path(post, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/layer/{layer_file_name}",
    tag = "layers", params(LayerPath), responses((status = 200, body = ResidencyAnswer),
        (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(crate) async fn download(
    State(app): State<App>,
    At(path): At<LayerPath>,
) -> Result<Json<ResidencyAnswer>, ApiError> {
    fetch(&app, path).await
}

/// Same as POST, for clients that use GET.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/layer/{layer_file_name}",
    tag = "layers", params(LayerPath), responses((status = 200, body = ResidencyAnswer),
        (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(crate) async fn download_by_get(
    State(app): State<App>,
    At(path): At<LayerPath>,
) -> Result<Json<ResidencyAnswer>, ApiError> {
    fetch(&app, path).await
}

/// Evicts a layer from the local disk. From then on it is read from the bucket.
#[utoipa::path(delete, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/layer/{layer_file_name}",
    tag = "layers", params(LayerPath), responses((status = 200, body = ResidencyAnswer),
        (status = 404, body = ErrorBody),
        (status = 412, body = ErrorBody, description = "The bucket does not have it")))]
pub(crate) async fn evict(State(app): State<App>, At(path): At<LayerPath>) -> Result<Json<ResidencyAnswer>, ApiError> {
    let layer = find(&app, &path)?;
    to_the_end("eviction of a layer", async move {
        let freed_bytes = layer.evict().await.map_err(|error| match error.kind() {
            ErrorKind::Invalid => ApiError::precondition(error.to_string()),
            _ => error.into(),
        })?;
        let resident = layer.is_local();
        Ok(Json(ResidencyAnswer { layer_file_name: path.layer_file_name, resident, freed_bytes }))
    })
    .await
}

/// What a scrub may change.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ScrubArgs {
    /// Repair local files from the bucket.
    #[serde(default)]
    repair: bool,
    /// Repair objects from good local files.
    #[serde(default)]
    repair_bucket: bool,
    /// Remove whatever is not referenced and is older than an hour.
    #[serde(default)]
    delete_orphans: bool,
}

/// Starts to verify everything stored for a tenant, here and in the bucket. GET returns the progress.
#[utoipa::path(post, path = "/v1/tenant/{tenant_shard_id}/scrub", tag = "tenants", params(TenantPath, ScrubArgs),
    responses((status = 202, body = ScrubAnswer), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "One is under way")))]
pub(crate) async fn scrub(
    State(app): State<App>,
    At(path): At<TenantPath>,
    Args(args): Args<ScrubArgs>,
) -> Result<(StatusCode, Json<ScrubAnswer>), ApiError> {
    let ScrubArgs { repair, repair_bucket, delete_orphans } = args;
    let options = Options { repair, repair_bucket, delete_orphans, grace: GRACE };
    let answer = app.scrubs.start(&app.manager, path.tenant_shard_id, options)?;
    Ok((StatusCode::ACCEPTED, Json(answer)))
}

/// Returns the progress of a tenant's last scrub, or its findings.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/scrub", tag = "tenants", params(TenantPath),
    responses((status = 200, body = ScrubAnswer), (status = 404, body = ErrorBody)))]
pub(crate) async fn scrub_status(
    State(app): State<App>,
    At(path): At<TenantPath>,
) -> Result<Json<ScrubAnswer>, ApiError> {
    let answer = app.scrubs.status(path.tenant_shard_id);
    let none = || ApiError::not_found(format!("tenant {} was not scrubbed since the start", path.tenant_shard_id));
    answer.map(Json).ok_or_else(none)
}
