//! The state of a timeline: plain data with watches. The functions that operate on it live elsewhere.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use pageserver_api::shard::TenantShardId;
use parking_lot::RwLock;
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utils::sync::gate::{Gate, GateGuard};

use super::debt::Compaction;
use super::detaching::Detaching;
use super::dir_lock::DirLock;
use super::keeping::Keeping;
use super::manifest::{Ancestor, Origin, Told};
use super::redo_settings::RedoSettings;
use super::retention::{KnownLive, Retention};
use super::work::Work;
use crate::config::{CompactionPolicy, PageServerConf};
use crate::context::Pace;
use crate::observer::WriteObserver;
use crate::page_cache::CachedTimeline;
use crate::tenant::layer_map::{Graveyard, Layer, LayerMap};
use crate::tenant::remote::Uploader;
use crate::tenant::storage_layer::{InMemoryLayer, PersistentLayerDesc};
use errors::{ErrorKind, StorageError};

/// So many layers as they are flushed have room on the disk together, however small that is.
const LAYERS_ON_DISK: u64 = 8;

/// A position in the WAL between two records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordLsn {
    /// End of the last record.
    pub last: Lsn,
    /// Start of the last record, to which the next record must point back; 0/0 if not known.
    pub prev: Lsn,
}

/// All layers at one moment. A reader keeps the snapshot with which it began.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    /// Accepts new values.
    pub(crate) open: Option<Arc<InMemoryLayer>>,
    /// Waiting to be written to disk, oldest first.
    pub(crate) frozen: Vec<Frozen>,
    /// Layer files.
    pub(crate) map: LayerMap,
}

impl Layers {
    /// Checks what must hold of the successor of `before`; otherwise readers would miss versions or find them twice.
    fn assert_follows(&self, before: &Layers) {
        // No gap or overlap, from the files up to the open layer.
        let mut next = self.map.l0_layers().last().map(|layer| layer.desc().lsn_range.end);
        let in_files = self.map.delta_end();
        for Frozen { layer, end } in &self.frozen {
            let start = layer.start_lsn();
            assert!(next.is_none_or(|next| next == start), "a frozen layer begins at {start}, not at {next:?}");
            assert!(end.last >= start, "a frozen layer from {start} ends at {}", end.last);
            next = Some(end.last + 1);
        }
        if let Some(open) = &self.open {
            let start = open.start_lsn();
            assert!(next.is_none_or(|next| next == start), "the open layer begins at {start}, not at {next:?}");
        }
        let first = self.frozen.first().map(|frozen| &frozen.layer).or(self.open.as_ref());
        let above = first.is_none_or(|first| in_files.is_none_or(|end| end <= first.start_lsn()));
        assert!(above, "an in-memory layer begins below {in_files:?}, where the files end");
        // Nothing leaves memory before it is in a file.
        let durable = in_files.unwrap_or(Lsn(0));
        for frozen in &before.frozen {
            let kept = self.frozen.iter().any(|now| Arc::ptr_eq(&now.layer, &frozen.layer));
            assert!(
                kept || frozen.end.last < durable,
                "a layer frozen at {} is gone before it is durable",
                frozen.end.last
            );
        }
        if let Some(open) = &before.open {
            let is_open = self.open.as_ref().is_some_and(|now| Arc::ptr_eq(now, open));
            let is_frozen = self.frozen.last().is_some_and(|last| Arc::ptr_eq(&last.layer, open));
            assert!(is_open != is_frozen, "the layer that was open is neither open nor the newest frozen one, or both");
        }
    }
}

/// A frozen layer and the position at which it was frozen.
#[derive(Clone, Debug)]
pub(crate) struct Frozen {
    pub(crate) layer: Arc<InMemoryLayer>,
    pub(crate) end: RecordLsn,
}

/// State needed only by whoever puts values.
#[derive(Debug)]
pub(crate) struct IngestState {
    /// Start LSN of the next in-memory layer.
    pub(crate) next_start: Lsn,
    /// The largest LSN put so far: a layer must not be frozen below it.
    pub(crate) max_lsn: Lsn,
    /// The open layer holds more than what an idle server writes.
    pub(crate) has_news: bool,
    /// When the freeze of the open layer was last postponed because nobody waits for its contents.
    pub(crate) put_off: Option<Instant>,
}

