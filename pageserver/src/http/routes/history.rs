//! What is kept of a tenant's history: compaction and removal on request, and holds.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utoipa::{IntoParams, ToSchema};

use super::branch_rules::is_printable;
use super::lsn::{lsn_of_moment, lsn_to_read, not_readable};
use crate::http::app::{App, to_the_end};
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{Args, At, Body, HoldPath, TenantPath, TimelinePath};
use crate::http::ids::{LsnText, TimelineText};
use crate::http::models::{CompactionCounts, Hold};
use crate::http::moment;
use engine::tenant::manager::ManageError;
use engine::tenant::timeline::{GcReport, Timeline};

/// Maximum length of the name of a hold, in characters.
const NAME_MAX: usize = 100;
/// Maximum number of holds of a timeline: each is in every manifest, and searched for at each removal.
const HOLDS_MAX: usize = 1000;

/// Sorts, merges and images layers until nothing of that is due, and answers what was done. Goes on if the caller
/// disconnects, or the request takes too long.
#[utoipa::path(put, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/compact", tag = "timelines",
    params(TimelinePath), responses((status = 200, body = CompactionCounts), (status = 404, body = ErrorBody),
        (status = 412, body = ErrorBody, description = "Compaction is turned off"), (status = 503, body = ErrorBody)))]
pub(crate) async fn compact(
    State(app): State<App>,
    At(path): At<TimelinePath>,
) -> Result<Json<CompactionCounts>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    if app.manager.conf().compaction.l0_layers == 0 {
        return Err(ApiError::precondition("compaction is turned off: compaction_threshold is 0"));
    }
    to_the_end("compaction on request", async move { Ok(Json(timeline.compact().await?.into())) }).await
}

/// An LSN below which nothing but single LSNs is kept, or one of these.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeptPoint {
    /// The LSN.
    #[schema(value_type = LsnText)]
    lsn: Lsn,
    /// What keeps it: the cutoff, branches, leases, holds, reads in progress.
    why: String,
    /// Number of layers that are there for this LSN alone.
    layers: usize,
    /// Their bytes.
    bytes: u64,
}

/// What was, or would be, removed of a timeline's history.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GcAnswer {
    /// The timeline.
    #[schema(value_type = TimelineText)]
    timeline_id: TimelineId,
    /// The cutoff before; 0/0 if there was none.
    #[schema(value_type = LsnText)]
    old_cutoff: Lsn,
    /// Below this LSN only `points` are kept.
    #[schema(value_type = LsnText)]
    cutoff: Lsn,
    /// What keeps the cutoff from being later.
    bound_by: String,
    /// What is kept at the cutoff and below it.
    points: Vec<KeptPoint>,
    /// Layers removed.
    removed_layers: usize,
    /// Their bytes.
    removed_bytes: u64,
    /// Layers that stay.
    kept_layers: usize,
    /// Their bytes.
    kept_bytes: u64,
}

impl From<GcReport> for GcAnswer {
    fn from(report: GcReport) -> Self {
        let points = report.points.into_iter();
        let points = points.map(|it| KeptPoint { lsn: it.lsn, why: it.why, layers: it.layers, bytes: it.bytes });
        Self {
            timeline_id: report.timeline_id,
            old_cutoff: report.old_cutoff,
            cutoff: report.cutoff,
            bound_by: report.bound_by,
            points: points.collect(),
            removed_layers: report.removed_layers,
            removed_bytes: report.removed_bytes,
            kept_layers: report.kept_layers,
            kept_bytes: report.kept_bytes,
        }
    }
}

/// How to remove history.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct GcArgs {
    /// Only say what would go.
    #[serde(default)]
    dry_run: bool,
}

async fn collect(app: App, at: TenantPath, dry_run: bool) -> Result<Vec<GcAnswer>, ApiError> {
    to_the_end("removal of history", async move {
        let reports = app.manager.collect_garbage(at.tenant_shard_id, dry_run).await?;
        Ok(reports.into_iter().map(GcAnswer::from).collect())
    })
    .await
}

/// Removes the history of a tenant that nothing keeps, at once. One answer for each of its timelines.
#[utoipa::path(post, path = "/v1/tenant/{tenant_shard_id}/gc", tag = "tenants", params(TenantPath, GcArgs),
    responses((status = 200, body = Vec<GcAnswer>), (status = 404, body = ErrorBody),
        (status = 412, body = ErrorBody, description = "It is not known what all of its branches need")))]
pub(crate) async fn gc(
    State(app): State<App>,
    At(path): At<TenantPath>,
    Args(args): Args<GcArgs>,
) -> Result<Json<Vec<GcAnswer>>, ApiError> {
    collect(app, path, args.dry_run).await.map(Json)
}

/// Removes the history of the timeline's tenant that nothing keeps, at once, and answers what that was of this
/// timeline. How much is kept is up to the settings of the server and of the timeline: a body is ignored.
#[utoipa::path(put, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/do_gc", tag = "timelines",
    params(TimelinePath),
    responses((status = 200, body = GcAnswer), (status = 404, body = ErrorBody),
        (status = 412, body = ErrorBody, description = "It is not known what all branches of the tenant need")))]
pub(crate) async fn do_gc(State(app): State<App>, At(path): At<TimelinePath>) -> Result<Json<GcAnswer>, ApiError> {
    let TimelinePath { tenant_shard_id, timeline_id } = path;
    app.manager.get(tenant_shard_id, timeline_id)?;
    let reports = collect(app, TenantPath { tenant_shard_id }, false).await?;
    let own = reports.into_iter().find(|report| report.timeline_id == timeline_id);
    own.map(Json).ok_or_else(|| ApiError::not_found(format!("timeline {timeline_id} is being deleted")))
}

