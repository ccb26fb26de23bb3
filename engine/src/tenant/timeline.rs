//! One branch of a tenant's history: ingests values in LSN order and serves pages as of any LSN.
//!
//! The state is plain data ([`state`]); the functions that operate on it live in one module each. [`Timeline`] is the
//! handle that others use.

mod changed_keys;
mod compact;
mod condition;
mod damage;
mod debt;
mod detach;
mod detaching;
mod dir_lock;
mod flush;
mod gc;
mod info;
mod ingest;
mod keeping;
mod lifecycle;
mod live;
pub mod manifest;
mod open;
mod publish;
mod read;
mod rebuild;
mod recovery;
mod redo_settings;
mod retention;
mod state;
mod thinning;
mod upload;
mod window;
mod work;

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

use crate::config::RetentionPolicy;
use crate::context::RequestContext;
use crate::observer::WriteObserver;
use crate::slow_reads::SlowRead;
use crate::tenant::layer_map::debt as layer_debt;
use crate::tenant::layer_map::{Graveyard, Layer};
use crate::tenant::remote::TenantRemote;
use errors::StorageError;
use metrics::{self, METRICS};

pub use compact::owed::Debt;
pub use condition::{Activity, Condition, Waiting, ratio};
pub use debt::{CompactionCounts, JobCounts};
pub use detaching::DetachProgress;
pub(crate) use dir_lock::DirLock;
pub use gc::{GcReport, Point};
pub use info::{LayerInfo, LayerKind, TimelineInfo};
pub use ingest::{OpenLayerStats, RollPolicy, RollReason, should_roll};
pub use lifecycle::Imported;
pub use lifecycle::NewTimeline;
pub use manifest::{Ancestor, Hold, Limits, MANIFEST_NAME, Manifest, Origin, Told};
pub(crate) use open::Opening;
pub use read::ReadTrace;
pub use recovery::has_manifest;
pub use state::RecordLsn;
use state::TimelineState;
pub use window::Window;
pub use work::{LastLook, Pinned};

/// A timeline in use. Cheap to clone; [`Timeline::shutdown`] ends it for all clones.
#[derive(Clone, Debug)]
pub struct Timeline {
    state: Arc<TimelineState>,
}

