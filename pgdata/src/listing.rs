//! What exists at an LSN: databases, relation forks and their sizes, SLRU segments, prepared transactions, replication
//! origins.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use pageserver_api::key::{
    CHECKPOINT_KEY, DBDIR_KEY, Key, PARAMETERS_KEY, SETTINGS_KEY, TABLESPACES_KEY, TWOPHASEDIR_KEY, rel_entry_key,
    rel_entry_range, rel_size_key, repl_origin_key_range, slru_dir_key, slru_segment_size_key,
};
use pageserver_api::keyspace::{KeySpace, KeySpaceBuilder};
use pageserver_api::parameters::ClusterParameters;
use pageserver_api::reltag::{RelTag, SlruKind};
use postgres_formats::checkpoint::CheckPoint;
use postgres_formats::version::PgVersion;
use utils::lsn::Lsn;
use wal_decoder::tablespaces::TablespaceTable;

use super::directory::{DbDir, SlruDir, TwoPhaseDir, decode, decode_progress, decode_size, decode_twophase, malformed};
use super::settings::ClusterSettings;
use crate::store::PageStore;
use errors::StorageError;

/// Number of keys per request when many sizes are read.
const SIZES_PER_READ: usize = 4096;

/// The keys that tell the size of a relation fork, to be read together with others: each read may be a round trip to
/// the bucket.
pub fn rel_size_keys(rel: RelTag) -> [Key; 2] {
    [rel_entry_key(rel), rel_size_key(rel)]
}

/// The size of a relation fork in blocks, from the values of [`rel_size_keys`] as of `lsn`; `None` if it does not
/// exist.
pub fn rel_size_among(
    rel: RelTag,
    lsn: Lsn,
    mut value: impl FnMut(Key) -> Result<Option<Bytes>, StorageError>,
) -> Result<Option<u32>, StorageError> {
    let [entry, key] = rel_size_keys(rel);
    if value(entry)?.is_none_or(|entry| entry.is_empty()) {
        return Ok(None);
    }
    let size = value(key)?.ok_or(StorageError::MissingKey { key, lsn })?;
    decode_size(key, &size).map(Some)
}

/// A store as of one LSN.
#[derive(Debug)]
pub struct Listing<'a, S> {
    store: &'a S,
    lsn: Lsn,
}

impl<'a, S: PageStore> Listing<'a, S> {
    /// `store` as of `lsn`.
    pub fn new(store: &'a S, lsn: Lsn) -> Self {
        Self { store, lsn }
    }

    /// The value of a key that must exist.
    pub async fn required(&self, key: Key) -> Result<Bytes, StorageError> {
        self.store.get(key, self.lsn).await?.ok_or(StorageError::MissingKey { key, lsn: self.lsn })
    }

    /// The databases.
    pub async fn databases(&self) -> Result<DbDir, StorageError> {
        decode(DBDIR_KEY, &self.required(DBDIR_KEY).await?)
    }

    /// The user tablespaces.
    pub async fn tablespaces(&self) -> Result<TablespaceTable, StorageError> {
        decode(TABLESPACES_KEY, &self.required(TABLESPACES_KEY).await?)
    }

    /// The cluster's parameters.
    pub async fn parameters(&self) -> Result<ClusterParameters, StorageError> {
        decode(PARAMETERS_KEY, &self.required(PARAMETERS_KEY).await?)
    }

    /// The settings from the cluster's configuration files as of the import; empty if an earlier version imported it.
    pub async fn settings(&self) -> Result<ClusterSettings, StorageError> {
        let stored = self.store.get(SETTINGS_KEY, self.lsn).await?;
        stored.map_or_else(|| Ok(ClusterSettings::default()), |bytes| ClusterSettings::decode(&bytes))
    }

    /// The checkpoint that a server shut down at this LSN would have written, except that `redo` is that of the last
    /// real one, and `next_xid` may be ahead (see `docs/decisions/0010-next-xid.md`).
    pub async fn checkpoint(&self) -> Result<CheckPoint, StorageError> {
        let bytes = self.required(CHECKPOINT_KEY).await?;
        CheckPoint::decode(&bytes).map_err(|error| malformed(CHECKPOINT_KEY, &error))
    }

