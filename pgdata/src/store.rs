//! What reads and ingest need from a timeline, so that both can be tested without one.

use std::collections::BTreeMap;
use std::future::Future;

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::value::Value;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use errors::StorageError;

/// Versioned values by key.
pub trait PageStore: Send + Sync {
    /// The value of `key` as of `lsn`; `None` if it has no version at or below that.
    fn get(&self, key: Key, lsn: Lsn) -> impl Future<Output = Result<Option<Bytes>, StorageError>> + Send;

    /// The values of all keys in `keys` that have a version at or below `lsn`.
    fn get_many(
        &self,
        keys: &KeySpace,
        lsn: Lsn,
    ) -> impl Future<Output = Result<BTreeMap<Key, Bytes>, StorageError>> + Send;

    /// Stores values. They are not read before [`finish_write`](Self::finish_write) has passed their LSNs.
    fn put_batch(&self, batch: SerializedValueBatch) -> impl Future<Output = Result<(), StorageError>> + Send;

    /// Declares everything up to `last` written; `last` is the end of a record that starts at `prev`.
    fn finish_write(&self, last: Lsn, prev: Lsn) -> impl Future<Output = Result<(), StorageError>> + Send;

    /// Tells redo the value of `wal_log_hints` for records after `lsn`.
    fn set_wal_log_hints(&self, lsn: Lsn, on: bool);
}

/// A store that can tell what last changed a page.
pub trait PageHistory: PageStore {
    /// History below this LSN has been removed; 0 if none was.
    fn removed_below(&self) -> Lsn;

    /// The newest version of `key` at or below `lsn` as it was written, not as compaction has made it, and its LSN.
    fn newest_version(
        &self,
        key: Key,
        lsn: Lsn,
    ) -> impl Future<Output = Result<Option<(Lsn, Value)>, StorageError>> + Send;
}
