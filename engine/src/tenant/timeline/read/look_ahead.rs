//! When a read reaches layers that are in the bucket, opens all of those on its way at once, then fetches at once
//! what it needs from each. The read thus waits for two successive rounds of requests for every [`COLD_MAX`] layers
//! that it visits.

use std::time::Duration;

use futures_util::future::join_all;
use pageserver_api::keyspace::KeySpace;

use super::walk::{Visit, Walk};
use crate::context::RequestContext;
use crate::tenant::storage_layer::{ReadCosts, ReconstructState};
use errors::StorageError;

/// Maximum number of layers in the bucket that are prepared at once.
pub(super) const COLD_MAX: usize = 32;
/// Maximum bytes fetched to open them; limited because the newest ones may suffice.
const OPEN_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of layers examined to find them.
const VISITS_MAX: usize = 256;

/// Prepares for the rest of `walk`. Errors are only logged here, as the visits themselves run into them again. Returns
/// what that took.
pub(super) async fn look_ahead(walk: Walk<'_>, found: &ReconstructState, ctx: &RequestContext) -> ReadCosts {
    let cold = cold_on_the_way(walk.clone());
    let mut costs = ReadCosts::default();
    if cold.len() < 2 {
        return costs;
    }
    let began = env::clock::now();
    let mut bytes = 0;
    let few = cold.iter().take_while(|visit| {
        bytes += visit.layer.opening_bytes();
        bytes <= OPEN_BYTES_MAX
    });
    join_all(few.map(|visit| visit.layer.open(ctx))).await;
    if let Err(error) = fetch_together(walk, found, &mut costs, ctx).await {
        tracing::debug!("not fetched ahead: {error}");
    }
    // All of this is done at once: what each took does not add up.
    costs.waiting = Duration::ZERO;
    costs.fetching = env::clock::now().saturating_duration_since(began);
    costs
}

/// The layers in the bucket that a read visits if no key is complete before the end.
fn cold_on_the_way(mut walk: Walk<'_>) -> Vec<Visit> {
    let mut cold = Vec::new();
    for _ in 0..VISITS_MAX {
        let Some(mut visit) = walk.next().filter(|_| cold.len() < COLD_MAX) else { break };
        let keys = visit.take_keys();
        walk.descend(&visit, keys, KeySpace::default);
        if !visit.layer.is_local() {
            cold.push(visit);
        }
    }
    cold
}

/// Walks as a read does, but through the indexes only, and fetches what it finds.
async fn fetch_together(
    mut walk: Walk<'_>,
    found: &ReconstructState,
    costs: &mut ReadCosts,
    ctx: &RequestContext,
) -> Result<(), StorageError> {
    let mut wanted = Vec::new();
    for _ in 0..VISITS_MAX {
        let Some(mut visit) = walk.next().filter(|_| wanted.len() < COLD_MAX) else { break };
        let keys = visit.take_keys();
        let plan = visit.layer.plan_read(&keys, &visit.lsns, found, ctx).await?;
        *costs += plan.costs();
        walk.descend(&visit, keys, || plan.complete());
        if !visit.layer.is_local() {
            wanted.push((visit.layer, plan));
        }
    }
    let fetches = wanted.into_iter().map(|(layer, plan)| async move { layer.prefetch(plan, ctx).await });
    for fetched in join_all(fetches).await {
        *costs += fetched?;
    }
    Ok(())
}
