//! One branch of a tenant's history: takes in values in order of LSN, gives pages as of any LSN.
//!
//! The state is plain data ([`state`]); what is done with it are functions, one module each. [`Timeline`] is the handle
//! that others use.

mod dir_lock;
mod flush;
mod info;
mod ingest;
mod lifecycle;
pub mod manifest;
mod read;
mod rebuild;
mod recovery;
mod redo_settings;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::context::RequestContext;
use crate::errors::StorageError;

pub use info::TimelineInfo;
pub use ingest::{OpenLayerStats, RollPolicy, RollReason, should_roll};
pub use lifecycle::NewTimeline;
pub use manifest::{Ancestor, Manifest, Origin};
pub(crate) use recovery::has_manifest;
pub use state::RecordLsn;
use state::TimelineState;

/// A timeline in use. Cheap to clone; [`Timeline::shutdown`] ends it for all.
#[derive(Clone, Debug)]
pub struct Timeline {
    state: Arc<TimelineState>,
}

impl Timeline {
    /// The value of `key` as of `lsn`: the page or metadata value after all changes with LSNs up to `lsn`.
    ///
    /// Above [`Timeline::last_record_lsn`] this gives what has arrived so far, which may still change: whoever serves
    /// others waits first ([`Timeline::wait_for_lsn`]).
    ///
    /// # Errors
    /// [`StorageError::MissingKey`] if the key has no version at or below `lsn`.
    pub async fn get(&self, key: Key, lsn: Lsn, ctx: &RequestContext) -> Result<Bytes, StorageError> {
        read::get(&self.state, key, lsn, ctx).await
    }

    /// The values of all keys of `keyspace` that have any version at or below `lsn`; keys without one are left out. The
    /// error of one key is that of its rebuilding; an error of the whole read is one of its I/O.
    pub async fn get_vectored(
        &self,
        keyspace: &KeySpace,
        lsn: Lsn,
        ctx: &RequestContext,
    ) -> Result<BTreeMap<Key, Result<Bytes, StorageError>>, StorageError> {
        read::get_vectored(&self.state, keyspace, lsn, ctx).await
    }

    /// Takes in values with LSNs above [`Timeline::last_record_lsn`]. Readers see all of the batch or nothing. Waits
    /// while too much is still to be written to disk. On error nothing of the batch is taken, and what came before is
    /// intact.
    pub async fn put_batch(&self, batch: SerializedValueBatch, ctx: &RequestContext) -> Result<(), StorageError> {
        ingest::put_batch(&self.state, batch, ctx).await
    }

    /// Declares history complete up to `last`, the end of the record that starts at `prev`.
    ///
    /// # Panics
    /// If `last` goes backwards.
    pub fn finish_write(&self, last: Lsn, prev: Lsn) {
        self.state.advance_record_lsn(RecordLsn { last, prev });
    }

    /// Makes everything up to [`Timeline::last_record_lsn`] durable as layer files. After an error nothing is lost, and
    /// the call may be repeated.
    pub async fn flush(&self, ctx: &RequestContext) -> Result<(), StorageError> {
        flush::flush(&self.state, ctx).await
    }

    /// History is complete up to this LSN, in memory.
    pub fn last_record_lsn(&self) -> Lsn {
        self.state.record_lsn().last
    }

    /// The end and the start of the last record.
    pub fn record_lsn(&self) -> RecordLsn {
        self.state.record_lsn()
    }

    /// History is complete up to this LSN, durably.
    pub fn disk_consistent_lsn(&self) -> Lsn {
        self.state.disk_consistent().last
    }

    /// Waits until history is complete up to `lsn`.
    pub async fn wait_for_lsn(&self, lsn: Lsn) -> Result<(), StorageError> {
        self.state.wait_for_lsn(lsn).await
    }

    /// Tells redo that the record that ends at `lsn` has changed `wal_log_hints`. Changes come in order.
    pub fn set_wal_log_hints(&self, lsn: Lsn, on: bool) {
        self.state.redo.write().set_wal_log_hints(lsn, on);
    }

    /// What this timeline is and how far it has come.
    pub fn info(&self) -> TimelineInfo {
        TimelineInfo::of(&self.state)
    }
}
