//! Errors as callers see them: a status code, and a JSON object whose only member `msg` describes the problem.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::AuthError;
use engine::tenant::manager::ManageError;
use errors::{ErrorKind, StorageError};

/// The body of every error.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// Description of the error, for people.
    msg: String,
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    msg: String,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, msg: impl Into<String>) -> Self {
        Self { status, msg: msg.into() }
    }

    /// 400: the request is invalid.
    pub(crate) fn bad_request(msg: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, msg)
    }

    /// 404: the object does not exist.
    pub(crate) fn not_found(msg: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, msg)
    }

    /// 406: the LSN or time cannot be used.
    pub(crate) fn not_acceptable(msg: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_ACCEPTABLE, msg)
    }

    /// 409: it contradicts what is there.
    pub(crate) fn conflict(msg: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, msg)
    }

    /// What is wrong, for people.
    pub(crate) fn msg(&self) -> &str {
        &self.msg
    }

    /// 412: the stored state does not permit it.
    pub(crate) fn precondition(msg: impl Into<String>) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, msg)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::info!(status = self.status.as_u16(), "request failed: {}", self.msg);
        }
        (self.status, Json(ErrorBody { msg: self.msg })).into_response()
    }
}

impl From<AuthError> for ApiError {
    fn from(error: AuthError) -> Self {
        let status = match error {
            AuthError::Missing | AuthError::Invalid | AuthError::Ended => StatusCode::UNAUTHORIZED,
            AuthError::Forbidden => StatusCode::FORBIDDEN,
        };
        Self::new(status, error.to_string())
    }
}

impl From<StorageError> for ApiError {
    fn from(error: StorageError) -> Self {
        let status = match (&error, error.kind()) {
            (StorageError::LsnTimeout { .. }, _) => StatusCode::REQUEST_TIMEOUT,
            (_, ErrorKind::Retry | ErrorKind::Fenced | ErrorKind::Shutdown) => StatusCode::SERVICE_UNAVAILABLE,
            (_, ErrorKind::Invalid) => StatusCode::BAD_REQUEST,
            (_, ErrorKind::Gone) => StatusCode::NOT_FOUND,
            (_, ErrorKind::Corrupt | ErrorKind::Internal) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<ManageError> for ApiError {
    fn from(error: ManageError) -> Self {
        let status = match &error {
            ManageError::NotFound(_) => StatusCode::NOT_FOUND,
            ManageError::Conflict(_) => StatusCode::CONFLICT,
            ManageError::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
            ManageError::Elsewhere(_) => StatusCode::MISDIRECTED_REQUEST,
            ManageError::Precondition(_) => StatusCode::PRECONDITION_FAILED,
            ManageError::NotAcceptable(_) => StatusCode::NOT_ACCEPTABLE,
            ManageError::Storage(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        match error {
            ManageError::Storage(error) => error.into(),
            other => Self::new(status, other.to_string()),
        }
    }
}
