//! One branch of a tenant's history: ingests values in LSN order and serves pages as of any LSN.
//!
//! The state is plain data ([`state`]); the functions that operate on it live in one module each. [`Timeline`] is the
//! handle that others use.

mod changed_keys;
mod dir_lock;
mod flush;
mod info;
mod ingest;
mod lifecycle;
pub mod manifest;
mod open;
mod publish;
mod read;
mod rebuild;
mod recovery;
mod redo_settings;
mod retention;
mod state;
mod upload;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use camino::Utf8Path;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::shard::TenantShardId;
use pageserver_api::value::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::context::RequestContext;
use crate::observer::WriteObserver;
use crate::tenant::layer_map::Layer;
use crate::tenant::remote::TenantRemote;
use errors::StorageError;
use metrics::{self, METRICS};

pub(crate) use dir_lock::DirLock;
pub use info::{LayerInfo, LayerKind, TimelineInfo};
pub use ingest::{OpenLayerStats, RollPolicy, RollReason, should_roll};
pub use lifecycle::Imported;
pub use lifecycle::NewTimeline;
pub use manifest::{Ancestor, MANIFEST_NAME, Manifest, Origin, Told};
pub(crate) use open::Opening;
pub use recovery::has_manifest;
pub use state::RecordLsn;
use state::TimelineState;

/// A timeline in use. Cheap to clone; [`Timeline::shutdown`] ends it for all clones.
#[derive(Clone, Debug)]
pub struct Timeline {
    state: Arc<TimelineState>,
}

impl Timeline {
    /// The value of `key` as of `lsn`: the page or metadata value after all changes with LSNs up to `lsn`.
    ///
    /// Above [`Timeline::last_record_lsn`] this returns what has arrived so far, which may still change: callers that
    /// serve others must first wait ([`Timeline::wait_for_lsn`]).
    ///
    /// # Errors
    /// [`StorageError::MissingKey`] if the key has no version at or below `lsn`.
    pub async fn get(&self, key: Key, lsn: Lsn, ctx: &RequestContext) -> Result<Bytes, StorageError> {
        let _timer = metrics::timer(&METRICS.get_vectored_seconds);
        read::get(&self.state, key, lsn, ctx).await
    }

    /// The values of all keys of `keyspace` that have a version at or below `lsn`; keys without one are omitted. A
    /// per-key error comes from rebuilding that key; an error of the whole read comes from its I/O.
    pub async fn get_vectored(
        &self,
        keyspace: &KeySpace,
        lsn: Lsn,
        ctx: &RequestContext,
    ) -> Result<BTreeMap<Key, Result<Bytes, StorageError>>, StorageError> {
        let _timer = metrics::timer(&METRICS.get_vectored_seconds);
        read::get_vectored(&self.state, keyspace, lsn, ctx).await
    }

    /// The newest version of `key` at or below `lsn` as it is stored, and its LSN; `None` if there is none. Tells
    /// what has changed a page; not for use with the context of page requests, whose pages are cached.
    pub async fn newest_version(
        &self,
        key: Key,
        lsn: Lsn,
        ctx: &RequestContext,
    ) -> Result<Option<(Lsn, Value)>, StorageError> {
        read::newest_version(&self.state, key, lsn, ctx).await
    }

    /// Ingests values with LSNs above [`Timeline::last_record_lsn`]. Readers see all of the batch or nothing. Waits
    /// while too much is still to be written to disk. On error nothing of the batch is ingested, and earlier values
    /// are intact.
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

    /// Makes everything up to [`Timeline::last_record_lsn`] durable as layer files. An error loses nothing, and the
    /// call may be repeated.
    pub async fn flush(&self, ctx: &RequestContext) -> Result<(), StorageError> {
        flush::flush(&self.state, ctx).await
    }

    /// History is complete up to this LSN, in memory.
    pub fn last_record_lsn(&self) -> Lsn {
        self.state.record_lsn().last
    }

    /// The tenant shard.
    pub fn tenant_shard_id(&self) -> TenantShardId {
        self.state.tenant_shard_id
    }

    /// The timeline.
    pub fn timeline_id(&self) -> TimelineId {
        self.state.timeline_id
    }

    /// The timeline's immutable properties.
    pub fn origin(&self) -> &Origin {
        &self.state.origin
    }