/// How far the flush of the oldest frozen layer got before an error.
#[derive(Clone, Debug)]
pub(crate) enum FlushProgress {
    /// The file is complete under a temporary name.
    Written(PersistentLayerDesc, Utf8PathBuf),
    /// The file has its final name. The directory and the manifest may or may not be durable.
    Named(Arc<Layer>),
}

/// A timeline's state.
#[derive(Debug)]
pub(crate) struct TimelineState {
    pub(crate) conf: &'static PageServerConf,
    pub(crate) tenant_shard_id: TenantShardId,
    pub(crate) timeline_id: TimelineId,
    /// The timeline's directory.
    pub(crate) dir: Utf8PathBuf,
    pub(crate) origin: Origin,
    /// The timeline that this one continues, until it is detached.
    ancestor: RwLock<Option<Arc<Branching>>>,
    /// It was, or is about to be, detached from the ancestor that its origin names, as recorded in the manifest.
    detached: AtomicBool,
    /// How far that is.
    pub(crate) detaching: Detaching,
    /// Its identity in the page cache.
    pub(crate) cached: CachedTimeline,
    /// What keeps LSNs readable. Locked by whoever changes `retention`, and by whoever relies on it.
    pub(crate) keeping: parking_lot::Mutex<Keeping>,
    /// Takes in nothing. Changed under the `ingest` lock; [`Keeping`] has when it was archived.
    pub(crate) archived: AtomicBool,
    /// What redo depends on.
    pub(crate) redo: RwLock<RedoSettings>,
    /// Externally supplied metadata, as recorded in the manifest.
    pub(crate) told: RwLock<Option<Told>>,
    /// Sees all values that are ingested.
    pub(crate) observer: Option<Box<dyn WriteObserver>>,
    /// Which LSNs are readable, as recorded in the manifest.
    pub(crate) retention: RwLock<Retention>,
    /// Which keys are in use.
    pub(crate) live: parking_lot::Mutex<KnownLive>,
    /// Of the manifest.
    edition: AtomicU64,
    /// Layers that were replaced and may still be read.
    pub(crate) graveyard: Arc<Graveyard>,
    /// What compaction has done and owes.
    pub(crate) compaction: Compaction,
    /// Its layers in the bucket were opened ahead of reads, or are about to be.
    pub(crate) is_opened_ahead: AtomicBool,
    /// The last layer was sealed as a copy made out of memory, or there was none yet: most WAL changes rows here and
    /// there.
    pub(crate) copies_layers: AtomicBool,
    /// What else is told of the timeline's work.
    pub(crate) work: Work,
    /// Held while values are put and while the open layer is frozen.
    pub(crate) ingest: Mutex<IngestState>,
    /// Held while frozen layers are written.
    pub(crate) flusher: Mutex<Option<FlushProgress>>,
    /// Held while the manifest is replaced, and the layers with it. Whoever changes the layers derives the new map from
    /// the current one under this lock.
    pub(crate) publisher: Mutex<()>,
    /// The generation under which manifests are written; 0 if there never was a bucket.
    pub(crate) generation: u32,
    /// Uploads the timeline to the bucket, if there is one.
    pub(crate) uploader: Option<Uploader>,
    /// The manifest says that the bucket has the timeline.
    manifest_in_bucket: AtomicBool,
    /// The manifest says so under our own generation.
    manifest_is_own: AtomicBool,
    pub(crate) gate: Gate,
    pub(crate) cancel: CancellationToken,
    layers: RwLock<Arc<Layers>>,
    record_lsn: watch::Sender<RecordLsn>,
    disk_consistent: watch::Sender<RecordLsn>,
    /// When the durable position last advanced.
    durable_since: parking_lot::Mutex<Instant>,
    broken: OnceLock<String>,
    lock: parking_lot::Mutex<Option<DirLock>>,
}

