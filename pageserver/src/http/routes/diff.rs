//! Where two timelines differ.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utoipa::{IntoParams, ToSchema};

use super::lsn::lsn_to_read;
use crate::http::app::{App, new_ctx};
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{Args, At, TimelinePath};
use crate::http::ids::{LsnText, TimelineText};
use engine::tenant::timeline::Timeline;
use pgdata::TimelineStore;
use pgdata::difference::{RelationDifference, difference};

/// With what it is compared.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DiffArgs {
    /// As of when; the last record if not given.
    #[param(value_type = Option<LsnText>)]
    lsn: Option<Lsn>,
    /// The other timeline, of the same tenant.
    #[param(value_type = TimelineText)]
    other: TimelineId,
    /// The other one as of when; its last record if not given.
    #[param(value_type = Option<LsnText>)]
    other_lsn: Option<Lsn>,
}

/// A fork of a relation that differs.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DiffRelation {
    /// TABLESPACE/DATABASE/RELATION, with _fsm, _vm or _init for another fork.
    rel: String,
    /// Blocks here; null if it does not exist.
    blocks_here: Option<u32>,
    /// Blocks there.
    blocks_there: Option<u32>,
    /// Blocks that differ, or that only one of them has.
    blocks_differing: u64,
}

/// Where two timelines differ.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DiffAnswer {
    /// As of when.
    #[schema(value_type = LsnText)]
    lsn: Lsn,
    /// The other one as of when.
    #[schema(value_type = LsnText)]
    other_lsn: Lsn,
    /// Up to here they are the same.
    #[schema(value_type = LsnText)]
    common_lsn: Lsn,
    /// What differs.
    relations: Vec<DiffRelation>,
}

/// Which relations differ between two timelines of a tenant, or two LSNs of one, and in how many blocks. What it costs
/// depends on how much was written since they were the same.
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
    let none = || ApiError::precondition("the two timelines have no history in common");
    let common_lsn = here.common_lsn(lsn, &there, other_lsn).ok_or_else(none)?;
    let ctx = new_ctx();
    let mut candidates = here.changed_keys(common_lsn, lsn, &ctx).await?;
    candidates.append(&mut there.changed_keys(common_lsn, other_lsn, &ctx).await?);
    let store = |timeline: &Timeline| TimelineStore::new(timeline.clone(), new_ctx());
    let found = difference((&store(&here), lsn), (&store(&there), other_lsn), &candidates).await?;
    let relations = found.into_iter().map(shown).collect();
    Ok(Json(DiffAnswer { lsn, other_lsn, common_lsn, relations }))
}

fn shown(found: RelationDifference) -> DiffRelation {
    let (blocks_here, blocks_there) = found.sizes;
    DiffRelation { rel: found.rel.to_string(), blocks_here, blocks_there, blocks_differing: found.blocks }
}
