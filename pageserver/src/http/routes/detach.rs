//! Detaching of a branch from its ancestor.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utils::id::TimelineId;
use utoipa::{IntoParams, ToSchema};

use crate::http::app::{App, to_the_end};
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{Args, At, TimelinePath};
use crate::http::ids::TimelineText;

/// What becomes of others.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DetachBehavior {
    /// The branch needs none of its ancestors any more, and no other branch gets another ancestor.
    MultiLevelAndNoReparent,
}

/// How to detach.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DetachArgs {
    /// There is only one way, which need not be named.
    #[allow(dead_code, reason = "only whether it can be parsed matters")]
    #[param(inline)]
    detach_behavior: Option<DetachBehavior>,
}

/// The branch is detached.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DetachAnswer {
    /// Branches that have another ancestor now: always none.
    #[schema(value_type = Vec<TimelineText>)]
    reparented_timelines: Vec<TimelineId>,
}

/// Makes a branch a timeline of its own: what it inherits is copied, and its history begins where it branched off. The
/// ancestor may be deleted then. Reads and writes go on. Goes on if the caller disconnects, or the request takes too
/// long: `detach` of the timeline's description says how far it is. Whoever asks again waits for what is under way, and
/// goes on with what was interrupted. Repeating the request is not an error.
#[utoipa::path(put, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/detach_ancestor", tag = "timelines",
    params(TimelinePath, DetachArgs),
    responses((status = 200, body = DetachAnswer), (status = 404, body = ErrorBody),
        (status = 412, body = ErrorBody,
            description = "It is not a branch, or somebody needs what is before the branch point"),
        (status = 500, body = ErrorBody, description = "A page of the ancestor is damaged"),
        (status = 503, body = ErrorBody)))]
pub(crate) async fn detach_ancestor(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Args(_): Args<DetachArgs>,
) -> Result<Json<DetachAnswer>, ApiError> {
    to_the_end("detaching of a branch", async move {
        app.manager.detach_timeline(path.tenant_shard_id, path.timeline_id).await?;
        Ok(Json(DetachAnswer { reparented_timelines: Vec::new() }))
    })
    .await
}
