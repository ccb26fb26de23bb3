//! Extractors for parts of a request, which report invalid input as an `ApiError`.

use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use pageserver_api::shard::TenantShardId;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utils::id::TimelineId;
use utoipa::IntoParams;

use super::error::ApiError;
use super::ids::{HoldNameText, ServerText, TenantShardText, TimelineText};

/// Time limit for the whole body to arrive; meanwhile the request occupies a place.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);

/// Path parameters that name a tenant.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct TenantPath {
    /// The tenant: 32 hexadecimal digits.
    #[param(value_type = TenantShardText)]
    pub(crate) tenant_shard_id: TenantShardId,
}

/// Path parameters that name a server.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct ServerPath {
    /// The id of a server on the bucket.
    #[param(value_type = ServerText)]
    pub(crate) server_id: String,
}

/// Path parameters that name a timeline.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct TimelinePath {
    /// The tenant: 32 hexadecimal digits.
    #[param(value_type = TenantShardText)]
    pub(crate) tenant_shard_id: TenantShardId,
    /// The timeline: 32 hexadecimal digits.
    #[param(value_type = TimelineText)]
    pub(crate) timeline_id: TimelineId,
}

/// Path parameters that name a hold of a timeline.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct HoldPath {
    /// The tenant: 32 hexadecimal digits.
    #[param(value_type = TenantShardText)]
    pub(crate) tenant_shard_id: TenantShardId,
    /// The timeline: 32 hexadecimal digits.
    #[param(value_type = TimelineText)]
    pub(crate) timeline_id: TimelineId,
    /// The hold: 1 to 100 printable characters.
    #[param(value_type = HoldNameText)]
    pub(crate) name: String,
}

/// Extracts path parameters.
pub(crate) struct At<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for At<T> {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(inner)| At(inner)).map_err(|rejection| ApiError::bad_request(rejection.body_text()))
    }
}

/// Extracts query parameters.
pub(crate) struct Args<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Args<T> {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(inner)| Args(inner)).map_err(|rejection| ApiError::bad_request(rejection.body_text()))
    }
}

/// Extracts a JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;
    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let arriving = env::clock::timeout(BODY_TIMEOUT, bytes::Bytes::from_request(request, state)).await;
        let late = |_| ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time");
        let bytes = arriving.map_err(late)?.map_err(|rejection| {
            let status = rejection.status();
            let status = if status.is_client_error() { status } else { StatusCode::BAD_REQUEST };
            ApiError::new(status, rejection.body_text())
        })?;
        serde_json::from_slice(&bytes)
            .map(Body)
            .map_err(|error| ApiError::bad_request(format!("the body is not the JSON that is expected: {error}")))
    }
}
