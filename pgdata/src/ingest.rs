//! Ingest: turns WAL records into values, and keeps the directories of relations, segments and files up to date.
//!
//! [`WalIngest`] keeps in memory what it has written to directories, sizes and counters, so that a record sees the
//! effects of earlier records that are still in the open batch. The values of a record have the record's end as their
//! LSN. A batch ends between records, and its values become visible together.
//!
//! After an error the state in memory may be ahead of what is stored: drop the `WalIngest` and load another.
//! Committed values are not affected.

mod counters;
mod database;
mod fast_path;
mod fsm;
mod known_relations;
mod known_slrus;
mod multixact;
pub mod pipeline;
mod relations;
mod settings;
mod slru;
#[cfg(test)]
mod tests;
mod transaction;
mod truncate;

use std::collections::HashMap;

use bytes::Bytes;
use pageserver_api::key::{CHECKPOINT_KEY, Key};
use pageserver_api::parameters::ClusterParameters;
use pageserver_api::record::WalRecord;
use pageserver_api::value::Value;
use postgres_formats::record::{DecodedRecord, RecordError, decode};
use postgres_formats::smgr::SmgrRecord;
use postgres_formats::tblspc::TblspcRecord;
use postgres_formats::version::PgVersion;
use utils::lsn::Lsn;
use wal_decoder::interpret::{InterpretError, MetadataRecord, interpret};
use wal_decoder::serialized_batch::SerializedValueBatch;
use wal_decoder::stream::{RecordBatch, RecordRef};
use wal_decoder::tablespaces::{TablespaceError, TablespaceTable};

use crate::directory::TwoPhaseDir;
use crate::listing::Listing;
use crate::store::PageStore;
use crate::timestamps::{PgTimestamp, timestamp_of_lsn};
use counters::Counters;
use errors::StorageError;
use known_relations::Relations;
use known_slrus::Slrus;
use metrics::{IngestStage, Stopwatch};

/// A batch is committed when it has this many bytes of values...
const BATCH_BYTES: usize = 1 << 20;
/// ... or records.
const BATCH_RECORDS: usize = 1000;
/// The values of one record are passed to the store in pieces of about this size.
const PIECE_BYTES: usize = 8 << 20;

/// Why a record could not be ingested.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// Reading or writing the store failed.
    #[error("{0}")]
    Storage(#[from] StorageError),
    /// The bytes are not a valid record.
    #[error("record at {lsn}: {source}")]
    Record {
        /// Start of the record.
        lsn: Lsn,
        /// What is wrong.
        source: RecordError,
    },
    /// The record's content cannot be interpreted.
    #[error("record at {lsn}: {source}")]
    Interpret {
        /// Start of the record.
        lsn: Lsn,
        /// What is wrong.
        source: InterpretError,
    },
    /// The record names an unknown tablespace, or there are too many tablespaces.
    #[error("record at {lsn}: {source}")]
    Tablespace {
        /// Start of the record.
        lsn: Lsn,
        /// What is wrong.
        source: TablespaceError,
    },
    /// The record contradicts what is stored or was ingested before.
    #[error("record at {lsn}: {reason}")]
    Inconsistent {
        /// Start of the record.
        lsn: Lsn,
        /// What is wrong.
        reason: String,
    },
}

/// Applies records, in order, to a store.
#[derive(Debug)]
pub struct WalIngest<S> {
    store: S,
    version: PgVersion,
    batch: SerializedValueBatch,
    batch_records: usize,
    /// Start of the current record.
    start: Lsn,
    /// Its end: the LSN of everything that it writes.
    lsn: Lsn,
    /// End and start of the last complete record.
    done: (Lsn, Lsn),
    /// End of the last record committed to the store.
    committed: Lsn,
    relations: Relations,
    slrus: Slrus,
    counters: Counters,
    parameters: ClusterParameters,
    tablespaces: TablespaceTable,
    twophase: TwoPhaseDir,
    /// The newest commit time that has a mark.
    commit_time: Option<PgTimestamp>,
    /// Progress of replication origins, as far as records have changed it.
    origins: HashMap<u16, Lsn>,
    /// Of [`WalIngest::ingest_many`] and the task that calls it.
    watch: Stopwatch<IngestStage>,
}

