//! Checks on every request before its handler runs: authorization, and that no parameter would be ignored.

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::access::{Caller, Needs, permitted};
use super::app::App;
use super::audit::Known;
use super::error::ApiError;
use super::origin;
use crate::auth::{AuthError, Grant};
use metrics::METRICS;

/// Who the caller's token says that it acts for, if it does.
#[derive(Clone, Debug)]
pub(crate) struct Subject(pub(crate) Option<String>);

/// Lets clients notice that the server was restarted.
const LAUNCH_HEADER: HeaderName = HeaderName::from_static("pageserver_launch_timestamp");

/// What browsers do with answers: they neither guess what these are, nor show them on pages of others, nor keep them.
const CAREFUL: [(HeaderName, HeaderValue); 3] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// Refuses callers without permission, requests of other sites' pages, and unknown parameters. The handler is cut off
/// when the request times out or the caller's token ceases to be valid.
pub(crate) async fn check(
    State(app): State<App>,
    path: MatchedPath,
    parameters: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    METRICS.http_requests.inc();
    let needed = Needs::of(request.method(), path.as_str());
    let asked = (needed != Needs::Nothing).then(|| origin::check(request.method(), request.headers()));
    if let Some(Err(error)) = asked {
        return error.into_response();
    }
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
        if let Some(known) = request.extensions().get::<Known>() {
            known.caller(&grant);
        }
        request.extensions_mut().insert(Subject(grant.subject().map(str::to_owned)));
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

/// Refuses requests for other hosts, unless each needs a token anyway: nobody else's page has one.
pub(crate) async fn check_host(State(app): State<App>, request: Request, next: Next) -> Response {
    if !app.auth.is_required()
        && let Err(error) = app.hosts.check(request.uri(), request.headers())
    {
        return error.into_response();
    }
    next.run(request).await
}

async fn ended_if_any(grant: Option<Grant>) {
    match grant {
        Some(grant) => grant.ended().await,
        None => std::future::pending().await,
    }
}

/// Adds the server's start time to every answer, and what browsers are told.
pub(crate) async fn stamp(State(app): State<App>, mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(LAUNCH_HEADER, app.launch_timestamp.clone());
    headers.extend(CAREFUL);
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
