//! How much a tenant may have.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::window::Change;
use crate::http::app::{App, to_the_end};
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{At, Body, TenantPath};
use crate::http::quotas::{self, Used};
use crate::walreceiver::card::Quota;

/// Changes of how much a tenant may have. What is not given stays as it is; null is no limit.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuotaBody {
    /// Branches.
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    branches: Change<u64>,
    /// Computes that write a branch.
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    computes: Change<u64>,
    /// Bytes of layer files. Beyond that no branch is made; what is there goes on to take in WAL.
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    bytes: Change<u64>,
}

/// How much a tenant may have, and has.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QuotaAnswer {
    /// Branches; null for no limit but the server's `max_branches`.
    branches: Option<u64>,
    /// Computes that write a branch; null for no limit.
    computes: Option<u64>,
    /// Bytes of layer files; null for no limit.
    bytes: Option<u64>,
    /// What it has.
    used: Used,
}

fn answer(app: &App, path: TenantPath, quota: Quota) -> Json<QuotaAnswer> {
    let Quota { branches, computes, bytes, .. } = quota;
    Json(QuotaAnswer { branches, computes, bytes, used: quotas::used(app, path.tenant_shard_id) })
}

/// Shows how much a tenant may have, and has.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/quota", tag = "tenants", params(TenantPath),
    responses((status = 200, body = QuotaAnswer), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(State(app): State<App>, At(path): At<TenantPath>) -> Result<Json<QuotaAnswer>, ApiError> {
    app.manager.timelines(path.tenant_shard_id)?;
    let quota = quotas::of(&app.manager, path.tenant_shard_id).unwrap_or_default();
    Ok(answer(&app, path, quota))
}

/// Changes how much a tenant may have. Needs a token for everything.
#[utoipa::path(put, path = "/v1/tenant/{tenant_shard_id}/quota", tag = "tenants", params(TenantPath),
    request_body = QuotaBody,
    responses((status = 200, body = QuotaAnswer), (status = 404, body = ErrorBody),
        (status = 412, body = ErrorBody, description = "The tenant has no timeline yet")))]
pub(crate) async fn set(
    State(app): State<App>,
    At(path): At<TenantPath>,
    Body(body): Body<QuotaBody>,
) -> Result<Json<QuotaAnswer>, ApiError> {
    for (name, value) in [("branches", &body.branches), ("computes", &body.computes), ("bytes", &body.bytes)] {
        if let Change::To(Some(most)) = value
            && i64::try_from(*most).is_err()
        {
            return Err(ApiError::bad_request(format!("{name}: {most} is too large")));
        }
    }
    to_the_end("change of a quota", async move {
        let changed = quotas::change(&app, path.tenant_shard_id, |quota| {
            body.branches.apply(&mut quota.branches);
            body.computes.apply(&mut quota.computes);
            body.bytes.apply(&mut quota.bytes);
        });
        let quota = changed.await?;
        tracing::info!(tenant = %path.tenant_shard_id, ?quota, "the quota of a tenant is changed");
        Ok(answer(&app, path, quota))
    })
    .await
}
