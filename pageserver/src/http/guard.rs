//! Checks on every request before its handler runs: authorization, and that no parameter would be ignored.

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderName, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::access::{Caller, Needs, permitted};
use super::app::App;
use super::error::ApiError;
use crate::auth::{AuthError, Grant};
use metrics::METRICS;

/// Lets clients notice that the server was restarted.
const LAUNCH_HEADER: HeaderName = HeaderName::from_static("pageserver_launch_timestamp");

/// Refuses callers without permission, and unknown parameters. The handler is cut off when the request times out or
/// the caller's token ceases to be valid.
pub(crate) async fn check(
    State(app): State<App>,
    path: MatchedPath,
    parameters: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    METRICS.http_requests.inc();
    let needed = Needs::of(request.method(), path.as_str());
    let grant = match permitted(&app, needed, request.headers(), parameters) {
        Ok(grant) => grant,
        Err(error) => return error.into_response(),
    };
    let query = request.uri().query().unwrap_or_default();
    if let Err(error) = app.known_args.check(path.as_str(), request.method(), query) {
        return error.into_response();
    }
    let ended = grant.clone();
    if let Some(grant) = grant {
        request.extensions_mut().insert(grant.permission());
        if let Some(caller) = request.extensions().get::<Caller>() {
            caller.is(grant);
        }
    }
    tokio::select! {
        biased;
        answer = env::clock::timeout(app.request_timeout, next.run(request)) => answer.unwrap_or_else(|_| {
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "the request took too long").into_response()
        }),
        () = ended_if_any(ended) => ApiError::from(AuthError::Ended).into_response(),
    }
}

async fn ended_if_any(grant: Option<Grant>) {
    match grant {
        Some(grant) => grant.ended().await,
        None => std::future::pending().await,
    }
}

/// Adds the server's start time to every answer.
pub(crate) async fn stamp(State(app): State<App>, mut response: Response) -> Response {
    response.headers_mut().insert(LAUNCH_HEADER, app.launch_timestamp.clone());
    response
}
