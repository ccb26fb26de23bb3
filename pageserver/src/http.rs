//! The management interface: HTTP/JSON under `/v1`, with an OpenAPI document generated from the handlers, and
//! Prometheus metrics.
//!
//! Each request passes [`guard`] first, which checks the caller's identity and permission, and that no parameter
//! would be ignored. Handlers are thin: they call the engine and convert its results to the types in [`models`].

mod access;
mod app;
mod audit;
mod condition;
mod console;
mod document;
mod error;
mod extract;
mod fleet;
mod guard;
mod hosts;
mod ids;
mod init;
mod init_turns;
mod known_args;
mod life;
mod logical_size;
mod memory;
mod models;
mod moment;
mod origin;
mod page_for_people;
mod quotas;
mod recorded;
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
use axum::routing::{get, post};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use utils::sync::keyed_lock::KeyedLock;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::{Auth, KeyRing};
use app::{App, AppState, FleetSeen, Life, new_ctx};
use engine::tenant::manager::TenantManager;
use error::ApiError;
use known_args::KnownArgs;
use logical_size::LogicalSizes;
use routes::{
    branch, detach, diff, fleet as fleet_route, history, init_sql, journal, layers, lsn, node, page, placement, quota,
    slow, stored, tenant, timeline, window, writer,
};
use scrubs::Scrubs;

use audit::Audit;
pub use audit::AuditOptions;
pub use console::ConsoleOptions;
pub use hosts::Hosts;
pub use sources::Sources;

/// Larger bodies are refused.
const MAX_BODY_BYTES: usize = 1 << 20;
/// How long the end of the server waits for the last lines of the audit log.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Options of the management interface.
pub struct HttpOptions {
    /// Authentication of callers.
    pub auth: Auth,
    /// The keys that `reload_auth_validation_keys` reloads, if any.
    pub keys: Option<Arc<KeyRing>>,
    /// If set, only TLS connections are served. Its ALPN protocols should be `http/1.1`.
    pub tls: Option<Arc<ServerConfig>>,
    /// Maximum number of concurrent requests; further ones wait, except probes.
    pub max_connections: usize,
    /// Requests that take longer are answered with 408.
    pub request_timeout: Duration,
    /// The names by which this server may be asked, where callers need no token.
    pub hosts: Hosts,
    /// Where the console of this server is, for people at other servers on the same bucket.
    pub public_url: Option<String>,
    /// The page for people at `/`, unless there is none.
    pub console: Option<ConsoleOptions>,
    /// How many branches a tenant may have; 0 is no limit.
    pub max_branches: usize,
    /// Where calls are noted that change something, unless nowhere.
    pub audit: Option<AuditOptions>,
}

/// Serves the management interface on `listener` until `cancel`, then lets requests in progress finish.
pub async fn serve(
    listener: TcpListener,
    options: HttpOptions,
    manager: TenantManager,
    sources: Sources,
    cancel: CancellationToken,
) {
    let (tls, max_connections) = (options.tls.clone().map(TlsAcceptor::from), options.max_connections);
    let (audit, writing) = Audit::start(options.audit.clone());
    let (router, app) = router(options, manager, sources, audit);
    let life = env::spawn::task("life of branches", life::tend(app.clone(), cancel.child_token()));
    drop(env::spawn::task("card of this server", fleet::keep_card(app, cancel.child_token())));
    server::serve(listener, tls, router, max_connections, cancel).await;
    // It may be deleting a branch.
    let _ = life.await;
    if let Some(writing) = writing {
        // What goes on without its caller may have the queue for longer.
        let _ = env::clock::timeout(LAST_LINES, writing).await;
    }
}

