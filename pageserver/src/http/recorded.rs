//! Calls that may change something, noted in the audit log, and the names of all calls.

use std::time::Instant;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use traces::{Kind, Parent, Trace};
use tracing::Instrument;
use utils::id::TimelineId;

use super::app::App;
use super::audit::{Audit, Entry, Known, Peer};
use super::moment;

/// A caller's own request id is taken if it is no longer than that.
const ID_MAX: usize = 64;
/// By which a caller may name its request, and learns the name of it.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// By which a caller says what its request is part of.
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Notes when it is dropped, however the request ends.
struct Pending {
    audit: Audit,
    entry: Entry,
    known: Known,
    began: Instant,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut entry = std::mem::take(&mut self.entry);
        let caller = self.known.subject.get();
        (entry.authorized, entry.subject) = (caller.is_some(), caller.cloned().flatten());
        entry.timeline = entry.timeline.or_else(|| self.known.timeline.get().map(TimelineId::to_string));
        entry.init_sql_sha256 = self.known.sql.get().cloned();
        let took = env::clock::now().saturating_duration_since(self.began);
        entry.milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.audit.note(entry);
    }
}

/// Notes each call that may change something, those included that are refused.
pub(super) async fn record(
    State(app): State<App>,
    path: MatchedPath,
    parameters: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = request_id(&request);
    // All that is said while it is worked on has its id.
    let span = tracing::info_span!("request", id);
    let trace = traces::begin(caller(&request));
    if let Some(trace) = &trace {
        request.extensions_mut().insert(trace.clone());
    }
    let name = trace.as_ref().map(|_| (request.method().to_string(), path.as_str().to_owned()));
    let answer = note(app, path, parameters, request, next, &id).instrument(span).await;
    if let (Some(trace), Some((method, route))) = (trace, name) {
        end(trace, method, route, &answer, &id);
    }
    stamped(answer, &id)
}

/// What the request is part of, if its caller says so.
fn caller(request: &Request) -> Option<Parent> {
    request.headers().get(TRACE_PARENT).and_then(|value| value.to_str().ok()).and_then(Parent::parse)
}

fn end(trace: Trace, method: String, route: String, answer: &Response, id: &str) {
    let status = answer.status();
    let error = status.is_server_error().then(|| status.to_string());
    let name = format!("{method} {route}");
    let about = vec![
        ("http.request.method", method.into()),
        ("http.route", route.into()),
        ("http.response.status_code", u64::from(status.as_u16()).into()),
        ("request.id", id.into()),
    ];
    trace.end(&name, Kind::Server, about, error);
}

async fn note(
    app: App,
    path: MatchedPath,
    parameters: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
    id: &str,
) -> Response {
    let method = match *request.method() {
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        _ => return next.run(request).await,
    };
    // What cannot be read is refused where permissions are checked.
    let named = |name| parameters.as_ref().ok()?.iter().find(|(of, _)| *of == name);
    let of = |name| named(name).map(|(_, value)| value.to_owned());
    let entry = Entry {
        time: moment::print(env::clock::system_now()),
        request_id: Some(id.to_owned()),
        peer: request.extensions().get::<Peer>().map(|peer| peer.0),
        method,
        operation: path.as_str().to_owned(),
        tenant: of("tenant_shard_id"),
        timeline: of("timeline_id"),
        name: of("name").or_else(|| of("path")),
        ..Entry::default()
    };
    let known = Known::default();
    request.extensions_mut().insert(known.clone());
    let mut pending = Pending { audit: app.audit.clone(), entry, known, began: env::clock::now() };
    let answer = next.run(request).await;
    pending.entry.status = Some(answer.status().as_u16());
    answer
}

/// The caller's name for its request, or one that is made for it.
fn request_id(request: &Request) -> String {
    let given = request.headers().get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let plain = |id: &&str| !id.is_empty() && id.len() <= ID_MAX && id.bytes().all(|byte| byte.is_ascii_graphic());
    given.filter(plain).map_or_else(|| format!("{:016x}", env::random::u64()), str::to_owned)
}

fn stamped(mut answer: Response, id: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(id) {
        answer.headers_mut().insert(REQUEST_ID, value);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_may_name_its_request() {
        let with = |id: &str| Request::builder().header("x-request-id", id).body(axum::body::Body::empty()).unwrap();
        assert_eq!(request_id(&with("ci/77")), "ci/77");
        for odd in ["", "a b", &"x".repeat(65)] {
            assert_eq!(request_id(&with(odd)).len(), 16, "{odd}");
        }
    }
}
