//! A timeline as a [`PageStore`].

use std::collections::BTreeMap;

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::value::Value;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::store::{PageHistory, PageStore};
use engine::context::RequestContext;
use engine::tenant::timeline::Timeline;
use errors::StorageError;

/// A timeline, and the context in which it is used.
#[derive(Clone, Debug)]
pub struct TimelineStore {
    timeline: Timeline,
    ctx: RequestContext,
}

impl TimelineStore {
    /// `timeline`, used in the context `ctx`.
    pub fn new(timeline: Timeline, ctx: RequestContext) -> Self {
        Self { timeline, ctx }
    }

    /// The timeline.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The context in which it is used.
    pub fn ctx(&self) -> &RequestContext {
        &self.ctx
    }
}

impl PageStore for TimelineStore {
    async fn get(&self, key: Key, lsn: Lsn) -> Result<Option<Bytes>, StorageError> {
        match self.timeline.get(key, lsn, &self.ctx).await {
            Ok(value) => Ok(Some(value)),
            Err(StorageError::MissingKey { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn get_many(&self, keys: &KeySpace, lsn: Lsn) -> Result<BTreeMap<Key, Bytes>, StorageError> {
        let found = self.timeline.get_vectored(keys, lsn, &self.ctx).await?;
        found.into_iter().map(|(key, value)| Ok((key, value?))).collect()
    }

    async fn put_batch(&self, batch: SerializedValueBatch) -> Result<(), StorageError> {
        self.timeline.put_batch(batch, &self.ctx).await
    }

    async fn finish_write(&self, last: Lsn, prev: Lsn) -> Result<(), StorageError> {
        self.timeline.finish_write(last, prev);
        Ok(())
    }

    fn set_wal_log_hints(&self, lsn: Lsn, on: bool) {
        self.timeline.set_wal_log_hints(lsn, on);
    }
}

impl PageHistory for TimelineStore {
    fn removed_below(&self) -> Lsn {
        let (readable, complete) = (self.timeline.min_readable_lsn(), self.timeline.origin().consistent_lsn);
        if readable > complete { readable } else { Lsn(0) }
    }

    async fn newest_version(&self, key: Key, lsn: Lsn) -> Result<Option<(Lsn, Value)>, StorageError> {
        self.timeline.newest_version(key, lsn, &self.ctx).await
    }
}
