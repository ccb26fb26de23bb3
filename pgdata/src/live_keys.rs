//! Keys in use: of the blocks of relations only those that exist. All that a dropped or truncated relation had is not.

use std::collections::BTreeMap;

use bytes::Bytes;
use pageserver_api::key::{ALL_RELATIONS, DBDIR_KEY, Key, rel_block_key, rel_size_key, relmap_key};
use pageserver_api::keyspace::{KeySpace, KeySpaceBuilder};
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::listing::Listing;
use crate::store::PageStore;
use engine::live_keys::{Answer, LiveKeys, Values};
use errors::StorageError;

/// What Postgres may ask for.
#[derive(Clone, Copy, Debug)]
pub struct PostgresKeys;

impl LiveKeys for PostgresKeys {
    fn of<'a>(&'a self, values: &'a dyn Values) -> Answer<'a, KeySpace> {
        Box::pin(async move {
            let store = AsStore(values);
            // The LSN is that of the values.
            let listing = Listing::new(&store, Lsn::MAX);
            let mut keys = KeySpaceBuilder::default();
            keys.add_key(DBDIR_KEY);
            for (spcnode, dbnode) in listing.databases().await?.into_keys() {
                keys.add_key(relmap_key(spcnode, dbnode));
                for (rel, blocks) in listing.relations(spcnode, dbnode).await? {
                    keys.add_range(rel_block_key(rel, 0)..rel_block_key(rel, blocks));
                    keys.add_key(rel_size_key(rel));
                }
            }
            keys.add_range(ALL_RELATIONS.end..Key::MAX);
            Ok(keys.build())
        })
    }
}

/// Values to be listed; nothing else is done with them.
struct AsStore<'a>(&'a dyn Values);

impl PageStore for AsStore<'_> {
    async fn get(&self, key: Key, lsn: Lsn) -> Result<Option<Bytes>, StorageError> {
        Ok(self.get_many(&KeySpace::single(key..key.next()), lsn).await?.remove(&key))
    }

    async fn get_many(&self, keys: &KeySpace, _: Lsn) -> Result<BTreeMap<Key, Bytes>, StorageError> {
        self.0.get_many(keys).await
    }

    async fn put_batch(&self, _: SerializedValueBatch) -> Result<(), StorageError> {
        Err(read_only())
    }

    async fn finish_write(&self, _: Lsn, _: Lsn) -> Result<(), StorageError> {
        Err(read_only())
    }

    fn set_wal_log_hints(&self, _: Lsn, _: bool) {}
}

fn read_only() -> StorageError {
    StorageError::Invalid("values that are listed cannot be changed".to_owned())
}
