//! Shared state of the request handlers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{HeaderValue, StatusCode};
use bytes::Bytes;
use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::Instrument;
use utils::id::TimelineId;
use utils::sync::keyed_lock::KeyedLock;

use super::audit::Audit;
use super::error::ApiError;
use super::hosts::Hosts;
use super::known_args::KnownArgs;
use super::logical_size::LogicalSizes;
use super::scrubs::Scrubs;
use super::sources::Sources;
use crate::auth::{Auth, KeyRing};
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::manager::{FleetLook, TenantManager};

/// The number of this server; there is only one.
pub(super) const NODE_ID: u64 = 1;

/// The state that handlers need.
#[derive(Clone)]
pub(crate) struct App(pub(super) Arc<AppState>);

pub(crate) struct AppState {
    pub(super) manager: TenantManager,
    pub(super) sources: Sources,
    pub(super) auth: Auth,
    pub(super) keys: Option<Arc<KeyRing>>,
    pub(super) ctx: RequestContext,
    pub(super) known_args: KnownArgs,
    pub(super) scrubs: Scrubs,
    pub(super) sizes: LogicalSizes,
    pub(super) life: Life,
    pub(super) audit: Audit,
    pub(super) fleet_seen: FleetSeen,
    /// The names by which this server may be asked.
    pub(super) hosts: Hosts,
    /// Where the console of this server is.
    pub(super) public_url: Option<String>,
    /// Branches that a tenant may have; 0 is no limit.
    pub(super) max_branches: usize,
    /// Held while a branch of the tenant is named.
    pub(super) naming: KeyedLock<TenantShardId>,
    /// Held while computes of the tenant are counted, and one more registered.
    pub(super) registering: KeyedLock<TenantShardId>,
    /// The OpenAPI document as JSON, and as a page for people.
    pub(super) document: Bytes,
    pub(super) page: Bytes,
    pub(super) launch_timestamp: HeaderValue,
    pub(super) request_timeout: Duration,
}

impl std::ops::Deref for App {
    type Target = AppState;
    fn deref(&self) -> &AppState {
        &self.0
    }
}

/// What the bucket said of all servers, and when.
pub(super) type FleetSeen = tokio::sync::Mutex<Option<(Instant, Arc<FleetLook>)>>;

pub(super) fn new_ctx() -> RequestContext {
    RequestContext::new(TaskKind::MgmtRequest, DownloadBehavior::Download)
}

/// A timeline, by its tenant and id.
pub(super) type TimelineOf = (TenantShardId, TimelineId);

/// What is known of the life of branches besides what is stored.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// A branch may end earlier than was known.
    pub(super) changed: Notify,
    /// Why branches that have expired are still there.
    pub(super) refused: Mutex<HashMap<TimelineOf, String>>,
    /// Who runs the SQL of a branch, and when that was last heard of.
    pub(super) runs: Mutex<HashMap<TimelineOf, (String, Instant)>>,
}

impl Life {
    /// Has all branches looked at soon.
    pub(super) fn look_soon(&self) {
        self.changed.notify_one();
    }
}

/// Runs work that must not be left half done to its end, even if the caller disconnects.
pub(super) async fn to_the_end<T: Send + 'static>(
    name: &'static str,
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    let failed = |error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{name}: {error}"));
    env::spawn::task(name, work.in_current_span()).await.unwrap_or_else(|error| Err(failed(error)))
}
