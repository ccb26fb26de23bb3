//! A store in memory, the model that tests compare with, and cluster parameters for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::parameters::ClusterParameters;
use pageserver_api::record::WalRecord;
use pageserver_api::value::Value;
use postgres_formats::version::PgVersion;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::store::PageStore;
use errors::StorageError;

/// Applies one change to a page: key, page, LSN, change.
pub(crate) type Redo = fn(Key, &mut [u8; 8192], Lsn, &WalRecord);

/// All versions of all keys.
#[derive(Clone, Debug)]
pub(crate) struct MemoryStore {
    values: Arc<Mutex<BTreeMap<(Key, Lsn), Value>>>,
    last: Arc<Mutex<Lsn>>,
    redo: Redo,
}

impl MemoryStore {
    pub(crate) fn new(redo: Redo) -> Self {
        Self { values: Arc::default(), last: Arc::default(), redo }
    }

    pub(crate) fn put(&self, key: Key, lsn: Lsn, image: Bytes) {
        self.values.lock().unwrap().insert((key, lsn), Value::Image(image));
    }

    pub(crate) fn set_last(&self, lsn: Lsn) {
        *self.last.lock().unwrap() = lsn;
    }

    pub(crate) fn last(&self) -> Lsn {
        *self.last.lock().unwrap()
    }

    pub(crate) fn all(&self) -> Vec<(Key, Lsn, Value)> {
        self.values.lock().unwrap().iter().map(|((key, lsn), value)| (*key, *lsn, value.clone())).collect()
    }

    fn value(&self, key: Key, lsn: Lsn) -> Option<Bytes> {
        let values = self.values.lock().unwrap();
        let mut records = Vec::new();
        let mut page = None;
        for ((_, at), value) in values.range((key, Lsn(0))..=(key, lsn)).rev() {
            match value {
                Value::Image(image) => {
                    page = Some(image.clone());
                    break;
                }
                Value::WalRecord(record) => records.push((*at, record.clone())),
            }
            if value.will_init() {
                break;
            }
        }
        if records.is_empty() {
            return page;
        }
        let mut bytes = page.map_or(vec![0; 8192], |page| page.to_vec());
        let page: &mut [u8; 8192] = bytes.as_mut_slice().try_into().expect("records are for pages");
        for (at, record) in records.iter().rev() {
            (self.redo)(key, page, *at, record);
        }
        Some(Bytes::from(bytes))
    }
}

impl PageStore for MemoryStore {
    async fn get(&self, key: Key, lsn: Lsn) -> Result<Option<Bytes>, StorageError> {
        assert!(lsn <= self.last(), "reads are below what was finished");
        Ok(self.value(key, lsn))
    }

    async fn get_many(&self, keys: &KeySpace, lsn: Lsn) -> Result<BTreeMap<Key, Bytes>, StorageError> {
        assert!(lsn <= self.last(), "reads are below what was finished");
        let wanted: Vec<Key> = {
            let values = self.values.lock().unwrap();
            let ranges = keys.ranges().iter();
            let within = ranges.flat_map(|keys| values.range((keys.start, Lsn(0))..(keys.end, Lsn(0))));
            within.map(|((key, _), _)| *key).collect()
        };
        Ok(wanted.into_iter().filter_map(|key| Some((key, self.value(key, lsn)?))).collect())
    }

    async fn put_batch(&self, batch: SerializedValueBatch) -> Result<(), StorageError> {
        let mut values = self.values.lock().unwrap();
        for meta in batch.metadata() {
            let bytes = &batch.raw()[meta.offset as usize..][..meta.len as usize];
            let value = Value::decode(&Bytes::copy_from_slice(bytes)).unwrap();
            let key = Key::from_compact(meta.key);
            assert!(meta.lsn > self.last(), "values come above what was finished");
            let double = values.insert((key, meta.lsn), value);
            assert!(double.is_none(), "two values of {key} at {}", meta.lsn);
        }
        Ok(())
    }

    async fn finish_write(&self, last: Lsn, prev: Lsn) -> Result<(), StorageError> {
        let mut known = self.last.lock().unwrap();
        assert!(prev < last && *known <= last);
        *known = last;
        Ok(())
    }

    fn set_wal_log_hints(&self, _lsn: Lsn, _on: bool) {}
}

/// Parameters of a cluster freshly created by `initdb`, without checksums.
pub(crate) fn parameters(version: PgVersion) -> ClusterParameters {
    ClusterParameters {
        pg_version: version.major(),
        system_identifier: 7,
        wal_segment_size: 16 << 20,
        data_checksums: false,
        wal_log_hints: false,
        track_commit_timestamp: false,
        wal_level: 1,
        max_connections: 100,
        max_worker_processes: 8,
        max_wal_senders: 10,
        max_prepared_transactions: 0,
        max_locks_per_transaction: 64,
        wal_log_hints_changes: Vec::new(),
    }
}