impl<S: PageStore> WalIngest<S> {
    /// Starts after `last_record`, the end of the last record in `store`, which starts at `prev_record`.
    pub async fn load(store: S, last_record: Lsn, prev_record: Lsn) -> Result<Self, IngestError> {
        let listing = Listing::new(&store, last_record);
        let parameters = listing.parameters().await?;
        let version = PgVersion::from_major(parameters.pg_version)
            .ok_or_else(|| StorageError::Invalid(format!("PostgreSQL {} is not supported", parameters.pg_version)))?;
        let checkpoint = listing.checkpoint().await?;
        let (tablespaces, twophase) = (listing.tablespaces().await?, listing.twophase(version).await?);
        let (relations, slrus) = (Relations::load(&listing).await?, Slrus::load(&listing).await?);
        let commit_time = timestamp_of_lsn(&store, last_record).await?;
        Ok(Self {
            store,
            version,
            batch: SerializedValueBatch::with_capacity(BATCH_RECORDS, BATCH_BYTES),
            batch_records: 0,
            start: last_record,
            lsn: last_record,
            done: (last_record, prev_record),
            committed: last_record,
            relations,
            slrus,
            counters: Counters::new(checkpoint, parameters.track_commit_timestamp),
            parameters,
            tablespaces,
            twophase,
            commit_time,
            origins: HashMap::new(),
            watch: metrics::ingest_stopwatch(),
        })
    }

    /// The major version that wrote the records.
    pub fn version(&self) -> PgVersion {
        self.version
    }

    /// The cluster's parameters as of the last record.
    pub fn parameters(&self) -> &ClusterParameters {
        &self.parameters
    }

    /// End of the last record, whether committed or not.
    pub fn last_record(&self) -> Lsn {
        self.done.0
    }

    /// Start of the record that was last applied or failed.
    pub fn current_record(&self) -> Lsn {
        self.start
    }

    /// Applies the record `bytes`, which starts at `start` and ends at `end`. Commits if the batch is full.
    pub async fn ingest(&mut self, start: Lsn, end: Lsn, bytes: &[u8]) -> Result<(), IngestError> {
        let record = RecordRef { start, end, bytes };
        if !self.ingest_fast(record)? {
            self.ingest_any(record).await?;
        }
        if self.is_batch_full() { self.commit().await } else { Ok(()) }
    }

    /// Applies all of `records`, in order. Commits whenever the batch is full.
    pub async fn ingest_many(&mut self, records: &RecordBatch) -> Result<(), IngestError> {
        self.watch.enter(IngestStage::Serialize);
        for record in records.iter() {
            // The futures are boxed for the sake of the frequent records, which would otherwise move them unused.
            if self.ingest_fast(record)? {
                self.watch.enter(IngestStage::Serialize);
            } else {
                self.watch.enter(IngestStage::Metadata);
                Box::pin(self.ingest_any(record)).await?;
            }
            if self.is_batch_full() {
                Box::pin(self.commit()).await?;
            }
        }
        Ok(())
    }

    fn is_batch_full(&self) -> bool {
        self.batch.buffer_size() >= BATCH_BYTES || self.batch_records >= BATCH_RECORDS
    }

    /// Makes the record from `start` to `end` the current one.
    fn begin_record(&mut self, start: Lsn, end: Lsn) -> Result<(), IngestError> {
        if start < self.done.0 || end <= start {
            let reason = format!("it ends at {end}, and the last record ended at {}", self.done.0);
            return Err(IngestError::Inconsistent { lsn: start, reason });
        }
        (self.start, self.lsn) = (start, end);
        Ok(())
    }

    async fn ingest_any(&mut self, record: RecordRef<'_>) -> Result<(), IngestError> {
        let RecordRef { start, end, bytes } = record;
        let rec = decode(self.version, bytes).map_err(|source| IngestError::Record { lsn: start, source })?;
        let interpreted =
            interpret(&rec, &self.tablespaces).map_err(|source| IngestError::Interpret { lsn: start, source })?;
        self.counters.see_xid(rec.header.xid);
        for change in interpreted.changes {
            self.put_block(&rec, bytes, change).await?;
        }
        if let Some(metadata) = interpreted.metadata {
            self.apply(&rec, metadata).await?;
        }
        self.end_record(start, end);
        Ok(())
    }

    /// Passes all complete records to the store.
    pub async fn commit(&mut self) -> Result<(), IngestError> {
        let (last, prev) = self.done;
        if last > self.committed {
            self.put_piece().await?;
            self.store.finish_write(last, prev).await?;
            self.committed = last;
            self.batch_records = 0;
            self.relations.forget_some();
        }
        Ok(())
    }

