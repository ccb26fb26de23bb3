//! Finds the version of a key that WAL, or the import, has written. An image layer that compaction has made hides it.

use std::sync::Arc;

use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::value::Value;
use utils::lsn::Lsn;

use super::collect::collect_key;
use crate::context::RequestContext;
use crate::tenant::layer_map::Layer;
use crate::tenant::storage_layer::{KeyHistory, ReconstructState};
use crate::tenant::timeline::state::TimelineState;
use errors::StorageError;

/// The newest version at or below `lsn` as it was written, with its LSN; `None` if there is none. Once the history
/// below an image has been removed, the image is the newest that is known.
pub(in crate::tenant::timeline) async fn newest_version(
    state: &TimelineState,
    key: Key,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<Option<(Lsn, Value)>, StorageError> {
    let found = newest(collect_key(state, key, (lsn, lsn), ctx).await?);
    let Some((at, Value::Image(_))) = &found else { return Ok(found) };
    if let Some(ancestor) = state.ancestor().filter(|ancestor| *at == ancestor.lsn) {
        // It may be an image of what is inherited: the ancestor has it as it was written.
        let inherited = Box::pin(newest_version(&ancestor.state, key, *at, ctx)).await?;
        return Ok(inherited.or(found));
    }
    let below = below_image(state, key, *at, ctx).await?;
    Ok(below.or(found))
}

fn newest(history: KeyHistory) -> Option<(Lsn, Value)> {
    let KeyHistory { image, records, .. } = history;
    let record = records.into_iter().next().map(|(at, record)| (at, Value::WalRecord(record)));
    record.or(image.map(|(at, image)| (at, Value::Image(image))))
}

/// The newest version in a delta layer, if compaction has made an image of the key as of `lsn`.
async fn below_image(
    state: &TimelineState,
    key: Key,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<Option<(Lsn, Value)>, StorageError> {
    if let Some(ancestor) = state.ancestor().filter(|ancestor| lsn <= ancestor.lsn) {
        return Box::pin(below_image(&ancestor.state, key, lsn, ctx)).await;
    }
    let _guard = state.enter()?;
    let layers = state.layers();
    let is_of_key = |layer: &&Arc<Layer>| layer.desc().key_range.contains(&key);
    let is_image = |layer: &Arc<Layer>| {
        let desc = layer.desc();
        !desc.is_delta && desc.lsn_range.start == lsn && lsn > state.origin.import_lsn
    };
    if !layers.map.iter().filter(is_of_key).any(is_image) {
        return Ok(None);
    }
    let is_below = |layer: &&Arc<Layer>| layer.desc().is_delta && layer.desc().lsn_range.start <= lsn;
    let mut deltas: Vec<&Arc<Layer>> = layers.map.iter().filter(is_of_key).filter(is_below).collect();
    deltas.sort_by_key(|layer| std::cmp::Reverse(layer.desc().lsn_range.end));
    let keys = KeySpace::single(key..key.next());
    for layer in deltas {
        let mut history = ReconstructState::new();
        let begin = layer.desc().lsn_range.start;
        layer.collect(&keys, begin..(lsn + 1).min(layer.desc().lsn_range.end), &mut history, ctx).await?;
        if let Some(found) = history.into_histories().remove(&key).and_then(newest) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