/// Where a timeline branches off its ancestor.
#[derive(Debug)]
pub(crate) struct Branching {
    pub(crate) state: Arc<TimelineState>,
    /// The last LSN that both have in common.
    pub(crate) lsn: Lsn,
}

/// The initial state of a timeline.
pub(crate) struct Start {
    pub(crate) conf: &'static PageServerConf,
    pub(crate) tenant_shard_id: TenantShardId,
    pub(crate) timeline_id: TimelineId,
    pub(crate) origin: Origin,
    pub(crate) ancestor: Option<Branching>,
    pub(crate) map: LayerMap,
    pub(crate) disk_consistent: RecordLsn,
    pub(crate) edition: u64,
    pub(crate) retention: Retention,
    pub(crate) keeping: Keeping,
    pub(crate) graveyard: Arc<Graveyard>,
    pub(crate) lock: DirLock,
    /// The generation of the manifest.
    pub(crate) generation: u32,
    /// As recorded in the manifest.
    pub(crate) in_bucket: bool,
    /// As recorded in the manifest.
    pub(crate) detached: bool,
    pub(crate) told: Option<Told>,
    pub(crate) uploader: Option<Uploader>,
}

impl TimelineState {
    pub(crate) fn new(start: Start) -> Self {
        let Start { conf, tenant_shard_id, timeline_id, origin, ancestor, map, disk_consistent, .. } = start;
        let Start { edition, retention, keeping, graveyard, lock, generation, in_bucket, detached, .. } = start;
        let Start { told, uploader, .. } = start;
        let owned = uploader.as_ref().map_or(0, |uploader| uploader.remote().generation());
        let next_start = next_start(&map, &origin, disk_consistent.last, edition);
        Self {
            conf,
            tenant_shard_id,
            timeline_id,
            dir: conf.timeline_path(&tenant_shard_id, &timeline_id),
            origin,
            ancestor: RwLock::new(ancestor.map(Arc::new)),
            detached: AtomicBool::new(detached),
            detaching: Detaching::default(),
            cached: conf.resources.pages.timeline(),
            archived: AtomicBool::new(keeping.archived_at().is_some()),
            keeping: parking_lot::Mutex::new(keeping),
            redo: RwLock::new(origin.redo_context().into()),
            told: RwLock::new(told),
            retention: RwLock::new(retention),
            live: parking_lot::Mutex::new(KnownLive { edition, ..KnownLive::default() }),
            edition: AtomicU64::new(edition),
            graveyard,
            is_opened_ahead: AtomicBool::new(false),
            copies_layers: AtomicBool::new(true),
            compaction: Compaction::new(edition),
            work: Work::default(),
            observer: conf.observer.map(|new| new(disk_consistent.last)),
            ingest: Mutex::new(IngestState { next_start, max_lsn: Lsn::INVALID, has_news: false, put_off: None }),
            flusher: Mutex::new(None),
            publisher: Mutex::new(()),
            generation: generation.max(owned),
            uploader,
            manifest_in_bucket: AtomicBool::new(in_bucket),
            manifest_is_own: AtomicBool::new(in_bucket && generation == owned),
            gate: Gate::default(),
            cancel: CancellationToken::new(),
            layers: RwLock::new(Arc::new(Layers { open: None, frozen: Vec::new(), map })),
            record_lsn: watch::Sender::new(disk_consistent),
            disk_consistent: watch::Sender::new(disk_consistent),
            durable_since: parking_lot::Mutex::new(env::clock::now()),
            broken: OnceLock::new(),
            lock: parking_lot::Mutex::new(Some(lock)),
        }
    }

    /// The layers at this moment.
    pub(crate) fn layers(&self) -> Arc<Layers> {
        Arc::clone(&self.layers.read())
    }

    /// Replaces the snapshot of layers with a changed copy.
    pub(crate) fn update_layers(&self, change: impl FnOnce(&mut Layers)) {
        let mut current = self.layers.write();
        let mut next = Layers::clone(&current);
        change(&mut next);
        next.assert_follows(&current);
        *current = Arc::new(next);
    }