    /// Passes the values so far to the store; they may belong to a record that is not complete yet.
    async fn put_piece(&mut self) -> Result<(), IngestError> {
        if !self.batch.is_empty() {
            let empty = SerializedValueBatch::with_capacity(BATCH_RECORDS, BATCH_BYTES);
            // The store has a stopwatch of its own.
            let stage = self.watch.pause();
            self.store.put_batch(std::mem::replace(&mut self.batch, empty)).await?;
            self.watch.resume(stage);
        }
        Ok(())
    }

    /// Bounds the memory used by the values of one record.
    async fn put_full_piece(&mut self) -> Result<(), IngestError> {
        if self.batch.buffer_size() >= PIECE_BYTES { self.put_piece().await } else { Ok(()) }
    }

    /// The store as of the record before the current one, which must not have written anything yet.
    async fn before(&mut self) -> Result<Listing<'_, S>, IngestError> {
        self.commit().await?;
        Ok(Listing::new(&self.store, self.committed))
    }

    async fn apply(&mut self, rec: &DecodedRecord<'_>, metadata: MetadataRecord<'_>) -> Result<(), IngestError> {
        match metadata {
            MetadataRecord::Xlog(record) => self.apply_xlog(&record),
            MetadataRecord::Commit(end) => self.apply_commit(rec, &end).await,
            MetadataRecord::Abort(end) => self.apply_abort(rec, &end).await,
            MetadataRecord::Prepare(state) => self.apply_prepare(rec, state).await,
            MetadataRecord::Smgr(SmgrRecord::Create { rel, fork }) => {
                let rel = self.rel_tag(rel, fork)?;
                self.ensure_relation(rel).await.map(drop)
            }
            MetadataRecord::Smgr(SmgrRecord::Truncate { rel, blocks, flags }) => {
                self.apply_truncate(rel, blocks, flags).await
            }
            MetadataRecord::Clog(record) => self.apply_clog(&record),
            MetadataRecord::Dbase(record) => self.apply_dbase(&record).await,
            MetadataRecord::Tblspc(record) => self.apply_tblspc(&record),
            MetadataRecord::MultiXact(record) => self.apply_multixact(&record),
            MetadataRecord::RelMap(update) => self.apply_relmap(&update),
            MetadataRecord::RunningXacts(running) => {
                self.counters.running(running.oldest_running_xid);
                Ok(())
            }
            MetadataRecord::VmClear(clears) => self.apply_vm_clears(&clears).await,
            MetadataRecord::CommitTs(record) => self.apply_commit_ts(&record),
            MetadataRecord::ReplOrigin(record) => self.apply_replorigin(&record).await,
        }
    }

    /// Writes the record's changes of sizes, directories and counters.
    fn end_record(&mut self, start: Lsn, end: Lsn) {
        if self.relations.has_changes() || self.slrus.has_changes() {
            for (key, value) in self.relations.take_changes().into_iter().chain(self.slrus.take_changes()) {
                self.put_image(key, value);
            }
        }
        if let Some(checkpoint) = self.counters.take_changed() {
            let checkpoint = Bytes::copy_from_slice(&checkpoint.encode());
            self.put_image(CHECKPOINT_KEY, checkpoint);
        }
        self.done = (end, start);
        self.batch_records += 1;
    }

    fn put_image(&mut self, key: Key, image: Bytes) {
        self.put_value(key, &Value::Image(image));
    }

    fn put_change(&mut self, key: Key, change: WalRecord) {
        self.put_value(key, &Value::WalRecord(change));
    }

    fn put_value(&mut self, key: Key, value: &Value) {
        self.batch.put_key(&key, self.lsn, value).expect("values in memory can be serialized");
    }

    fn apply_tblspc(&mut self, record: &TblspcRecord<'_>) -> Result<(), IngestError> {
        match record {
            TblspcRecord::Create { oid, path } => {
                let created = self.tablespaces.create(*oid, path);
                created.map_err(|source| IngestError::Tablespace { lsn: self.start, source })?;
            }
            TblspcRecord::Drop { oid } => self.tablespaces.remove(*oid),
        }
        self.put_image(pageserver_api::key::TABLESPACES_KEY, Bytes::from(self.tablespaces.encode()));
        Ok(())
    }

    fn inconsistent(&self, reason: impl std::fmt::Display) -> IngestError {
        IngestError::Inconsistent { lsn: self.start, reason: reason.to_string() }
    }
}
