//! Reads: walks the layers from new to old until every key is complete, then rebuilds the pages.

mod collect;
mod explain;
mod look_ahead;
mod observe;
mod open_ahead;
mod pieces;
mod slow;
mod walk;
mod written;

use std::collections::BTreeMap;

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use utils::lsn::Lsn;

use super::rebuild::{rebuild, rebuild_all};
use super::state::TimelineState;
use crate::context::RequestContext;
use crate::tenant::storage_layer::KeyHistory;
pub(super) use collect::below_cutoff;
use collect::{cache_for, collect};
use errors::StorageError;
pub use explain::ReadTrace;
pub(super) use explain::explain;
use slow::Stopwatch;
pub(super) use written::newest_version;

pub(super) async fn get(
    state: &TimelineState,
    key: Key,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<Bytes, StorageError> {
    let mut watch = Stopwatch::start(ctx);
    let found = collect(state, KeySpace::single(key..key.next()), lsn, ctx).await?;
    watch.note_searched(state, &found);
    observe::note(&found, ctx);
    let history = found.into_histories().remove(&key).unwrap_or_default();
    let newest = history.newest().filter(|_| !history.cached);
    let value = match history.rest {
        None => rebuild(key, lsn, history, &state.redo_settings())?,
        Some(rest) => {
            // This history is as large as a piece: free it before the pieces are read.
            drop(history);
            let (value, records) = pieces::get(state, key, lsn, rest, ctx).await?;
            observe::note_pieces(&key, records, ctx);
            value
        }
    };
    if let (Some(cache), Some(newest)) = (cache_for(state, lsn, ctx), newest) {
        cache.insert(&key, newest, value.clone());
    }
    watch.end(state, Some(key), 1, lsn);
    Ok(value)
}

pub(super) async fn get_vectored(
    state: &TimelineState,
    keyspace: &KeySpace,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<BTreeMap<Key, Result<Bytes, StorageError>>, StorageError> {
    let mut watch = Stopwatch::start(ctx);
    let found = collect(state, keyspace.clone(), lsn, ctx).await?;
    watch.note_searched(state, &found);
    observe::note(&found, ctx);
    let histories = found.into_histories();
    let Some(cache) = cache_for(state, lsn, ctx) else {
        let rebuilt = rebuild_each(state, histories, lsn, ctx).await?;
        watch.end(state, rebuilt.keys().next().copied(), rebuilt.len(), lsn);
        return Ok(rebuilt);
    };
    let fresh = histories.iter().filter(|(_, history)| !history.cached);
    let fresh: Vec<_> = fresh.filter_map(|(key, history)| Some((*key, history.newest()?))).collect();
    let rebuilt = rebuild_each(state, histories, lsn, ctx).await?;
    for (key, newest) in fresh {
        if let Some(Ok(value)) = rebuilt.get(&key) {
            cache.insert(&key, newest, value.clone());
        }
    }
    watch.end(state, rebuilt.keys().next().copied(), rebuilt.len(), lsn);
    Ok(rebuilt)
}

/// Rebuilds all of `histories`; those gathered only in part are rebuilt one after the other, piece by piece.
async fn rebuild_each(
    state: &TimelineState,
    mut histories: BTreeMap<Key, KeyHistory>,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<BTreeMap<Key, Result<Bytes, StorageError>>, StorageError> {
    let long = histories.extract_if(.., |_, history| history.rest.is_some());
    let long: Vec<_> = long.filter_map(|(key, history)| Some((key, history.rest?))).collect();
    let mut rebuilt = rebuild_all(histories, lsn, state.redo_settings()).await?;
    for (key, rest) in long {
        let value = pieces::get(state, key, lsn, rest, ctx).await.map(|(value, records)| {
            observe::note_pieces(&key, records, ctx);
            value
        });
        rebuilt.insert(key, value);
    }
    Ok(rebuilt)
}
