//! The management interface: HTTP/JSON under `/v1`, with an OpenAPI document made from the handlers themselves, and
//! Prometheus metrics.
//!
//! A request passes [`guard`] first: who asks, may he, does he ask for anything that would be ignored. Handlers are
//! thin: they call the engine and put what it answers into the shapes of [`models`].

mod error;
mod extract;
mod guard;
mod models;
mod moment;
mod page_for_people;
#[allow(unused_qualifications, reason = "those that the macro for paths makes")]
mod routes;
mod scrape;
mod scrubs;
mod server;
mod sources;
mod svg;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{from_fn_with_state, map_response_with_state};
use bytes::Bytes;
use pageserver_api::shard::TenantShardId;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use utils::sync::keyed_lock::KeyedLock;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::{Auth, KeyRing};
use crate::context::{DownloadBehavior, RequestContext};
use crate::task_mgr::TaskKind;
use crate::tenant::manager::TenantManager;
use error::ApiError;
use guard::KnownArgs;
use routes::{diff, layers, lsn, node, page, stored, tenant, timeline, writer};
use scrubs::Scrubs;

pub use sources::Sources;

/// There is one server, and this is its number.
const NODE_ID: u64 = 1;
/// Bodies larger than this are refused.
const MAX_BODY_BYTES: usize = 1 << 20;

/// How the port is served.
pub struct HttpOptions {
    /// Who may do what.
    pub auth: Auth,
    /// The keys that `reload_auth_validation_keys` reads again, if there are any.
    pub keys: Option<Arc<KeyRing>>,
    /// If set, only TLS is spoken. Its protocols should be `http/1.1`.
    pub tls: Option<Arc<ServerConfig>>,
    /// Connections beyond this number wait.
    pub max_connections: usize,
    /// Requests that take longer are answered with 408.
    pub request_timeout: Duration,
}

/// What handlers need.
#[derive(Clone)]
pub(crate) struct App(Arc<AppState>);

pub(crate) struct AppState {
    manager: TenantManager,
    sources: Sources,
    auth: Auth,
    keys: Option<Arc<KeyRing>>,
    ctx: RequestContext,
    known_args: KnownArgs,
    scrubs: Scrubs,
    /// Held while a branch of the tenant is given a name.
    naming: KeyedLock<TenantShardId>,
    /// The OpenAPI document.
    document: Bytes,
    launch_timestamp: HeaderValue,
    request_timeout: Duration,
}

impl std::ops::Deref for App {
    type Target = AppState;
    fn deref(&self) -> &AppState {
        &self.0
    }
}

/// Serves the management interface on `listener` until `cancel`; then requests in progress are finished first.
pub async fn serve(
    listener: TcpListener,
    options: HttpOptions,
    manager: TenantManager,
    sources: Sources,
    cancel: CancellationToken,
) {
    let (tls, max_connections) = (options.tls.clone().map(TlsAcceptor::from), options.max_connections);
    server::serve(listener, tls, router(options, manager, sources), max_connections, cancel).await;
}

/// The OpenAPI document of the interface.
pub fn document() -> utoipa::openapi::OpenApi {
    paths().into_openapi()
}

fn new_ctx() -> RequestContext {
    RequestContext::new(TaskKind::MgmtRequest, DownloadBehavior::Download)
}

/// Does what must not be left half done, even if the caller goes away meanwhile.
async fn to_the_end<T: Send + 'static>(
    name: &'static str,
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    let failed = |error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{name}: {error}"));
    env::spawn::task(name, work).await.unwrap_or_else(|error| Err(failed(error)))
}

#[derive(OpenApi)]
#[openapi(
    info(title = "pageserver", description = "Management of tenants and timelines: histories of Postgres clusters."),
    modifiers(&BearerToken),
    security(("bearer" = []))
)]
struct Description;

struct BearerToken;

impl Modify for BearerToken {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format("JWT")
            .description(Some("EdDSA; scope pageserverapi, or tenant with tenant_id. Not needed with auth type Trust"))
            .build();
        openapi.components.get_or_insert_default().add_security_scheme("bearer", SecurityScheme::Http(scheme));
    }
}

fn paths() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(node::status))
        .routes(routes!(node::metrics))
        .routes(routes!(node::reload_auth_validation_keys))
        .routes(routes!(node::openapi))
        .routes(routes!(node::swagger))
        .routes(routes!(node::doc))
        .routes(routes!(tenant::list))
        .routes(routes!(tenant::get, tenant::delete))
        .routes(routes!(tenant::location_config))
        .routes(routes!(tenant::wait_lsn))
        .routes(routes!(timeline::list, timeline::create))
        .routes(routes!(timeline::get, timeline::delete))
        .routes(routes!(timeline::checkpoint))
        .routes(routes!(timeline::attach))
        .routes(routes!(timeline::attach_status))
        .routes(routes!(diff::diff))
        .routes(routes!(writer::register, writer::release))
        .routes(routes!(lsn::get_lsn_by_timestamp))
        .routes(routes!(lsn::get_timestamp_of_lsn))
        .routes(routes!(lsn::lsn_lease))
        .routes(routes!(page::keyspace))
        .routes(routes!(page::getpage))
        .routes(routes!(page::touchpage))
        .routes(routes!(layers::list))
        .routes(routes!(layers::picture))
        .routes(routes!(stored::download, stored::download_by_get, stored::evict))
        .routes(routes!(stored::scrub, stored::scrub_status))
}

fn router(options: HttpOptions, manager: TenantManager, sources: Sources) -> Router {
    let (router, document) = paths().split_for_parts();
    let started = moment::print(env::clock::system_now());
    let app = App(Arc::new(AppState {
        manager,
        sources,
        auth: options.auth,
        keys: options.keys,
        ctx: new_ctx(),
        known_args: KnownArgs::of(&document),
        scrubs: Scrubs::default(),
        naming: KeyedLock::default(),
        document: document.to_json().unwrap_or_default().into(),
        launch_timestamp: HeaderValue::from_str(&started).unwrap_or_else(|_| HeaderValue::from_static("unknown")),
        request_timeout: options.request_timeout,
    }));
    router
        .route_layer(from_fn_with_state(app.clone(), guard::check))
        .fallback(async || ApiError::not_found("no such path: /v1/doc lists those there are"))
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this path has other methods: see /v1/doc")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(map_response_with_state(app.clone(), guard::stamp))
        .with_state(app)
}
