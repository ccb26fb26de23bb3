//! Reads: walks the layers from new to old until every key is complete, then rebuilds the pages.

mod collect;
mod look_ahead;
mod pieces;
mod walk;

use std::collections::BTreeMap;

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::value::Value;
use utils::lsn::Lsn;

use super::rebuild::{rebuild, rebuild_all};
use super::state::TimelineState;
use crate::context::RequestContext;
use crate::tenant::storage_layer::KeyHistory;
use collect::{cache_for, collect, collect_key};
use errors::StorageError;

pub(super) async fn get(
    state: &TimelineState,
    key: Key,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<Bytes, StorageError> {
    let history = collect_key(state, key, lsn, ctx).await?;
    let newest = history.newest().filter(|_| !history.cached);
    let value = match history.rest {
        None => rebuild(key, lsn, history, &state.redo_settings())?,
        Some(rest) => {
            // This history is as large as a piece: free it before the pieces are read.
            drop(history);
            pieces::get(state, key, lsn, rest, ctx).await?
        }
    };
    if let (Some(cache), Some(newest)) = (cache_for(state, lsn, ctx), newest) {
        cache.insert(&key, newest, value.clone());
    }
    Ok(value)
}

/// The newest version at or below `lsn` as it is stored, with its LSN; `None` if there is none.
pub(super) async fn newest_version(
    state: &TimelineState,
    key: Key,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<Option<(Lsn, Value)>, StorageError> {
    let KeyHistory { image, records, .. } = collect_key(state, key, lsn, ctx).await?;
    let record = records.into_iter().next().map(|(at, record)| (at, Value::WalRecord(record)));
    Ok(record.or(image.map(|(at, image)| (at, Value::Image(image)))))
}

pub(super) async fn get_vectored(
    state: &TimelineState,
    keyspace: &KeySpace,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<BTreeMap<Key, Result<Bytes, StorageError>>, StorageError> {
    let found = collect(state, keyspace.clone(), lsn, ctx).await?;
    let histories = found.into_histories();
    let Some(cache) = cache_for(state, lsn, ctx) else {
        return rebuild_each(state, histories, lsn, ctx).await;
    };
    let fresh = histories.iter().filter(|(_, history)| !history.cached);
    let fresh: Vec<_> = fresh.filter_map(|(key, history)| Some((*key, history.newest()?))).collect();
    let rebuilt = rebuild_each(state, histories, lsn, ctx).await?;
    for (key, newest) in fresh {
        if let Some(Ok(value)) = rebuilt.get(&key) {
            cache.insert(&key, newest, value.clone());
        }
    }
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
        rebuilt.insert(key, pieces::get(state, key, lsn, rest, ctx).await);
    }
    Ok(rebuilt)
}
