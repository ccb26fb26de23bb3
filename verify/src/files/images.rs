//! A store of pages by LSN, for tests of reads from a page's history.

use std::collections::BTreeMap;

use bytes::Bytes;
use errors::StorageError;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::record::WalRecord;
use pageserver_api::value::Value;
use pgdata::{PageHistory, PageStore};
use postgres_formats::page::PageBytes;
use postgres_formats::record::RecordHeader;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

/// The value as of an LSN, and the record that created it, if that was not an image.
type Version = (Bytes, Option<Bytes>);

#[derive(Default)]
pub(super) struct Images {
    versions: BTreeMap<(Key, Lsn), Version>,
    /// Nothing is readable below.
    pub(super) cutoff: Lsn,
}

impl Images {
    /// Adds a value, as an image or through a record with this resource manager and info byte.
    pub(super) fn add(&mut self, key: Key, lsn: u64, value: impl AsRef<[u8]>, record: Option<(u8, u8)>) {
        let header = |(rmid, info)| RecordHeader { total_len: 24, xid: 0, prev: 8, info, rmid, crc: 0 };
        let record = record.map(|kind| Bytes::copy_from_slice(&header(kind).encode()));
        self.versions.insert((key, Lsn(lsn)), (Bytes::copy_from_slice(value.as_ref()), record));
    }

    /// The newest page of a key.
    pub(super) fn newest(&self, key: Key) -> PageBytes {
        PageBytes::try_from(&self.version(key, Lsn::MAX).unwrap().1.0[..]).unwrap()
    }

    fn version(&self, key: Key, lsn: Lsn) -> Option<(Lsn, &Version)> {
        self.versions.range((key, Lsn(0))..=(key, lsn)).next_back().map(|((_, at), version)| (*at, version))
    }
}

impl PageStore for Images {
    async fn get(&self, key: Key, lsn: Lsn) -> Result<Option<Bytes>, StorageError> {
        if lsn < self.cutoff {
            return Err(StorageError::Invalid(format!("history below LSN {} has been removed", self.cutoff)));
        }
        Ok(self.version(key, lsn).map(|(_, (value, _))| value.clone()))
    }
    async fn get_many(&self, _: &KeySpace, _: Lsn) -> Result<BTreeMap<Key, Bytes>, StorageError> {
        Ok(BTreeMap::new())
    }
    async fn put_batch(&self, _: SerializedValueBatch) -> Result<(), StorageError> {
        Ok(())
    }
    async fn finish_write(&self, _: Lsn, _: Lsn) -> Result<(), StorageError> {
        Ok(())
    }
    fn set_wal_log_hints(&self, _: Lsn, _: bool) {}
}

impl PageHistory for Images {
    fn removed_below(&self) -> Lsn {
        self.cutoff
    }

    async fn newest_version(&self, key: Key, lsn: Lsn) -> Result<Option<(Lsn, Value)>, StorageError> {
        let value = |(value, record): &Version| match record {
            None => Value::Image(value.clone()),
            Some(record) => {
                Value::WalRecord(WalRecord::Postgres { will_init: false, block_id: 0, record: record.clone() })
            }
        };
        self.get(key, lsn).await?;
        Ok(self.version(key, lsn).map(|(at, version)| (at, value(version))))
    }
}