    /// Its directory.
    pub fn dir(&self) -> &Utf8Path {
        &self.state.dir
    }

    /// No page is readable below this LSN.
    pub fn min_readable_lsn(&self) -> Lsn {
        self.state.origin.consistent_lsn
    }

    /// Whether pages may be read as of `lsn`.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] saying why not.
    pub fn check_readable(&self, lsn: Lsn) -> Result<(), StorageError> {
        let first = self.min_readable_lsn();
        if lsn >= first {
            return self.state.check_retained(lsn).map_err(|cutoff| {
                StorageError::Invalid(format!(
                    "LSN {lsn} is not readable: history below LSN {cutoff} has been removed, but for branch points, \
                     leases and holds"
                ))
            });
        }
        Err(StorageError::Invalid(format!(
            "LSN {lsn} is not readable: the copy of the cluster is consistent only from its end at LSN {first} on"
        )))
    }

    /// Keeps `lsn` readable for at least `length` from now; never shortens a lease. Returns when the lease ends.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if it is not readable.
    pub fn lease(&self, lsn: Lsn, length: Duration) -> Result<SystemTime, StorageError> {
        self.check_readable(lsn)?;
        let now = env::clock::system_now();
        let mut leases = self.state.leases.lock();
        leases.retain(|_, until| *until > now);
        let until = leases.entry(lsn).or_insert(now);
        *until = (*until).max(now + length);
        Ok(*until)
    }

    /// Watches [`Timeline::record_lsn`].
    pub fn watch_record_lsn(&self) -> watch::Receiver<RecordLsn> {
        self.state.watch_record_lsn()
    }

    /// Watches the durable position.
    pub fn watch_disk_consistent(&self) -> watch::Receiver<RecordLsn> {
        self.state.watch_disk_consistent()
    }

    /// Everything up to this LSN survives the loss of the local disk; `None` if there is no bucket, or nothing of the
    /// timeline is in it yet.
    pub fn remote_consistent_lsn(&self) -> Option<Lsn> {
        upload::remote_consistent(&self.state)
    }

    /// Watches [`Timeline::remote_consistent_lsn`], without regard to ancestors. `None` without a bucket.
    pub fn watch_remote_consistent(&self) -> Option<watch::Receiver<Option<Lsn>>> {
        Some(self.state.uploader.as_ref()?.watch_consistent())
    }

    /// The WAL sender may discard WAL below this LSN: it survives the loss of the disk or, without a bucket, of the
    /// process. 0/0 if nothing does yet.
    pub fn durable_lsn(&self) -> Lsn {
        match self.state.uploader {
            Some(_) => self.remote_consistent_lsn().unwrap_or(Lsn::INVALID),
            None => self.disk_consistent_lsn(),
        }
    }

    /// Waits up to `timeout` until everything that is durable here now is in the bucket too. True if it is, or if
    /// there is no bucket.
    pub async fn wait_uploaded(&self, timeout: Duration) -> bool {
        upload::wait_uploaded(&self.state, timeout).await
    }

    /// Whether the bucket has the whole layer.
    pub fn is_uploaded(&self, layer: &Layer) -> bool {
        let name = layer.path().file_name().unwrap_or_default();
        self.state.uploader.as_ref().is_some_and(|uploader| uploader.is_uploaded(name))
    }

    /// Marks the timeline as deleted in its bucket, if it has one. After an error it continues to serve, but uploads
    /// nothing more until it is reopened.
    pub async fn bury(&self) -> Result<(), StorageError> {
        upload::bury(&self.state).await
    }

    /// The externally supplied metadata of the timeline.
    pub fn told(&self) -> Option<Told> {
        self.state.told.read().clone()
    }

    /// Replaces the externally supplied metadata durably, and in the bucket if there is one.
    pub async fn tell(&self, told: Told) -> Result<(), StorageError> {
        publish::told(&self.state, told).await
    }

    /// Rewrites the index part in the bucket from the current state. False if that does not succeed in time.
    pub(crate) async fn publish_again(&self) -> bool {
        match &self.state.uploader {
            Some(uploader) => uploader.publish_again().await,
            None => false,
        }
    }

