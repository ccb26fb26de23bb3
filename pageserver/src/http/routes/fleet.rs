//! All servers on the bucket.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::http::app::App;
use crate::http::error::{ApiError, ErrorBody};
use crate::http::fleet::together;
use crate::http::models::fleet::FleetAnswer;
use engine::tenant::manager::FleetLook;

/// The bucket is asked at most so often, however many ask for the fleet.
const LOOK_PERIOD: Duration = Duration::from_secs(2);
/// Time limit for the bucket.
const LOOK_LIMIT: Duration = Duration::from_secs(20);

/// Shows all servers that share this one's bucket: which of them owns which tenant, which are standbys, their leases,
/// and how far each of them is. Each server with standbys, or that is one, says so in the bucket, every few seconds;
/// who owns a tenant is looked up.
#[utoipa::path(get, path = "/v1/fleet", tag = "server",
    responses((status = 200, body = FleetAnswer), (status = 503, body = ErrorBody)))]
pub(crate) async fn fleet(State(app): State<App>) -> Result<Json<FleetAnswer>, ApiError> {
    let look = look(&app).await?;
    let now = env::clock::system_now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Ok(Json(together(&app, look.as_deref(), now)))
}

async fn look(app: &App) -> Result<Option<Arc<FleetLook>>, ApiError> {
    let mut seen = app.fleet_seen.lock().await;
    let now = env::clock::now();
    let is_new = |at| now.saturating_duration_since(at) < LOOK_PERIOD;
    if let Some((_, look)) = seen.as_ref().filter(|(at, _)| is_new(*at)) {
        return Ok(Some(Arc::clone(look)));
    }
    let known = seen.iter().flat_map(|(_, look)| &look.tenants).map(|one| (one.id, one.generation)).collect();
    let late =
        |_| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("the bucket has not answered in {LOOK_LIMIT:?}"));
    let found = env::clock::timeout(LOOK_LIMIT, app.manager.look_at_fleet(&known)).await.map_err(late)??;
    let found = found.map(Arc::new);
    *seen = found.clone().map(|look| (now, look));
    Ok(found)
}
