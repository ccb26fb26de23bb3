//! When a read comes to layers that are in the bucket: opens all on its way at once, then fetches at once what it needs
//! of each. So a read waits for two requests, one after the other, however many layers it visits.

use futures_util::future::join_all;

use super::fringe::{Fringe, Visit};
use crate::context::RequestContext;
use crate::errors::StorageError;
use crate::tenant::storage_layer::ReconstructState;
use crate::tenant::timeline::state::Layers;

/// Layers in the bucket that one read prepares at most.
const COLD_MAX: usize = 32;
/// Bytes that are fetched to open them at most, since the newest may do.
const OPEN_BYTES_MAX: u64 = 16 << 20;
/// Layers that it looks through for them at most.
const VISITS_MAX: usize = 256;

/// Prepares for the visit `next` and what comes after it. What goes wrong here shows again in the visit itself.
pub(super) async fn prepare(
    layers: &Layers,
    fringe: &Fringe,
    next: &Visit,
    found: &ReconstructState,
    ctx: &RequestContext,
) {
    let mut start = fringe.clone();
    start.put_back(next.clone());
    let cold = cold_on_the_way(layers, start.clone());
    if cold.len() < 2 {
        return;
    }
    let mut bytes = 0;
    let few = cold.iter().take_while(|visit| {
        bytes += visit.layer.opening_bytes();
        bytes <= OPEN_BYTES_MAX
    });
    join_all(few.map(|visit| visit.layer.open(ctx))).await;
    if let Err(error) = fetch_together(layers, start, found, ctx).await {
        tracing::debug!("not fetched ahead: {error}");
    }
}

/// The layers in the bucket that a read visits if it finds nothing before the end.
fn cold_on_the_way(layers: &Layers, mut fringe: Fringe) -> Vec<Visit> {
    let mut cold = Vec::new();
    for _ in 0..VISITS_MAX {
        let Some(visit) = fringe.pop().filter(|_| cold.len() < COLD_MAX) else { break };
        if visit.layer.desc().is_delta {
            fringe.extend(layers, &visit.keys.clone().build(), visit.lsns.start);
        }
        if !visit.layer.is_local() {
            cold.push(visit);
        }
    }
    cold
}

/// Walks as a read does, but through the indexes only, and fetches what it finds.
async fn fetch_together(
    layers: &Layers,
    mut fringe: Fringe,
    found: &ReconstructState,
    ctx: &RequestContext,
) -> Result<(), StorageError> {
    let mut wanted = Vec::new();
    for _ in 0..VISITS_MAX {
        let Some(Visit { layer, lsns, keys }) = fringe.pop().filter(|_| wanted.len() < COLD_MAX) else { break };
        let mut keys = keys.build();
        let outline = layer.outline(&keys, &lsns, found, ctx).await?;
        if layer.desc().is_delta {
            keys.subtract(&outline.complete());
            fringe.extend(layers, &keys, lsns.start);
        }
        if !layer.is_local() {
            wanted.push((layer, outline));
        }
    }
    let fetches = wanted.into_iter().map(|(layer, outline)| async move { layer.prefetch(outline, ctx).await });
    join_all(fetches).await.into_iter().collect()
}
