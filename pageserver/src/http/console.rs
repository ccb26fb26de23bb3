//! The console: a page for people, at `/`. Its files are part of the program, and it asks nothing but this server.
//!
//! Nothing here needs a token: the files have no data. The page sends the token that somebody has typed in with each
//! request, as any other client does; no cookie does that by itself, so that no other page can.

mod assets;
mod relay;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use serde::Serialize;

use self::assets::{Asset, Assets};
use self::relay::relay;
use super::app::App;
use super::error::ApiError;
use super::{guard, recorded};

/// What the page may load, from where, and who may show it: its own files, from here, nobody else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// For the page and its files, besides those that every answer has.
const HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    // Asked for again each time, so that a page is never made of files of two versions; mostly "not modified".
    (header::CACHE_CONTROL, "no-cache"),
];

/// Options of the console.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConsoleOptions {
    /// Where `pagectl compute serve` is, to which what the page asks of computes is passed on.
    pub computes: Option<SocketAddr>,
}

/// What the page has to know before it asks anything else.
#[derive(Clone, Debug, Serialize)]
struct About {
    /// Changes with every change of the files: so a page that is older than the server can tell.
    version: String,
    /// Whether callers need a token.
    tokens: bool,
    /// Whether computes can be asked for.
    computes: bool,
}

/// The console's paths. Those that pass something on are guarded like those of the management interface.
pub(super) fn routes(options: ConsoleOptions, app: &App) -> Router<App> {
    let assets = Arc::new(Assets::new());
    let about = About {
        version: assets.version().to_owned(),
        tokens: app.auth.is_required(),
        computes: options.computes.is_some(),
    };
    let (page, files) = (Arc::clone(&assets), assets);
    let computes = move |path: Option<Path<String>>, request| relay(options.computes, path, request);
    let guarded = Router::new()
        .route("/console/computes", any(computes))
        .route("/console/computes/{*path}", any(computes))
        .route_layer(from_fn_with_state(app.clone(), guard::check))
        .route_layer(from_fn_with_state(app.clone(), recorded::record));
    Router::new()
        .route("/", get(async move |headers: HeaderMap| serve(page.get("index.html"), &headers)))
        .route("/console/about", get(async move || Json(about)))
        .route(
            "/console/{*name}",
            get(async move |Path(name): Path<String>, headers: HeaderMap| serve(files.get(&name), &headers)),
        )
        .merge(guarded)
}

fn serve(asset: Option<&Asset>, asked: &HeaderMap) -> Response {
    let Some(asset) = asset else {
        return ApiError::not_found("the console has no such file: reload the page").into_response();
    };
    let text = |name: HeaderName| asked.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let known = text(header::IF_NONE_MATCH).split(',').any(|tag| tag.trim().trim_start_matches("W/") == asset.tag);
    let packed =
        text(header::ACCEPT_ENCODING).split(',').any(|way| way.split(';').next().map(str::trim) == Some("gzip"));
    let mut answer = match (known, packed) {
        (true, _) => StatusCode::NOT_MODIFIED.into_response(),
        (false, true) => ([(header::CONTENT_ENCODING, "gzip")], asset.packed.clone()).into_response(),
        (false, false) => asset.plain.clone().into_response(),
    };
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    if let Ok(tag) = HeaderValue::from_str(&asset.tag) {
        headers.insert(header::ETAG, tag);
    }
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}
