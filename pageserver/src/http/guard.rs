//! What is checked of every request before its handler sees it: who asks, and that nothing is asked that would be
//! ignored.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use pageserver_api::shard::TenantShardId;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn};
use utoipa::openapi::{OpenApi, RefOr};

use super::App;
use super::error::ApiError;
use crate::auth::AuthError;
use crate::metrics::METRICS;

/// Tells that the server has been started anew.
const LAUNCH_HEADER: HeaderName = HeaderName::from_static("pageserver_launch_timestamp");
/// These answer without a token.
const OPEN_PATHS: [&str; 5] = ["/v1/status", "/v1/doc", "/v1/openapi.json", "/swagger.yml", "/metrics"];

/// Query parameters by path and method, as the OpenAPI document has them.
#[derive(Debug, Default)]
pub(crate) struct KnownArgs(BTreeMap<(String, Method), BTreeSet<String>>);

impl KnownArgs {
    pub(crate) fn of(document: &OpenApi) -> Self {
        let mut known = Self::default();
        for (path, item) in &document.paths.paths {
            let operations = [
                (Method::GET, &item.get),
                (Method::PUT, &item.put),
                (Method::POST, &item.post),
                (Method::DELETE, &item.delete),
            ];
            for (method, operation) in operations {
                let Some(operation) = operation else { continue };
                let query = parameters(operation).filter(|parameter| parameter.parameter_in == ParameterIn::Query);
                known.0.insert((path.clone(), method), query.map(|parameter| parameter.name.clone()).collect());
            }
        }
        known
    }

    /// Refuses a parameter that the path does not have.
    fn check(&self, path: &str, method: &Method, query: &str) -> Result<(), ApiError> {
        let Some(known) = self.0.get(&(path.to_owned(), method.clone())) else { return Ok(()) };
        let names = query.split('&').filter(|part| !part.is_empty()).map(|part| part.split('=').next().unwrap_or(part));
        match names.into_iter().find(|name| !known.contains(*name)) {
            None => Ok(()),
            Some(unknown) if known.is_empty() => {
                Err(ApiError::bad_request(format!("unknown parameter {unknown:?}: this path takes none")))
            }
            Some(unknown) => {
                let known = known.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                Err(ApiError::bad_request(format!("unknown parameter {unknown:?}: this path takes {known}")))
            }
        }
    }
}

/// The parameters of an operation. None of ours refers to one elsewhere.
pub(crate) fn parameters(operation: &Operation) -> impl Iterator<Item = &Parameter> {
    operation.parameters.iter().flatten().filter_map(|parameter| match parameter {
        RefOr::T(parameter) => Some(parameter),
        RefOr::Ref(_) => None,
    })
}

/// Refuses callers that may not do what they ask for, and parameters that nobody knows.
pub(crate) async fn check(
    State(app): State<App>,
    path: MatchedPath,
    parameters: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    METRICS.http_requests.inc();
    let allowed = match OPEN_PATHS.contains(&path.as_str()) {
        true => Ok(()),
        false => match &parameters {
            Ok(parameters) => check_permission(&app, request.headers(), parameters),
            Err(rejection) => Err(ApiError::bad_request(rejection.body_text())),
        },
    };
    let query = request.uri().query().unwrap_or_default();
    match allowed.and_then(|()| app.known_args.check(path.as_str(), request.method(), query)) {
        Err(error) => error.into_response(),
        Ok(()) => match tokio::time::timeout(app.request_timeout, next.run(request)).await {
            Ok(response) => response,
            Err(_) => ApiError::new(StatusCode::REQUEST_TIMEOUT, "the request took too long").into_response(),
        },
    }
}

/// What concerns a tenant is open to its own tokens, all else only to those for everything.
fn check_permission(app: &App, headers: &HeaderMap, parameters: &RawPathParams) -> Result<(), ApiError> {
    let refused = |error: AuthError| {
        METRICS.auth_refused.inc();
        ApiError::from(error)
    };
    let permission = app.auth.check(bearer(headers).map_err(refused)?).map_err(refused)?;
    let Some((_, tenant)) = parameters.iter().find(|(name, _)| *name == "tenant_shard_id") else {
        return permission.check_all().map_err(refused);
    };
    let tenant: TenantShardId = tenant.parse().map_err(|error| ApiError::bad_request(format!("{error}")))?;
    permission.check_tenant(tenant.tenant_id).map_err(refused)
}

/// The token of the header `Authorization`, if there is one.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, AuthError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return if headers.contains_key(header::AUTHORIZATION) { Err(AuthError::Invalid) } else { Ok(None) };
    };
    let (scheme, token) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or(AuthError::Invalid)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(Some(token.trim())) } else { Err(AuthError::Invalid) }
}

/// Stamps every answer with the moment of the server's start.
pub(crate) async fn stamp(State(app): State<App>, mut response: Response) -> Response {
    response.headers_mut().insert(LAUNCH_HEADER, app.launch_timestamp.clone());
    response
}
