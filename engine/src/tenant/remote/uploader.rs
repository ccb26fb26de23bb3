//! Uploads a timeline to the bucket: one task, which always works towards the newest state submitted to it.
//!
//! A publication consists of the layers that the bucket lacks, then the index part that names them, then a check of
//! the generation. Only then is the timeline's position safe, and only then are objects removed that no index part
//! names any more. A failed publication is retried with the newest state at that time; layers already uploaded stay.
//! States that were superseded before they were published are skipped, so the work is linear in the number of layers.

mod garbage;
mod spare;

use std::collections::{BTreeMap, HashSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::{IndexPart, LayerList, TenantRemote, plan};
use crate::tenant::layer_map::{Graveyard, Layer};
use crate::tenant::storage_layer::LayerFileName;
use crate::tenant::timeline::manifest::{Kept, Manifest};
use errors::{ErrorKind, RemoteFailure, StorageError};
use metrics::{self, IngestStage, METRICS, StorageOperation};
use remote_storage::{RemotePath, RequestClass};

/// Maximum number of concurrent layer uploads; the bucket's own request budget may allow fewer.
const PARALLEL: usize = 8;
/// Pauses between attempts.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// How long [`Uploader::publish_again`] waits.
const AGAIN: Duration = Duration::from_secs(60);
/// How long a stopping task still waits for the write of an index part that is in flight. If it abandoned the write,
/// the next writer of the object (above all a mark of deletion) would have to wait much longer.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// A locally durable state of the timeline.
#[derive(Debug)]
pub struct Wanted {
    /// Its manifest.
    pub(crate) manifest: Manifest,
    /// Its layers.
    pub(crate) layers: Vec<Arc<Layer>>,
    /// Its sequence number, from 1.
    number: u64,
}

impl Wanted {
    /// A state that the bucket should have.
    pub(crate) fn new(manifest: Manifest, layers: Vec<Arc<Layer>>) -> Self {
        Self { manifest, layers, number: 0 }
    }
}

/// The progress of uploading.
#[derive(Clone, Debug, Default)]
pub(crate) struct UploadStatus {
    /// Number of layers still to be uploaded.
    pub(crate) waiting: usize,
    /// Their bytes.
    pub(crate) waiting_bytes: u64,
    /// Why the last attempt failed, until one succeeds.
    pub(crate) last_error: Option<String>,
}

/// The handle of the upload task, which runs until [`Uploader::stop`].
#[derive(Debug)]
pub struct Uploader {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    remote: Arc<TenantRemote>,
    timeline: TimelineId,
    wanted: watch::Sender<Option<Arc<Wanted>>>,
    /// Number of the last submitted state.
    submitted: AtomicU64,
    /// Number of the last state that the bucket has.
    accepted: watch::Sender<u64>,
    /// The LSN that every later owner will see.
    consistent: watch::Sender<Option<Lsn>>,
    in_bucket: watch::Sender<bool>,
    /// Whether the bucket has the ancestor.
    after: Option<watch::Receiver<bool>>,
    status: Mutex<UploadStatus>,
    uploaded: Mutex<HashSet<LayerFileName>>,
    /// Layers whose upload was begun, then, and is not known to have succeeded.
    attempts: Mutex<BTreeMap<String, Instant>>,
    /// Layers that were replaced: their objects stay as long as they may be read.
    graveyard: Arc<Graveyard>,
    /// The write of an index part or origin is in flight.
    is_replacing: AtomicBool,
    /// The published objects are damaged or gone, and must be published again.
    is_lost: AtomicBool,
    /// Counts index parts written that all later owners will see.
    published: watch::Sender<u64>,
    /// Such an index part says that the timeline was detached from its ancestor, and so does the list of layers.
    detached: watch::Sender<bool>,
    cancel: CancellationToken,
    /// Cancelled when nothing more will be uploaded.
    ended: CancellationToken,
    /// The message of the task's panic.
    panicked: OnceLock<String>,
}

/// The task's knowledge of the bucket.
#[derive(Default)]
struct Published {
    /// The newest index part that is known to be there for good.
    manifest: Option<Manifest>,
    /// The newest index part written for which it is not yet known whether this server was fenced before.
    unconfirmed: Option<Manifest>,
    /// Objects that nobody needs.
    garbage: Vec<RemotePath>,
    /// Some could not be removed, or not be looked for.
    is_left: bool,
    /// The bucket has the timeline's origin.
    has_origin: bool,
    /// The list of layers that this process has written last, and what it says is kept, but for arrival times.
    list: Option<(LayerList, Kept)>,
    /// Lists of layers that were there before.
    older_lists: Vec<RemotePath>,
    /// It was looked for objects that earlier owners left behind.
    has_looked: bool,
    /// The published objects are damaged or gone.
    is_lost: bool,
}

impl Uploader {
    /// Starts the task, given the timeline's index part in the bucket. It writes none before `after`, which says
    /// whether the bucket has the ancestor.
    pub(crate) fn start(
        remote: Arc<TenantRemote>,
        timeline: TimelineId,
        found: Option<IndexPart>,
        after: Option<watch::Receiver<bool>>,
        graveyard: Arc<Graveyard>,
    ) -> Self {
        let mut published = Published::default();
        let mut uploaded = HashSet::new();
        let in_bucket = watch::Sender::new(found.is_some());
        if let Some(IndexPart { manifest, older, spare, .. }) = found {
            uploaded = plan::names(&manifest).collect();
            // An index part of our own generation was rewritten by a scrub.
            let is_own = manifest.generation == remote.generation;
            let older = older.into_iter().chain((!is_own).then_some(manifest.generation));
            published.garbage = older.map(|generation| remote.index_part_path(timeline, generation)).collect();
            published.has_origin = spare.has_origin;
            published.older_lists = spare.lists.iter().map(|list| list.path(&remote.tenant, &timeline)).collect();
            (published.manifest, published.unconfirmed) =
                if is_own { (None, Some(manifest)) } else { (Some(manifest), None) };
        }
        let shared = Arc::new(Shared {
            timeline,
            wanted: watch::Sender::new(None),
            submitted: AtomicU64::new(0),
            accepted: watch::Sender::new(0),
            // Not even the index part that was found is safe yet: an owner in between, fenced by now, may still write
            // an older state under a later generation. Only an index part of our own generation supersedes all of
            // these.
            consistent: watch::Sender::new(None),
            in_bucket,
            after,
            status: Mutex::default(),
            uploaded: Mutex::new(uploaded),
            attempts: Mutex::default(),
            graveyard,
            is_replacing: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            published: watch::Sender::new(0),
            detached: watch::Sender::new(false),
            cancel: CancellationToken::new(),
            ended: CancellationToken::new(),
            panicked: OnceLock::new(),
            remote,
        });
        let broken = Arc::clone(&shared);
        let task = env::spawn::watched("upload", run(Arc::clone(&shared), published), move |reason| {
            broken.note_error(Some(&StorageError::Internal(reason.clone())));
            let _ = broken.panicked.set(reason);
        });
        Self { shared, task: Mutex::new(Some(task)) }
    }

    /// The tenant.
    pub(crate) fn remote(&self) -> &Arc<TenantRemote> {
        &self.shared.remote
    }

    /// Submits a new, locally durable state of the timeline. Replaces one that is still waiting.
    pub fn submit(&self, mut wanted: Wanted) {
        let manifest = &wanted.manifest;
        assert_eq!(manifest.timeline_id, self.shared.timeline, "what is submitted is of another timeline");
        assert_eq!(manifest.layers.len(), wanted.layers.len(), "the manifest names other layers than come with it");
        if cfg!(debug_assertions) {
            let named = plan::layer_names(manifest);
            let are_named = wanted.layers.iter().all(|layer| named.contains(layer.file_name()));
            assert!(are_named, "the manifest does not name a layer that comes with it");
        }
        wanted.number = self.shared.submitted.fetch_add(1, Ordering::AcqRel) + 1;
        // An import uploads layers before it submits a state.
        let wanted = Arc::new(wanted);
        let there = wanted.layers.iter().filter(|layer| layer.is_remote()).map(|layer| layer.file_name().clone());
        {
            // Together: whoever holds the lock finds nothing that no state names.
            let mut uploaded = self.shared.uploaded.lock();
            uploaded.extend(there);
            self.shared.wanted.send_replace(Some(Arc::clone(&wanted)));
        }
        self.shared.note_waiting(&wanted);
    }

    /// Publishes again because the published objects are damaged or gone. Returns false if that takes too long.
    pub(crate) async fn publish_again(&self) -> bool {
        let mut published = self.shared.published.subscribe();
        self.shared.is_lost.store(true, Ordering::Release);
        // Makes the current state count as new.
        self.shared.wanted.send_modify(|_| {});
        let again = tokio::select! {
            again = env::clock::timeout(AGAIN, published.changed()) => again,
            () = self.shared.ended.cancelled() => return false,
        };
        matches!(again, Ok(Ok(())))
    }

    /// Makes the task look again at objects that it could not remove yet.
    pub(crate) fn look_again(&self) {
        self.shared.wanted.send_modify(|_| {});
    }

    /// Returns once everything submitted so far is in the bucket. Waiting for an LSN would not suffice, because a
    /// timeline's `wal_source` changes without the LSN.
    pub(crate) async fn all_accepted(&self) {
        let target = self.shared.submitted.load(Ordering::Acquire);
        let _ = self.shared.accepted.subscribe().wait_for(|number| *number >= target).await;
    }

    /// Whether every later owner, and whoever rebuilds a lost index part, will know that the timeline was detached from
    /// its ancestor.
    pub(crate) fn knows_detached(&self) -> bool {
        *self.shared.detached.borrow()
    }

    /// Returns once that is so; false if nothing more is uploaded.
    pub(crate) async fn until_detached(&self) -> bool {
        let mut detached = self.shared.detached.subscribe();
        tokio::select! {
            biased;
            known = detached.wait_for(|known| *known) => known.is_ok(),
            () = self.shared.ended.cancelled() => false,
        }
    }

    /// Number of the last submitted state.
    pub(crate) fn submitted(&self) -> u64 {
        self.shared.submitted.load(Ordering::Acquire)
    }

    /// Number of the last submitted state that the bucket has.
    pub(crate) fn confirmed(&self) -> u64 {
        *self.shared.accepted.borrow()
    }

    /// The LSN up to which everything is safe in the bucket.
    pub(crate) fn consistent(&self) -> Option<Lsn> {
        *self.shared.consistent.borrow()
    }

    /// Watches [`Uploader::consistent`].
    pub(crate) fn watch_consistent(&self) -> watch::Receiver<Option<Lsn>> {
        self.shared.consistent.subscribe()
    }

    /// Whether the bucket has an index part of the timeline.
    pub(crate) fn in_bucket(&self) -> bool {
        *self.shared.in_bucket.borrow()
    }

    /// Watches [`Uploader::in_bucket`].
    pub(crate) fn watch_in_bucket(&self) -> watch::Receiver<bool> {
        self.shared.in_bucket.subscribe()
    }

    /// Whether the bucket has the whole layer.
    pub(crate) fn is_uploaded(&self, name: &LayerFileName) -> bool {
        self.shared.uploaded.lock().contains(name)
    }

    /// The progress of uploading.
    pub(crate) fn status(&self) -> UploadStatus {
        self.shared.status.lock().clone()
    }

    /// The message of the task's panic, if it has panicked: nothing more is uploaded then.
    pub(crate) fn panicked(&self) -> Option<&str> {
        self.shared.panicked.get().map(String::as_str)
    }

    /// Returns when the task has ended.
    pub(crate) async fn stopped(&self) {
        self.shared.ended.cancelled().await;
    }

    /// Stops the task and waits for it. What is not uploaded yet is uploaded after the next start.
    pub(crate) async fn stop(&self) {
        self.shared.cancel.cancel();
        let task = self.task.lock().take();
        if let Some(Err(error)) = match task {
            Some(task) => Some(task.await),
            None => None,
        } {
            tracing::error!(timeline = %self.shared.timeline, "upload: {error}");
        }
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        self.shared.cancel.cancel();
    }
}

/// Publishes until it is stopped or may no longer write.
async fn run(shared: Arc<Shared>, mut published: Published) {
    let _ended = shared.ended.clone().drop_guard();
    let mut wanted = shared.wanted.subscribe();
    // A state may have been submitted already.
    wanted.mark_changed();
    let mut pause = PAUSE_MIN;
    loop {
        let next = tokio::select! {
            next = next(&mut wanted) => next,
            () = until(published.due(&shared)) => {
                wanted.mark_changed();
                continue;
            }
            () = shared.cancel.cancelled() => return,
        };
        let mut publication = pin!(publish(&shared, &mut published, &next));
        let result = tokio::select! {
            result = &mut publication => result,
            () = shared.cancel.cancelled() => {
                if shared.is_replacing.load(Ordering::Acquire) {
                    let _ = env::clock::timeout(LAST_WRITE, publication).await;
                }
                return;
            }
        };
        match result {
            Ok(()) => {
                pause = PAUSE_MIN;
                shared.note_error(None);
            }
            Err(error) => {
                shared.note_error(Some(&error));
                match error.kind() {
                    ErrorKind::Fenced | ErrorKind::Shutdown => return,
                    ErrorKind::Internal | ErrorKind::Invalid => {
                        tracing::error!(timeline = %shared.timeline, "nothing more is uploaded: {error}");
                        return;
                    }
                    ErrorKind::Retry | ErrorKind::Corrupt | ErrorKind::Gone => {}
                }
                // Makes the state count as new again.
                wanted.mark_changed();
                tokio::select! {
                    () = env::clock::sleep(pause) => {}
                    () = shared.cancel.cancelled() => return,
                }
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

/// Sleeps until then.
async fn until(then: Option<Instant>) {
    match then {
        Some(then) => env::clock::sleep(then.saturating_duration_since(env::clock::now())).await,
        None => std::future::pending().await,
    }
}

/// Waits for a state that has not been seen yet.
async fn next(wanted: &mut watch::Receiver<Option<Arc<Wanted>>>) -> Arc<Wanted> {
    loop {
        if wanted.changed().await.is_err() {
            return std::future::pending().await;
        }
        if let Some(next) = wanted.borrow_and_update().clone() {
            return next;
        }
    }
}

async fn publish(shared: &Arc<Shared>, published: &mut Published, wanted: &Wanted) -> Result<(), StorageError> {
    let _timer = metrics::timer(METRICS.storage_operations_seconds_global.of(StorageOperation::Publication));
    let mut watch = metrics::ingest_stopwatch().at(IngestStage::Upload);
    let remote = &shared.remote;
    remote.check_known()?;
    if shared.is_lost.swap(false, Ordering::AcqRel) {
        published.unconfirmed = None;
        published.list = None;
        published.is_lost = true;
    }
    let manifest = &wanted.manifest;
    // An index part of an earlier generation is rewritten under ours, so that nothing its owner may still do to it
    // matters.
    if let Some(before) = &published.manifest
        && before.generation == remote.generation
        && !published.is_lost
        && plan::same_contents(before, manifest)
    {
        watch.enter(IngestStage::Tidy);
        shared.accepted.send_replace(wanted.number);
        published.write_spare(shared).await?;
        published.note_detached(shared);
        published.find_garbage(shared).await;
        if published.has_garbage(shared) {
            remote.check().await?;
            published.collect_garbage(shared).await?;
        }
        return Ok(());
    }
    upload(shared, wanted).await?;
    shared.until_ancestor(manifest).await?;
    watch.enter(IngestStage::IndexPart);
    let next = Manifest { generation: remote.generation, in_bucket: true, ..manifest.clone() };
    plan::check(&next, published.manifest.as_ref(), &shared.uploaded.lock(), remote.generation)
        .map_err(|unfit| StorageError::Internal(format!("index part of timeline {}: {unfit}", shared.timeline)))?;
    if fault::planted(fault::Bug::DeleteBeforeConfirm) {
        published.remove_early(shared, &next).await;
    }
    if fault::planted(fault::Bug::PromiseUploadTooEarly) {
        shared.accept(wanted);
    }
    if published.unconfirmed.as_ref() != Some(&next) {
        let path = remote.index_part_path(shared.timeline, remote.generation);
        let bytes = next.encode()?.into();
        published.unconfirmed = None;
        shared.replace(&path, bytes).await?;
        published.unconfirmed = Some(next);
    }
    watch.enter(IngestStage::Confirm);
    if !fault::planted(fault::Bug::ConfirmWithoutLook) {
        remote.check().await?;
    }
    if let Some(next) = published.unconfirmed.take() {
        published.confirmed(shared, next);
        shared.published.send_modify(|count| *count += 1);
    }
    shared.accept(wanted);
    watch.enter(IngestStage::Tidy);
    published.write_spare(shared).await?;
    published.note_detached(shared);
    published.find_garbage(shared).await;
    published.collect_garbage(shared).await
}

/// Uploads the layers that the bucket lacks.
async fn upload(shared: &Arc<Shared>, wanted: &Wanted) -> Result<(), StorageError> {
    shared.note_waiting(wanted);
    let missing: Vec<Arc<Layer>> = {
        let uploaded = shared.uploaded.lock();
        wanted.layers.iter().filter(|layer| !uploaded.contains(layer.file_name())).cloned().collect()
    };
    let uploads: Vec<_> = missing.into_iter().map(|layer| upload_layer(Arc::clone(shared), layer)).collect();
    futures_util::stream::iter(uploads).buffer_unordered(PARALLEL).try_collect().await
}

async fn upload_layer(shared: Arc<Shared>, layer: Arc<Layer>) -> Result<(), StorageError> {
    shared.remote.check_known()?;
    let path = shared.remote.layer_path(shared.timeline, file_name(&layer));
    shared.attempts.lock().insert(file_name(&layer).to_owned(), env::clock::now());
    let put = shared.remote.storage.put_file(RequestClass::Upload, &path, layer.path()).await;
    if put.is_ok() || !fault::planted(fault::Bug::SwallowUploadError) {
        put?;
    }
    shared.attempts.lock().remove(file_name(&layer));
    shared.uploaded.lock().insert(layer.file_name().clone());
    shared.note_uploaded(layer.desc().file_size);
    Ok(())
}

fn file_name(layer: &Layer) -> &str {
    layer.path().file_name().unwrap_or_default()
}

impl Published {
    /// Records that all later owners will see `next`.
    fn confirmed(&mut self, shared: &Shared, next: Manifest) {
        let remote = &shared.remote;
        assert_eq!(next.generation, remote.generation, "an index part of another generation is ours");
        if let Some(before) = self.manifest.take() {
            let (old, new) = (before.disk_consistent_lsn, next.disk_consistent_lsn);
            assert!(old <= new, "the index part goes back from {old} to {new}");
            let unnamed = plan::unnamed(&before, &next);
            self.garbage.extend(unnamed.iter().map(|name| remote.layer_path(shared.timeline, &name.to_string())));
        }
        // Uploaded for a state that was superseded before it was published.
        let left: Vec<LayerFileName> = {
            let mut uploaded = shared.uploaded.lock();
            let wanted = shared.wanted.borrow().as_ref().map(|wanted| plan::layer_names(&wanted.manifest));
            let (named, wanted) = (plan::layer_names(&next), wanted.unwrap_or_default());
            uploaded.extract_if(|name| !named.contains(name) && !wanted.contains(name)).collect()
        };
        self.garbage.extend(left.iter().map(|name| remote.layer_path(shared.timeline, &name.to_string())));
        self.garbage.sort();
        self.garbage.dedup();
        self.manifest = Some(next);
        self.is_lost = false;
    }
}

impl Shared {
    /// Waits until the bucket has the ancestor of the timeline, if it needs one.
    async fn until_ancestor(&self, manifest: &Manifest) -> Result<(), StorageError> {
        let Some(mut after) = self.after.clone().filter(|_| !manifest.detached) else { return Ok(()) };
        match env::clock::timeout(PAUSE_MAX, after.wait_for(|there| *there)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(StorageError::Remote {
                operation: "put",
                object: self.remote.index_part_path(self.timeline, self.remote.generation).to_string(),
                reason: "its ancestor is not in the bucket yet".to_owned(),
                failure: RemoteFailure::Unavailable,
            }),
        }
    }

    /// Writes an object; a stopping task waits for this write instead of abandoning it.
    async fn replace(&self, path: &RemotePath, bytes: bytes::Bytes) -> Result<(), StorageError> {
        self.is_replacing.store(true, Ordering::Release);
        let put = self.remote.storage.put(RequestClass::Control, path, bytes).await;
        self.is_replacing.store(false, Ordering::Release);
        put
    }

    /// Records that the bucket has `wanted` for good.
    fn accept(&self, wanted: &Wanted) {
        let accepted = *self.accepted.borrow();
        assert!(wanted.number >= accepted, "state {} is accepted after state {accepted}", wanted.number);
        {
            let uploaded = self.uploaded.lock();
            let missing = wanted.layers.iter().map(|layer| layer.file_name()).find(|name| !uploaded.contains(*name));
            assert_eq!(missing, None, "called safe, and a layer is not in the bucket");
        }
        for layer in wanted.layers.iter().filter(|layer| !layer.is_remote()) {
            layer.set_remote(self.remote.layer_object(self.timeline, file_name(layer)));
        }
        self.in_bucket.send_replace(true);
        self.consistent.send_if_modified(|known| {
            let lsn = Some(wanted.manifest.disk_consistent_lsn);
            let more = lsn > *known;
            *known = lsn.max(*known);
            more
        });
        self.accepted.send_replace(wanted.number);
    }

    fn note_waiting(&self, wanted: &Wanted) {
        let uploaded = self.uploaded.lock();
        let waiting = wanted.layers.iter().filter(|layer| !uploaded.contains(layer.file_name()));
        let (count, bytes) = waiting.fold((0, 0), |(count, bytes), layer| (count + 1, bytes + layer.desc().file_size));
        drop(uploaded);
        let mut status = self.status.lock();
        (status.waiting, status.waiting_bytes) = (count, bytes);
    }

    fn note_uploaded(&self, bytes: u64) {
        let mut status = self.status.lock();
        status.waiting = status.waiting.saturating_sub(1);
        status.waiting_bytes = status.waiting_bytes.saturating_sub(bytes);
    }

    fn note_error(&self, error: Option<&StorageError>) {
        let mut status = self.status.lock();
        let text = error.map(ToString::to_string);
        // Log only the first of a series of failures.
        if let Some(text) = &text
            && status.last_error.is_none()
            && error.is_some_and(|error| error.kind() != ErrorKind::Fenced)
        {
            tracing::warn!(timeline = %self.timeline, "not uploaded, will be tried again: {text}");
        }
        if text.is_none() && status.last_error.is_some() {
            tracing::info!(timeline = %self.timeline, "uploads work again");
        }
        status.last_error = text;
    }
}