    /// Drops all in-memory layers and leaves the files alone: what was in memory comes again from the WAL.
    pub(crate) fn forget_memory(&self) {
        assert!(self.cancel.is_cancelled(), "an open timeline forgets what is in memory");
        let mut current = self.layers.write();
        *current = Arc::new(Layers { map: current.map.clone(), ..Layers::default() });
    }

    /// The edition of the manifest.
    pub(crate) fn edition(&self) -> u64 {
        self.edition.load(Ordering::Acquire)
    }

    /// Notes that a manifest of this edition was stored.
    pub(crate) fn set_edition(&self, edition: u64) {
        self.edition.store(edition, Ordering::Release);
    }

    /// The timeline that this one continues. A read takes it before its snapshot of layers: those that replace the
    /// ancestor's are there before it goes.
    pub(crate) fn ancestor(&self) -> Option<Arc<Branching>> {
        self.ancestor.read().clone()
    }

    /// Number of timelines whose history this one needs, itself included. It never grows.
    pub(crate) fn depth(&self) -> usize {
        1 + self.ancestor().map_or(0, |ancestor| ancestor.state.depth())
    }

    /// Whether the manifest says that the timeline needs its ancestor no more, or is about to.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }

    /// Notes that it does. The caller must hold the `publisher` lock.
    pub(crate) fn set_detached(&self, detached: bool) {
        self.detached.store(detached, Ordering::Release);
    }

    /// Whether this timeline, or one that it continues, was detached at `cutoff`, where its history begins.
    pub(crate) fn begins_detached_at(&self, cutoff: Lsn) -> bool {
        let is_own = self.is_detached() && self.origin.import_lsn == cutoff;
        is_own || self.ancestor().is_some_and(|ancestor| ancestor.state.begins_detached_at(cutoff))
    }

    /// Ends reads of the ancestor. Whatever a later owner could begin with must say that the timeline is detached.
    pub(crate) fn forget_ancestor(&self) {
        assert!(self.is_detached(), "a branch forgets its ancestor");
        *self.ancestor.write() = None;
    }

    /// The timeline and the LSN whose history must stay for this one: where it branches off; or where it did, as long
    /// as the bucket may say that it still does.
    pub(crate) fn needs(&self) -> Option<Ancestor> {
        if let Some(ancestor) = self.ancestor() {
            return Some(Ancestor { timeline_id: ancestor.state.timeline_id, lsn: ancestor.lsn });
        }
        let is_known = self.uploader.as_ref().is_none_or(Uploader::knows_detached);
        self.origin.ancestor.filter(|_| !is_known)
    }

    /// Whether `lsn` is readable; otherwise the cutoff of the timeline whose history it is.
    pub(crate) fn check_retained(&self, lsn: Lsn) -> Result<(), Lsn> {
        match self.ancestor() {
            Some(ancestor) if lsn < ancestor.lsn && self.is_detached() => Err(ancestor.lsn),
            Some(ancestor) if lsn <= ancestor.lsn => ancestor.state.check_retained(lsn),
            _ => self.retention.read().check(lsn),
        }
    }

    /// Whether the timeline's own layers may be read as of `lsn`; otherwise its cutoff. For a read that has taken
    /// `ancestor`, then its snapshot of layers: layers go only after the cutoff has moved.
    pub(crate) fn check_own(&self, lsn: Lsn, ancestor: Option<&Branching>) -> Result<(), Lsn> {
        match ancestor {
            // There is nothing of its own that low, but for images of what is inherited.
            Some(ancestor) if lsn <= ancestor.lsn => Ok(()),
            _ => self.retention.read().check(lsn),
        }
    }

    /// From here on every LSN is readable.
    pub(crate) fn readable_from(&self) -> Lsn {
        let ancestor = self.ancestor().filter(|_| !self.is_detached());
        let own = self.retention.read().cutoff;
        match ancestor {
            Some(ancestor) if own <= ancestor.lsn => ancestor.state.readable_from().min(ancestor.lsn),
            _ if self.is_detached() => own.max(self.origin.import_lsn),
            _ => own.max(self.origin.consistent_lsn),
        }
    }