    /// The prepared transactions.
    pub async fn twophase(&self, version: PgVersion) -> Result<TwoPhaseDir, StorageError> {
        decode_twophase(version, TWOPHASEDIR_KEY, &self.required(TWOPHASEDIR_KEY).await?)
    }

    /// The progress of replication origins.
    pub async fn replication_origins(&self) -> Result<BTreeMap<u16, Lsn>, StorageError> {
        let values = self.store.get_many(&KeySpace::single(repl_origin_key_range()), self.lsn).await?;
        let mut origins = BTreeMap::new();
        for (key, value) in values {
            if let (Some(origin), Some(lsn)) = (key.to_repl_origin(), decode_progress(key, &value)?) {
                origins.insert(origin, lsn);
            }
        }
        Ok(origins)
    }

    /// The size of a relation fork in blocks; `None` if it does not exist.
    pub async fn rel_size(&self, rel: RelTag) -> Result<Option<u32>, StorageError> {
        let mut keys = KeySpaceBuilder::default();
        rel_size_keys(rel).into_iter().for_each(|key| keys.add_key(key));
        let values = self.store.get_many(&keys.build(), self.lsn).await?;
        rel_size_among(rel, self.lsn, |key| Ok(values.get(&key).cloned()))
    }

    /// The relation forks of a database in a tablespace, with their sizes in blocks.
    pub async fn relations(&self, spcnode: u32, dbnode: u32) -> Result<BTreeMap<RelTag, u32>, StorageError> {
        let entries = self.store.get_many(&KeySpace::single(rel_entry_range(spcnode, dbnode)), self.lsn).await?;
        let rels: Vec<RelTag> =
            entries.iter().filter(|(_, value)| !value.is_empty()).filter_map(|(key, _)| key.to_rel_entry()).collect();
        let mut sizes = BTreeMap::new();
        for chunk in rels.chunks(SIZES_PER_READ) {
            let mut keys = KeySpaceBuilder::default();
            chunk.iter().for_each(|rel| keys.add_key(rel_size_key(*rel)));
            let values = self.store.get_many(&keys.build(), self.lsn).await?;
            for rel in chunk {
                let key = rel_size_key(*rel);
                let value = values.get(&key).ok_or(StorageError::MissingKey { key, lsn: self.lsn })?;
                sizes.insert(*rel, decode_size(key, value)?);
            }
        }
        Ok(sizes)
    }

    /// The segments of an SLRU, with their sizes in pages.
    pub async fn slru_segments(&self, kind: SlruKind) -> Result<BTreeMap<u32, u32>, StorageError> {
        let dir_key = slru_dir_key(kind);
        let dir: SlruDir = decode(dir_key, &self.required(dir_key).await?)?;
        let mut keys = KeySpaceBuilder::default();
        dir.iter().for_each(|segno| keys.add_key(slru_segment_size_key(kind, *segno)));
        let values = self.store.get_many(&keys.build(), self.lsn).await?;
        let size = |segno: u32| {
            let key = slru_segment_size_key(kind, segno);
            let value = values.get(&key).ok_or(StorageError::MissingKey { key, lsn: self.lsn })?;
            Ok((segno, decode_size(key, value)?))
        };
        dir.into_iter().map(size).collect()
    }

    /// The values of a range of keys, all of which must exist.
    pub async fn dense(&self, range: Range<Key>) -> Result<BTreeMap<Key, Bytes>, StorageError> {
        let values = self.store.get_many(&KeySpace::single(range.clone()), self.lsn).await?;
        let mut key = range.start;
        for found in values.keys() {
            if *found != key {
                break;
            }
            key = key.next();
        }
        if key != range.end {
            return Err(StorageError::MissingKey { key, lsn: self.lsn });
        }
        Ok(values)
    }
}