    /// Rewrites the manifest from the current state.
    pub(crate) async fn rewrite_manifest(&self) -> Result<(), StorageError> {
        publish::again(&self.state).await
    }

    /// All layer files.
    pub fn layer_files(&self) -> Vec<Arc<Layer>> {
        self.state.layers().map.iter().cloned().collect()
    }

    /// Why this server may no longer write the timeline, if another one has taken the tenant over.
    pub fn fenced(&self) -> Option<String> {
        self.remote()?.fenced()
    }

    /// The bucket side of the tenant, as this server holds it.
    pub fn remote(&self) -> Option<&Arc<TenantRemote>> {
        Some(self.state.uploader.as_ref()?.remote())
    }

    /// Cancelled when the timeline shuts down.
    pub fn cancelled(&self) -> CancellationToken {
        self.state.cancel.child_token()
    }

    /// Why the timeline accepts no more writes, if so.
    pub fn broken(&self) -> Option<String> {
        self.state.broken().map(str::to_owned)
    }

    /// See [`TimelineState::note_panic`].
    pub fn note_panic(&self, reason: String) {
        self.state.note_panic(reason);
    }

    /// All layers at this moment: in-memory layers from newest to oldest, then files.
    pub fn layers(&self) -> Vec<LayerInfo> {
        info::layers(&self.state)
    }

    /// Whether this timeline branches directly off `other`.
    pub fn is_child_of(&self, other: TimelineId) -> bool {
        self.state.origin.ancestor.is_some_and(|ancestor| ancestor.timeline_id == other)
    }

    /// Freezes the open layer if it is due by size, distance or age, and starts writing frozen layers. A background
    /// task calls this periodically, so that an idle timeline becomes durable too.
    pub async fn tend(&self) -> Result<(), StorageError> {
        ingest::tend(&self.state).await
    }

    /// The end and the start of the last record.
    pub fn record_lsn(&self) -> RecordLsn {
        self.state.record_lsn()
    }

    /// History is complete up to this LSN, durably.
    pub fn disk_consistent_lsn(&self) -> Lsn {
        self.state.disk_consistent().last
    }

    /// The LSN up to which this timeline as of `lsn` and another as of `other_lsn` share their history, if any.
    pub fn common_lsn(&self, lsn: Lsn, other: &Timeline, other_lsn: Lsn) -> Option<Lsn> {
        changed_keys::common_lsn((&self.state, lsn), (&other.state, other_lsn))
    }

    /// The keys that have versions after `after` and up to `upto`, on this timeline and its ancestors.
    pub async fn changed_keys(
        &self,
        after: Lsn,
        upto: Lsn,
        ctx: &RequestContext,
    ) -> Result<BTreeSet<Key>, StorageError> {
        changed_keys::changed_keys(&self.state, after, upto, ctx).await
    }

    /// Waits until history is complete up to `lsn`.
    pub async fn wait_for_lsn(&self, lsn: Lsn) -> Result<(), StorageError> {
        self.state.wait_for_lsn(lsn).await
    }

    /// Waits up to `timeout` until history is complete up to `lsn`.
    ///
    /// # Errors
    /// [`StorageError::LsnTimeout`].
    pub async fn wait_for_lsn_timeout(&self, lsn: Lsn, timeout: Duration) -> Result<(), StorageError> {
        self.state.wait_for_lsn_timeout(lsn, timeout).await
    }

    /// Tells redo that the record that ends at `lsn` has changed `wal_log_hints`. Changes must come in LSN order.
    pub fn set_wal_log_hints(&self, lsn: Lsn, on: bool) {
        self.state.redo.write().set_wal_log_hints(lsn, on);
    }

    /// Identifies this opening of the timeline: reopening it yields another number.
    pub fn instance(&self) -> u64 {
        self.state.cached.id()
    }

    /// The observer of all values ingested since the timeline was opened, if it is a `T`
    /// ([`PageServerConf::observer`]). What it has noted is final once [`Timeline::last_record_lsn`] has passed it.
    pub fn observer<T: WriteObserver>(&self) -> Option<&T> {
        let observer: &dyn Any = &**self.state.observer.as_ref()?;
        observer.downcast_ref()
    }

    /// The timeline's properties and progress.
    pub fn info(&self) -> TimelineInfo {
        TimelineInfo::of(&self.state)
    }
}