fn paths() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(document::description())
        .routes(routes!(node::status))
        .routes(routes!(fleet_route::fleet))
        .routes(routes!(placement::drain, placement::fill))
        .routes(routes!(placement::status, placement::order))
        .routes(routes!(node::metrics))
        .routes(routes!(node::reload_auth_validation_keys))
        .routes(routes!(node::io_mode))
        .routes(routes!(node::io_engine))
        .routes(routes!(node::openapi))
        .routes(routes!(node::swagger))
        .routes(routes!(node::doc))
        .routes(routes!(tenant::list))
        .routes(routes!(tenant::get, tenant::delete))
        .routes(routes!(tenant::location_config))
        .routes(routes!(tenant::wait_lsn))
        .routes(routes!(quota::get, quota::set))
        .routes(routes!(timeline::list, timeline::create))
        .routes(routes!(timeline::get, timeline::delete))
        .routes(routes!(branch::set))
        .routes(routes!(branch::restore))
        .routes(routes!(init_sql::get, init_sql::begin))
        .routes(routes!(init_sql::end))
        .routes(routes!(timeline::checkpoint))
        .routes(routes!(timeline::follow))
        .routes(routes!(timeline::follow_status))
        .routes(routes!(history::compact))
        .routes(routes!(detach::detach_ancestor))
        .routes(routes!(window::history, window::set_history))
        .routes(routes!(window::archival_config))
        .routes(routes!(diff::diff))
        .routes(routes!(writer::register, writer::release))
        .routes(routes!(lsn::get_lsn_by_timestamp))
        .routes(routes!(lsn::get_timestamp_of_lsn))
        .routes(routes!(lsn::lsn_lease))
        .routes(routes!(history::gc))
        .routes(routes!(history::do_gc))
        .routes(routes!(history::holds))
        .routes(routes!(history::hold, history::release))
        .routes(routes!(page::keyspace))
        .routes(routes!(page::getpage))
        .routes(routes!(page::touchpage))
        .routes(routes!(page::trace))
        .routes(routes!(slow::slow_reads))
        .routes(routes!(layers::list))
        .routes(routes!(layers::picture))
        .routes(routes!(stored::download, stored::download_by_get, stored::evict))
        .routes(routes!(stored::scrub, stored::scrub_status))
        .merge(
            OpenApiRouter::new()
                .routes(routes!(journal::give, journal::take))
                .layer(DefaultBodyLimit::max(journal::MAX_BYTES)),
        )
}

/// Paths by the names that they had before; not in the document.
fn former_paths() -> Router<App> {
    Router::new()
        .route("/v1/attach", post(timeline::follow))
        .route("/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/attach_status", get(timeline::follow_status))
}

fn router(options: HttpOptions, manager: TenantManager, sources: Sources, audit: Audit) -> (Router, App) {
    let (router, mut document) = paths().split_for_parts();
    document::complete(&mut document, options.auth.is_required());
    let started = moment::print(env::clock::system_now());
    let app = App(Arc::new(AppState {
        manager,
        sources,
        auth: options.auth,
        keys: options.keys,
        ctx: new_ctx(),
        known_args: KnownArgs::of(&document),
        scrubs: Scrubs::default(),
        sizes: LogicalSizes::default(),
        naming: KeyedLock::default(),
        registering: KeyedLock::default(),
        life: Life::default(),
        audit,
        fleet_seen: FleetSeen::default(),
        hosts: options.hosts,
        public_url: options.public_url,
        max_branches: options.max_branches,
        page: page_for_people::html(&document).into(),
        document: document.to_json().unwrap_or_default().into(),
        launch_timestamp: HeaderValue::from_str(&started).unwrap_or_else(|_| HeaderValue::from_static("unknown")),
        request_timeout: options.request_timeout,
    }));
    let console = options.console.map_or_else(Router::new, |console| console::routes(console, &app));
    let router = router
        .merge(former_paths())
        .route_layer(from_fn_with_state(app.clone(), guard::check))
        .route_layer(from_fn_with_state(app.clone(), recorded::record))
        .merge(console)
        .fallback(async || ApiError::not_found("no such path: /v1/doc lists those there are"))
        .method_not_allowed_fallback(async || {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this path has other methods: see /v1/doc")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(from_fn_with_state(app.clone(), guard::check_host))
        .layer(map_response_with_state(app.clone(), guard::stamp))
        .with_state(app.clone());
    (router, app)
}