    /// How much of the disk jobs of compaction may keep busy: nobody waits for them, unless ingest does.
    pub(crate) fn pace_of_jobs(&self) -> Pace {
        if self.compaction.slows_ingest() { Pace::Full } else { Pace::GivesWay }
    }

    /// When and how layers are compacted, on a disk of this size.
    pub(crate) fn compaction_policy(&self) -> CompactionPolicy {
        self.conf.compaction.within(self.conf.disk_budget.capacity())
    }

    /// At how many bytes the open layer is frozen: no more than leaves a small disk room to sort it later.
    pub(crate) fn checkpoint_distance(&self) -> u64 {
        self.conf.checkpoint_distance.min(self.conf.disk_budget.capacity() / LAYERS_ON_DISK)
    }

    /// The last LSN as of which pages can be read without L0 layers, if there are sorted layers. Once history has gone,
    /// what is left of it may end below the cutoff: then it is the cutoff, below which nothing is unsorted.
    pub(crate) fn sorted_lsn(&self) -> Option<Lsn> {
        let sorted_to = self.layers().map.sorted_to()?;
        Some((sorted_to - 1).max(self.retention.read().cutoff))
    }

    pub(crate) fn record_lsn(&self) -> RecordLsn {
        *self.record_lsn.borrow()
    }

    pub(crate) fn advance_record_lsn(&self, to: RecordLsn) {
        self.record_lsn.send_modify(|current| {
            assert!(to.last >= current.last, "the last record's LSN goes back from {} to {}", current.last, to.last);
            assert!(to.prev <= to.last, "the last record begins at {}, after its end {}", to.prev, to.last);
            *current = to;
        });
    }

    pub(crate) fn disk_consistent(&self) -> RecordLsn {
        *self.disk_consistent.borrow()
    }

    /// When the durable position last advanced.
    pub(crate) fn durable_since(&self) -> Instant {
        *self.durable_since.lock()
    }

    pub(crate) fn advance_disk_consistent(&self, to: RecordLsn) {
        *self.durable_since.lock() = env::clock::now();
        self.disk_consistent.send_modify(|current| {
            assert!(to.last >= current.last, "the consistent LSN goes back from {} to {}", current.last, to.last);
            let record = self.record_lsn().last;
            assert!(to.last <= record, "durable up to {}, but the history is final only to {record}", to.last);
            *current = to;
        });
    }

    pub(crate) fn watch_record_lsn(&self) -> watch::Receiver<RecordLsn> {
        self.record_lsn.subscribe()
    }

    pub(crate) fn watch_disk_consistent(&self) -> watch::Receiver<RecordLsn> {
        self.disk_consistent.subscribe()
    }

    /// Why the timeline accepts no more writes, if so.
    pub(crate) fn broken(&self) -> Option<&str> {
        let uploads = || self.uploader.as_ref().and_then(Uploader::panicked);
        self.broken.get().map(String::as_str).or_else(uploads)
    }

    /// What redo depends on, over all the history that this timeline can read.
    pub(crate) fn redo_settings(&self) -> RedoSettings {
        let ancestor = self.ancestor();
        let own = self.redo.read().clone();
        match ancestor {
            None => own,
            Some(ancestor) => own.continuing(ancestor.state.redo_settings(), ancestor.lsn),
        }
    }

    pub(crate) async fn wait_for_lsn_timeout(&self, lsn: Lsn, timeout: Duration) -> Result<(), StorageError> {
        match env::clock::timeout(timeout, self.wait_for_lsn(lsn)).await {
            Ok(arrived) => arrived,
            Err(_) => Err(StorageError::LsnTimeout {
                lsn,
                last_record_lsn: self.record_lsn().last,
                timeline_id: self.timeline_id,
                waited: timeout,
            }),
        }
    }

    pub(crate) async fn wait_for_lsn(&self, lsn: Lsn) -> Result<(), StorageError> {
        let mut watch = self.record_lsn.subscribe();
        tokio::select! {
            arrived = watch.wait_for(|record| record.last >= lsn) => {
                arrived.map(drop).map_err(|_| StorageError::Shutdown)
            }
            () = self.cancel.cancelled() => Err(StorageError::Shutdown),
        }
    }

