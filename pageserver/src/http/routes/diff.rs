//! Comparison of two timelines.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utoipa::{IntoParams, ToSchema};

use super::lsn::{lsn_to_read, not_readable};
use crate::http::app::{App, new_ctx};
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{Args, At, TimelinePath};
use crate::http::ids::{LsnText, TimelineText};
use engine::tenant::timeline::Timeline;
use pgdata::TimelineStore;
use pgdata::difference::{RelationDifference, difference};

/// What to compare with.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DiffArgs {
    /// LSN to compare at; defaults to the last record.
    #[param(value_type = Option<LsnText>)]
    lsn: Option<Lsn>,
    /// The other timeline, of the same tenant.
    #[param(value_type = TimelineText)]
    other: TimelineId,
    /// LSN of the other timeline; defaults to its last record.
    #[param(value_type = Option<LsnText>)]
    other_lsn: Option<Lsn>,
}

/// A relation fork that differs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DiffRelation {
    /// TABLESPACE/DATABASE/RELATION, with _fsm, _vm or _init for another fork.
    rel: String,
    /// Its size here in blocks; null if it does not exist.
    blocks_here: Option<u32>,
    /// Its size there.
    blocks_there: Option<u32>,
    /// Number of blocks that differ, or that only one side has.
    blocks_differing: u64,
}

/// Differences between two timelines.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DiffAnswer {
    /// LSN compared at.
    #[schema(value_type = LsnText)]
    lsn: Lsn,
    /// LSN of the other timeline.
    #[schema(value_type = LsnText)]
    other_lsn: Lsn,
    /// Up to here both histories are the same.
    #[schema(value_type = LsnText)]
    common_lsn: Lsn,
    /// The relation forks that differ.
    relations: Vec<DiffRelation>,
}

/// Lists the relations that differ between two timelines of a tenant, or two LSNs of one, and the number of blocks.
/// The cost depends on how much was written since the histories were the same.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/diff", tag = "timelines",
    params(TimelinePath, DiffArgs),
    responses((status = 200, body = DiffAnswer), (status = 404, body = ErrorBody), (status = 412, body = ErrorBody)))]
pub(crate) async fn diff(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Args(args): Args<DiffArgs>,
) -> Result<Json<DiffAnswer>, ApiError> {
    let here = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let there = app.manager.get(path.tenant_shard_id, args.other)?;
    let (lsn, other_lsn) = (lsn_to_read(&here, args.lsn)?, lsn_to_read(&there, args.other_lsn)?);
    // It may take longer than history is kept.
    let _pins = (here.pin(lsn).map_err(not_readable)?, there.pin(other_lsn).map_err(not_readable)?);
    let none = || ApiError::precondition("the two timelines have no history in common");
    let common_lsn = here.common_lsn(lsn, &there, other_lsn).ok_or_else(none)?;
    let ctx = new_ctx();
    let mut candidates = here.changed_keys(common_lsn, lsn, &ctx).await.map_err(not_readable)?;
    candidates.append(&mut there.changed_keys(common_lsn, other_lsn, &ctx).await.map_err(not_readable)?);
    let store = |timeline: &Timeline| TimelineStore::new(timeline.clone(), new_ctx());
    let found = difference((&store(&here), lsn), (&store(&there), other_lsn), &candidates).await;
    let relations = found.map_err(not_readable)?.into_iter().map(shown).collect();
    Ok(Json(DiffAnswer { lsn, other_lsn, common_lsn, relations }))
}

fn shown(found: RelationDifference) -> DiffRelation {
    let (blocks_here, blocks_there) = found.sizes;
    DiffRelation { rel: found.rel.to_string(), blocks_here, blocks_there, blocks_differing: found.blocks }
}