/// Keeps an LSN readable as long as it lives.
#[derive(Debug)]
pub struct Pin {
    state: Arc<TimelineState>,
    lsn: Lsn,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.state.keeping.lock().unpin(self.lsn);
    }
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

    /// The newest version of `key` at or below `lsn` as WAL or the import has written it, and its LSN; `None` if there
    /// is none. Tells what has changed a page; not for use with the context of page requests, whose pages are cached.
    pub async fn newest_version(
        &self,
        key: Key,
        lsn: Lsn,
        ctx: &RequestContext,
    ) -> Result<Option<(Lsn, Value)>, StorageError> {
        read::newest_version(&self.state, key, lsn, ctx).await
    }

    /// Reads a key as of an LSN, and tells which layers that takes.
    ///
    /// # Errors
    /// Those of the search; that of rebuilding the value is in the trace.
    pub async fn explain(&self, key: Key, lsn: Lsn, ctx: &RequestContext) -> Result<ReadTrace, StorageError> {
        read::explain(&self.state, key, lsn, ctx).await
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

    /// From here on every LSN is readable; below it only those that something keeps.
    pub fn min_readable_lsn(&self) -> Lsn {
        self.state.readable_from()
    }

    /// Whether pages may be read as of `lsn`.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] saying why not.
    pub fn check_readable(&self, lsn: Lsn) -> Result<(), StorageError> {
        let first = self.state.origin.consistent_lsn;
        if lsn >= first {
            return self.state.check_retained(lsn).map_err(|cutoff| read::below_cutoff(&self.state, lsn, cutoff));
        }
        Err(StorageError::Invalid(format!(
            "LSN {lsn} is not readable: the copy of the cluster is consistent only from its end at LSN {first} on"
        )))
    }

    /// Keeps `lsn` readable for at least `length` from now, durably; never shortens a lease. Returns when the lease
    /// ends.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if it is not readable; those of storing it.
    pub async fn lease(&self, lsn: Lsn, length: Duration) -> Result<SystemTime, StorageError> {
        let (until, unstored) = {
            let mut keeping = self.state.keeping.lock();
            self.check_readable(lsn)?;
            keeping.lease(lsn, env::clock::steady_now(), length)
        };
        if let Some(noted) = unstored {
            publish::kept(&self.state).await?;
            self.state.keeping.lock().note_stored(lsn, noted);
        }
        // Whoever is told looks at a wall clock.
        Ok(env::clock::system_now() + until.duration_since(env::clock::steady_now()).unwrap_or_default())
    }

    /// Keeps `lsn` readable under `name` until [`Timeline::release`], durably.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if it is not readable, or the name is that of another LSN; those of storing it.
    pub async fn hold(&self, name: &str, lsn: Lsn) -> Result<(), StorageError> {
        {
            let mut keeping = self.state.keeping.lock();
            self.check_readable(lsn)?;
            if !keeping.hold(name, lsn) {
                return Err(StorageError::Invalid(format!("there is a hold {name:?} of another LSN")));
            }
        }
        publish::kept(&self.state).await
    }

    /// Ends the hold `name`. False if there is none.
    ///
    /// # Errors
    /// Those of storing that: then the hold is still there, and can be released again.
    pub async fn release(&self, name: &str) -> Result<bool, StorageError> {
        let Some(lsn) = self.state.keeping.lock().release(name) else { return Ok(false) };
        let stored = publish::kept(&self.state).await;
        if stored.is_err() {
            // The manifest may name it or not. Whoever holds another moment by this name meanwhile wins.
            let mut keeping = self.state.keeping.lock();
            if self.check_readable(lsn).is_ok() {
                keeping.hold(name, lsn);
            }
        }
        stored.map(|()| true)
    }

    /// Holds, and leases that have not ended.
    pub fn holds(&self) -> Vec<Hold> {
        self.state.keeping.lock().holds(env::clock::steady_now(), env::clock::system_now())
    }

    /// How much history is kept.
    pub fn window(&self) -> Window {
        window::of(&self.state)
    }

    /// The server's policy, but for what the timeline's own limits say.
    pub fn retention_policy(&self) -> RetentionPolicy {
        window::policy(&self.state)
    }

    /// Replaces the timeline's own limits of how much history is kept, durably. What is gone does not come back.
    pub async fn set_limits(&self, limits: Limits) -> Result<(), StorageError> {
        window::set_limits(&self.state, limits).await
    }

    /// Whether the timeline is archived: it takes in nothing, and only its end is kept.
    pub fn is_archived(&self) -> bool {
        self.state.is_archived()
    }

    /// Archives the timeline, durably: it takes in nothing from now on, and history before its end goes when history
    /// is removed next, which must not happen meanwhile.
    ///
    /// # Errors
    /// If its end cannot be made durable; then it is not archived.
    pub async fn archive(&self) -> Result<(), StorageError> {
        window::archive(&self.state).await
    }

    /// Undoes [`Timeline::archive`], durably, but for the history that is gone.
    pub async fn unarchive(&self) -> Result<(), StorageError> {
        window::unarchive(&self.state).await
    }

    /// Keeps `lsn` readable as long as the result lives: for reads that take long.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if it is not readable.
    pub fn pin(&self, lsn: Lsn) -> Result<Pin, StorageError> {
        let mut keeping = self.state.keeping.lock();
        self.check_readable(lsn)?;
        keeping.pin(lsn);
        Ok(Pin { state: Arc::clone(&self.state), lsn })
    }

    /// Finds out what [`Timeline::collect_garbage`] has to know of `timelines`, and takes as long as reads do.
    ///
    /// # Errors
    /// That of the first read that failed.
    pub async fn prepare_garbage(timelines: &[Timeline]) -> Result<(), StorageError> {
        let states: Vec<_> = timelines.iter().map(|timeline| Arc::clone(&timeline.state)).collect();
        gc::prepare(&states, env::clock::steady_now()).await
    }

    /// Removes the history of one tenant that nothing keeps: `timelines` must be all of its timelines. With `dry_run`
    /// only says what would go.
    ///
    /// # Errors
    /// That of the first timeline whose history could not be removed.
    pub async fn collect_garbage(timelines: &[Timeline], dry_run: bool) -> Result<Vec<GcReport>, StorageError> {
        let states: Vec<_> = timelines.iter().map(|timeline| Arc::clone(&timeline.state)).collect();
        gc::collect(&states, env::clock::steady_now(), dry_run).await
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
        self.state.uploader.as_ref().is_some_and(|uploader| uploader.is_uploaded(layer.file_name()))
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

    /// Fails if this server may be not the owner any more, and the timeline as of `lsn` may have another history at the
    /// new one: what the bucket had before, every later owner has.
    ///
    /// # Errors
    /// [`StorageError::Unleased`], or [`StorageError::Fenced`] where there is a lease.
    pub fn check_owned(&self, lsn: Lsn) -> Result<(), StorageError> {
        match self.remote().map_or(Ok(()), |remote| remote.check_lease()) {
            Err(_) if self.remote_consistent_lsn() >= Some(lsn) => Ok(()),
            checked => checked,
        }
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

    /// The last of its reads that were slow, the newest first, as far as the log tells of them.
    pub fn slow_reads(&self) -> Vec<SlowRead> {
        self.state.conf.resources.slow_reads.of(self.state.tenant_shard_id, self.state.timeline_id)
    }

    /// Whether this timeline branches directly off `other`; or did, and the bucket may not know yet that it does not.
    pub fn is_child_of(&self, other: TimelineId) -> bool {
        self.state.needs().is_some_and(|ancestor| ancestor.timeline_id == other)
    }

    /// Whether a branch may be detached from its ancestor, as far as that does not change by itself. `timelines` must
    /// be all of the tenant.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] saying why not.
    pub fn check_detach(&self, timelines: &[Timeline]) -> Result<(), StorageError> {
        let states: Vec<_> = timelines.iter().map(|timeline| Arc::clone(&timeline.state)).collect();
        detach::check(&self.state, &states, env::clock::system_now())
    }

    /// The first step of detaching a branch from its ancestor: makes what it inherits its own, and takes as long as
    /// copying that does. Reads and ingest go on. May be interrupted and repeated: what is done stays.
    ///
    /// # Errors
    /// That of the first page that cannot be read; those of disk and bucket.
    pub async fn prepare_detach(&self) -> Result<(), StorageError> {
        detach::prepare(&self.state).await
    }

    /// The second step: decides durably that the ancestor is not needed any more. History begins at the branch point
    /// from then on. False if the first step has to be repeated. `timelines` must be all of the tenant, and none may be
    /// made or closed meanwhile.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if somebody needs what is before the branch point; those of storing the decision.
    pub async fn decide_detach(&self, timelines: &[Timeline]) -> Result<bool, StorageError> {
        let states: Vec<_> = timelines.iter().map(|timeline| Arc::clone(&timeline.state)).collect();
        detach::decide(&self.state, &states, env::clock::system_now()).await
    }

    /// The last step: waits until every later owner will know of the decision, then ends reads of the ancestor.
    ///
    /// # Errors
    /// One that says that it takes longer.
    pub async fn complete_detach(&self) -> Result<(), StorageError> {
        detach::complete(&self.state).await
    }

    /// Sorts, merges and images layers until nothing of that is due any more. Returns what was done.
    ///
    /// # Errors
    /// That of the first job that failed; reads and ingest are not affected.
    pub async fn compact(&self) -> Result<CompactionCounts, StorageError> {
        let done = compact::compact(&self.state).await;
        compact::sweep(&self.state).await;
        done
    }

    /// Largest number of sorted delta layers above an image of the same keys.
    pub fn height(&self) -> usize {
        let stacks = layer_debt::stacks(self.state.layers().map.iter());
        stacks.iter().map(layer_debt::Stack::height).max().unwrap_or(0)
    }

    /// How well it is compacted, what is owed, and why nothing is done about that. Cheap as long as the layers are the
    /// same.
    pub fn condition(&self) -> Condition {
        condition::of(&self.state)
    }

    /// Layers that were replaced, and whose files are removed once nobody reads them any more.
    pub fn graveyard(&self) -> &Graveyard {
        &self.state.graveyard
    }

    /// Freezes the open layer if it is due by size, distance or age, and starts writing frozen layers and compacting.
    /// A background task calls this periodically, so that an idle timeline becomes durable too.
    pub async fn tend(&self) -> Result<(), StorageError> {
        compact::sweep(&self.state).await;
        detach::settle(&self.state);
        compact::start_if_due(&self.state);
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