    /// Releases the directory to other processes. All work must have ended.
    pub(crate) fn unlock(&self) {
        *self.lock.lock() = None;
    }

    /// The generation in the names of layer files written here.
    pub(crate) fn layer_generation(&self) -> u32 {
        self.generation.max(1)
    }

    /// Whether the bucket has, or had, an index part of the timeline.
    pub(crate) fn is_in_bucket(&self) -> bool {
        self.manifest_in_bucket() || self.uploader.as_ref().is_some_and(Uploader::in_bucket)
    }

    /// Whether the manifest says that the bucket has the timeline.
    pub(crate) fn manifest_in_bucket(&self) -> bool {
        self.manifest_in_bucket.load(Ordering::Acquire)
    }

    /// Whether the manifest says so under our own generation: nobody else has written the timeline since.
    pub(crate) fn manifest_is_own(&self) -> bool {
        self.manifest_is_own.load(Ordering::Acquire)
    }

    /// Notes that a manifest that says so was stored under our own generation.
    pub(crate) fn set_manifest_in_bucket(&self) {
        self.manifest_in_bucket.store(true, Ordering::Release);
        self.manifest_is_own.store(true, Ordering::Release);
    }

    /// Begins work for which shutdown waits.
    pub(crate) fn enter(&self) -> Result<GateGuard, StorageError> {
        self.gate.enter().map_err(|_| StorageError::Shutdown)
    }

    /// Fails if nothing more may be written: another server has the tenant, or an earlier error has left the state on
    /// disk unknown.
    pub(crate) fn check_writable(&self) -> Result<(), StorageError> {
        if let Some(uploader) = &self.uploader {
            uploader.remote().check_known()?;
        }
        match self.broken() {
            Some(reason) => Err(StorageError::Internal(format!("timeline takes no more writes after: {reason}"))),
            None => Ok(()),
        }
    }

    /// Whether the timeline is archived, or about to be.
    pub(crate) fn is_archived(&self) -> bool {
        self.archived.load(Ordering::Acquire)
    }

    /// When the timeline was archived, in seconds since 1970.
    pub(crate) fn archived_at(&self) -> Option<u64> {
        // Removal of history holds the lock for a while: not worth waiting for a timeline that is not archived.
        if self.is_archived() { self.keeping.lock().archived_at() } else { None }
    }

    /// Fails if the timeline is archived: it takes in nothing.
    pub(crate) fn check_not_archived(&self) -> Result<(), StorageError> {
        let id = self.timeline_id;
        let reason = || {
            format!("timeline {id} is archived and takes in nothing: `pagectl timeline unarchive {id}` changes that")
        };
        if self.is_archived() { Err(StorageError::Invalid(reason())) } else { Ok(()) }
    }

    /// Notes that a task working on the timeline has panicked: nothing may build on what it left half done.
    pub(crate) fn note_panic(&self, reason: String) {
        self.note_error(&StorageError::Internal(reason));
    }

    /// Notes an error after which nothing more may be written; ignores other errors.
    pub(crate) fn note_error(&self, error: &StorageError) {
        if error.kind() == ErrorKind::Internal && self.broken.set(error.to_string()).is_ok() {
            tracing::error!(timeline = %self.timeline_id, "timeline takes no more writes: {error}");
        }
    }
}

/// Where the next in-memory layer begins. L0 layers are contiguous: the next begins where the last ends, even if
/// nothing was stored in between. Once layers have been removed, what is left may end below an image.
fn next_start(map: &LayerMap, origin: &Origin, consistent: Lsn, edition: u64) -> Lsn {
    let after_deltas = map.delta_end().unwrap_or(origin.import_lsn + 1);
    match map.l0_layers().is_empty() && edition > 0 {
        true => after_deltas.max(consistent + 1),
        false => after_deltas,
    }
}

/// The engine's own error underlying an error of a layer.
pub(crate) fn layer_error(error: anyhow::Error) -> StorageError {
    error.downcast().unwrap_or_else(|error| match error.is::<utils::sync::gate::GateClosed>() {
        true => StorageError::Shutdown,
        false => StorageError::Internal(format!("{error:#}")),
    })
}