/// A lease that has not ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Lease {
    /// What it keeps.
    #[schema(value_type = LsnText)]
    lsn: Lsn,
    /// Until when (RFC 3339).
    valid_until: String,
}

/// What keeps LSNs of a timeline readable by itself.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HoldsAnswer {
    /// Until they are deleted.
    holds: Vec<Hold>,
    /// For a while.
    leases: Vec<Lease>,
}

/// What to hold; by default the last record.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HoldBody {
    /// An LSN.
    #[schema(value_type = Option<LsnText>)]
    lsn: Option<Lsn>,
    /// The last commit up to this time (RFC 3339, or relative to the server's clock, such as `10 minutes ago`).
    timestamp: Option<String>,
}

/// The named holds of a timeline.
pub(super) fn named(timeline: &Timeline) -> Vec<Hold> {
    let all = timeline.holds().into_iter().filter(|hold| hold.until.is_none());
    all.map(|hold| Hold { name: hold.name, lsn: hold.lsn }).collect()
}

/// Lists what holds and leases keep readable of a timeline.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/holds", tag = "LSNs",
    params(TimelinePath), responses((status = 200, body = HoldsAnswer), (status = 404, body = ErrorBody)))]
pub(crate) async fn holds(State(app): State<App>, At(path): At<TimelinePath>) -> Result<Json<HoldsAnswer>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let leases = timeline.holds().into_iter();
    let leases = leases.filter_map(|hold| Some(Lease { lsn: hold.lsn, valid_until: moment::of_unix(hold.until?) }));
    Ok(Json(HoldsAnswer { holds: named(&timeline), leases: leases.collect() }))
}

/// Keeps a moment readable until the hold is deleted. Repeating the request is not an error.
#[utoipa::path(put, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/holds/{name}", tag = "LSNs",
    params(HoldPath), request_body = HoldBody,
    responses((status = 200, body = Hold), (status = 404, body = ErrorBody),
        (status = 406, body = ErrorBody, description = "The moment is not one of the history that is kept"),
        (status = 409, body = ErrorBody, description = "The name is that of another LSN"),
        (status = 412, body = ErrorBody, description = "The LSN cannot be read, or there are too many holds")))]
pub(crate) async fn hold(
    State(app): State<App>,
    At(path): At<HoldPath>,
    Body(wanted): Body<HoldBody>,
) -> Result<Json<Hold>, ApiError> {
    check_name(&path.name)?;
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let lsn = match (wanted.lsn, &wanted.timestamp) {
        (Some(_), Some(_)) => return Err(ApiError::bad_request("give lsn or timestamp, not both")),
        (lsn, None) => lsn_to_read(&timeline, lsn)?,
        (None, Some(text)) => lsn_of_moment(&timeline, text).await?,
    };
    to_the_end("making of a hold", async move {
        // One at a time, so that they can be counted.
        let _naming = app.naming.lock(path.tenant_shard_id).await;
        let (name, present) = (path.name, named(&timeline));
        match present.iter().find(|hold| hold.name == name) {
            Some(other) if other.lsn != lsn => {
                let reason = format!("the hold {name:?} exists already, of LSN {}: delete it first", other.lsn);
                return Err(ManageError::Conflict(reason).into());
            }
            None if present.len() >= HOLDS_MAX => {
                let reason = format!("the timeline has {HOLDS_MAX} holds, which is the limit: delete some first");
                return Err(ApiError::precondition(reason));
            }
            _ => {}
        }
        timeline.hold(&name, lsn).await.map_err(not_readable)?;
        tracing::info!(timeline = %timeline.timeline_id(), %lsn, "hold {name:?} made");
        Ok(Json(Hold { name, lsn }))
    })
    .await
}

/// Ends a hold: the next removal of history may take what it has kept.
#[utoipa::path(delete, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/holds/{name}", tag = "LSNs",
    params(HoldPath), responses((status = 200, body = Object), (status = 404, body = ErrorBody)))]
pub(crate) async fn release(
    State(app): State<App>,
    At(path): At<HoldPath>,
) -> Result<Json<serde_json::Value>, ApiError> {
    check_name(&path.name)?;
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    to_the_end("end of a hold", async move {
        let name = path.name;
        if !timeline.release(&name).await? {
            return Err(ApiError::not_found(format!("there is no hold {name:?}")));
        }
        tracing::info!(timeline = %timeline.timeline_id(), "hold {name:?} deleted");
        Ok(Json(serde_json::json!({})))
    })
    .await
}

/// Refuses names that a terminal or a log could not show.
fn check_name(name: &str) -> Result<(), ApiError> {
    let length = name.chars().count();
    if (1..=NAME_MAX).contains(&length) && name.chars().all(is_printable) {
        return Ok(());
    }
    let shown = utils::excerpt::Excerpt(name);
    Err(ApiError::bad_request(format!("{shown:?} is no name for a hold: 1 to {NAME_MAX} printable characters")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_holds_are_printable_and_not_long() {
        for good in ["a", "before release 7", "\u{e9}t\u{e9}/2026 \"x\"", &"x".repeat(NAME_MAX)] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "a\nb", "\u{7f}", "\u{202e}x", "\u{200b}", "\0", &"x".repeat(NAME_MAX + 1)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }
}
