//! Brings a timeline to the bucket: one task, which always goes for the newest state that it was given.
//!
//! A publication is: the layers that the bucket lacks, then the index part that names them, then the look at the
//! generation. Only then is the timeline's position safe, and only then is removed what no index part names any more.
//! What fails is tried again, with the newest state there is then; what is uploaded already stays uploaded. States that
//! were never published are passed over, so the work is linear in the number of layers.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::{IndexPart, TenantRemote, plan};
use crate::tenant::layer_map::Layer;
use crate::tenant::timeline::manifest::Manifest;
use errors::{ErrorKind, StorageError};
use remote_storage::{RemotePath, RequestClass};

/// Layers that are uploaded at once; the bucket's own budget may allow fewer.
const PARALLEL: usize = 8;
/// Pauses between attempts.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// How long somebody waits for what is published once more.
const AGAIN: Duration = Duration::from_secs(60);
/// How long a task that is to end still waits for an index part on its way. If it gave that write up, whoever writes
/// the next one, a deletion's mark above all, had to wait much longer for it.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// A state of the timeline that is durable here.
#[derive(Debug)]
pub struct Wanted {
    /// Its manifest.
    pub(crate) manifest: Manifest,
    /// Its layers.
    pub(crate) layers: Vec<Arc<Layer>>,
    /// How many there were before, and this one.
    number: u64,
}

impl Wanted {
    /// What is to be in the bucket.
    pub(crate) fn new(manifest: Manifest, layers: Vec<Arc<Layer>>) -> Self {
        Self { manifest, layers, number: 0 }
    }
}

/// How uploading goes.
#[derive(Clone, Debug, Default)]
pub(crate) struct UploadStatus {
    /// Layers that are to be uploaded.
    pub(crate) waiting: usize,
    /// Their bytes.
    pub(crate) waiting_bytes: u64,
    /// Why the last attempt failed, until one succeeds.
    pub(crate) last_error: Option<String>,
}

/// The handle of the task. It ends with [`Uploader::stop`].
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
    /// Number of the last of these.
    submitted: AtomicU64,
    /// Number of the last one that the bucket has.
    accepted: watch::Sender<u64>,
    /// What every later owner will see.
    consistent: watch::Sender<Option<Lsn>>,
    in_bucket: AtomicBool,
    status: Mutex<UploadStatus>,
    uploaded: Mutex<HashSet<String>>,
    /// An index part, or an origin, is on its way.
    is_replacing: AtomicBool,
    /// What was published is damaged or gone: it is to be published again.
    is_lost: AtomicBool,
    /// Counts index parts that were written and are seen by all later owners.
    published: watch::Sender<u64>,
    cancel: CancellationToken,
    /// Nothing more is uploaded.
    ended: CancellationToken,
    /// The task's panic.
    panicked: OnceLock<String>,
}

/// What the task knows of the bucket.
#[derive(Default)]
struct Published {
    /// The newest index part that is known to be there for good.
    manifest: Option<Manifest>,
    /// The newest one that was written, of which it is not known whether we were fenced by then.
    unconfirmed: Option<Manifest>,
    /// What nobody needs.
    garbage: Vec<RemotePath>,
    /// The timeline's origin is written down.
    has_origin: bool,
    /// What is there is damaged or gone.
    is_lost: bool,
}

impl Uploader {
    /// Starts with what the bucket has of the timeline.
    pub(crate) fn start(remote: Arc<TenantRemote>, timeline: TimelineId, found: Option<IndexPart>) -> Self {
        let mut published = Published::default();
        let mut uploaded = HashSet::new();
        let in_bucket = AtomicBool::new(found.is_some());
        if let Some(IndexPart { manifest, older, has_origin, .. }) = found {
            uploaded = plan::names(&manifest).collect();
            // One of our own is what a scrub has written anew.
            let is_own = manifest.generation == remote.generation;
            let older = older.into_iter().chain((!is_own).then_some(manifest.generation));
            published.garbage = older.map(|generation| remote.index_part_path(timeline, generation)).collect();
            published.has_origin = has_origin;
            (published.manifest, published.unconfirmed) =
                if is_own { (None, Some(manifest)) } else { (Some(manifest), None) };
        }
        let shared = Arc::new(Shared {
            timeline,
            wanted: watch::Sender::new(None),
            submitted: AtomicU64::new(0),
            accepted: watch::Sender::new(0),
            // Not even what was found is safe yet: an owner in between that is fenced by now may still write an older
            // index part, of a later generation than that. Only one of our own generation comes after all of these.
            consistent: watch::Sender::new(None),
            in_bucket,
            status: Mutex::default(),
            uploaded: Mutex::new(uploaded),
            is_replacing: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            published: watch::Sender::new(0),
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

    /// The timeline is this now, durably here. Replaces what waits.
    pub fn submit(&self, mut wanted: Wanted) {
        let manifest = &wanted.manifest;
        assert_eq!(manifest.timeline_id, self.shared.timeline, "what is submitted is of another timeline");
        assert_eq!(manifest.layers.len(), wanted.layers.len(), "the manifest names other layers than come with it");
        debug_assert!(
            wanted.layers.iter().all(|layer| plan::layer_names(manifest).contains(file_name(layer))),
            "the manifest does not name a layer that comes with it"
        );
        wanted.number = self.shared.submitted.fetch_add(1, Ordering::AcqRel) + 1;
        // An import has layers that the bucket got before this.
        let there = wanted.layers.iter().filter(|layer| layer.is_remote()).map(|layer| file_name(layer).to_owned());
        self.shared.uploaded.lock().extend(there);
        self.shared.note_waiting(&wanted);
        self.shared.wanted.send_replace(Some(Arc::new(wanted)));
    }

    /// What was published is damaged or gone: publishes it once more. False if that takes too long.
    pub(crate) async fn publish_again(&self) -> bool {
        let mut published = self.shared.published.subscribe();
        self.shared.is_lost.store(true, Ordering::Release);
        // The same is new once more.
        self.shared.wanted.send_modify(|_| {});
        let again = tokio::select! {
            again = env::clock::timeout(AGAIN, published.changed()) => again,
            () = self.shared.ended.cancelled() => return false,
        };
        matches!(again, Ok(Ok(())))
    }

    /// Returns once all that was submitted so far is in the bucket: an LSN does not tell, as what is told about a
    /// timeline changes without it.
    pub(crate) async fn all_accepted(&self) {
        let target = self.shared.submitted.load(Ordering::Acquire);
        let _ = self.shared.accepted.subscribe().wait_for(|number| *number >= target).await;
    }

    /// Everything up to this LSN is safe in the bucket.
    pub(crate) fn consistent(&self) -> Option<Lsn> {
        *self.shared.consistent.borrow()
    }

    /// Follows [`Uploader::consistent`].
    pub(crate) fn watch_consistent(&self) -> watch::Receiver<Option<Lsn>> {
        self.shared.consistent.subscribe()
    }

    /// Whether the bucket has an index part of the timeline.
    pub(crate) fn in_bucket(&self) -> bool {
        self.shared.in_bucket.load(Ordering::Acquire)
    }

    /// Whether the bucket has the layer whole.
    pub(crate) fn is_uploaded(&self, file_name: &str) -> bool {
        self.shared.uploaded.lock().contains(file_name)
    }

    /// How it goes.
    pub(crate) fn status(&self) -> UploadStatus {
        self.shared.status.lock().clone()
    }

    /// The panic of its task: nothing more is uploaded.
    pub(crate) fn panicked(&self) -> Option<&str> {
        self.shared.panicked.get().map(String::as_str)
    }

    /// Returns when the task has ended, or is told to.
    pub(crate) async fn stopped(&self) {
        self.shared.ended.cancelled().await;
    }

    /// Ends the task and waits for it. What is not uploaded is uploaded after the next start.
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

/// Publishes until it is stopped, or may not any more.
async fn run(shared: Arc<Shared>, mut published: Published) {
    let _ended = shared.ended.clone().drop_guard();
    let mut wanted = shared.wanted.subscribe();
    // Something may wait already.
    wanted.mark_changed();
    let mut pause = PAUSE_MIN;
    loop {
        let next = tokio::select! {
            next = next(&mut wanted) => next,
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
                // Seen as new once more.
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

/// Waits for a state that was not seen yet.
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
    let remote = &shared.remote;
    remote.check_known()?;
    if shared.is_lost.swap(false, Ordering::AcqRel) {
        published.unconfirmed = None;
        published.is_lost = true;
    }
    let manifest = &wanted.manifest;
    // One of an earlier generation is written anew: then nothing that its owner may still do to it matters.
    if let Some(before) = &published.manifest
        && before.generation == remote.generation
        && !published.is_lost
        && plan::same_contents(before, manifest)
    {
        shared.accepted.send_replace(wanted.number);
        return published.write_origin(shared).await;
    }
    upload(shared, wanted).await?;
    let next = Manifest { generation: remote.generation, in_bucket: true, ..manifest.clone() };
    plan::check(&next, published.manifest.as_ref(), &shared.uploaded.lock(), remote.generation)
        .map_err(|unfit| StorageError::Internal(format!("index part of timeline {}: {unfit}", shared.timeline)))?;
    if published.unconfirmed.as_ref() != Some(&next) {
        let path = remote.index_part_path(shared.timeline, remote.generation);
        let bytes = next.encode()?.into();
        published.unconfirmed = None;
        shared.replace(&path, bytes).await?;
        published.unconfirmed = Some(next);
    }
    remote.check().await?;
    if let Some(next) = published.unconfirmed.take() {
        published.confirmed(shared, next);
        shared.published.send_modify(|count| *count += 1);
    }
    shared.accept(wanted);
    published.write_origin(shared).await?;
    published.collect_garbage(shared).await
}

/// Uploads the layers that the bucket lacks.
async fn upload(shared: &Arc<Shared>, wanted: &Wanted) -> Result<(), StorageError> {
    shared.note_waiting(wanted);
    let missing: Vec<Arc<Layer>> = {
        let uploaded = shared.uploaded.lock();
        wanted.layers.iter().filter(|layer| !uploaded.contains(file_name(layer))).cloned().collect()
    };
    let uploads: Vec<_> = missing.into_iter().map(|layer| upload_layer(Arc::clone(shared), layer)).collect();
    futures_util::stream::iter(uploads).buffer_unordered(PARALLEL).try_collect().await
}

async fn upload_layer(shared: Arc<Shared>, layer: Arc<Layer>) -> Result<(), StorageError> {
    shared.remote.check_known()?;
    let path = shared.remote.layer_path(shared.timeline, file_name(&layer));
    shared.remote.storage.put_file(RequestClass::Upload, &path, layer.path()).await?;
    shared.uploaded.lock().insert(file_name(&layer).to_owned());
    shared.note_uploaded(layer.desc().file_size);
    Ok(())
}

fn file_name(layer: &Layer) -> &str {
    layer.path().file_name().unwrap_or_default()
}

impl Published {
    /// All later owners will see `next`.
    fn confirmed(&mut self, shared: &Shared, next: Manifest) {
        let remote = &shared.remote;
        assert_eq!(next.generation, remote.generation, "an index part of another generation is ours");
        if let Some(before) = self.manifest.take() {
            let (old, new) = (before.disk_consistent_lsn, next.disk_consistent_lsn);
            assert!(old <= new, "the index part goes back from {old} to {new}");
            let unnamed = plan::unnamed(&before, &next);
            self.garbage.extend(unnamed.iter().map(|name| remote.layer_path(shared.timeline, name)));
        }
        self.manifest = Some(next);
        self.is_lost = false;
    }

    /// Writes down what the timeline is for ever, once. That is never there before an index part was: where it is found
    /// without one, that was lost, and can be written anew from this and the layers.
    async fn write_origin(&mut self, shared: &Shared) -> Result<(), StorageError> {
        let Some(manifest) = self.manifest.as_ref().filter(|_| !self.has_origin) else { return Ok(()) };
        let path = RemotePath::origin(&shared.remote.tenant, &shared.timeline, shared.remote.generation);
        shared.replace(&path, manifest.without_history().encode()?.into()).await?;
        self.has_origin = true;
        Ok(())
    }

    /// What is about to be removed is nothing that the index part in the bucket names, nor that index part itself.
    fn assert_not_needed(&self, shared: &Shared) {
        let remote = &shared.remote;
        let own = self.manifest.as_ref().filter(|manifest| manifest.generation == remote.generation);
        assert!(own.is_some(), "objects are to be removed before an index part of our own says what is needed");
        let named = own.into_iter().flat_map(plan::names).map(|name| remote.layer_path(shared.timeline, &name));
        let index_part = remote.index_part_path(shared.timeline, remote.generation);
        let needed: HashSet<RemotePath> = named.chain([index_part]).collect();
        let lost = self.garbage.iter().find(|path| needed.contains(path));
        assert!(lost.is_none(), "{lost:?} is needed and was about to be removed");
    }

    /// Removes what nobody needs. The generation was looked at just now. What cannot be removed is tried again after
    /// the next publication.
    async fn collect_garbage(&mut self, shared: &Shared) -> Result<(), StorageError> {
        if self.garbage.is_empty() {
            return Ok(());
        }
        self.assert_not_needed(shared);
        let removed = shared.remote.storage.delete(&self.garbage).await;
        match removed {
            Ok(()) => self.garbage.clear(),
            Err(error) => tracing::info!(timeline = %shared.timeline, "not removed, will be tried again: {error}"),
        }
        Ok(())
    }
}

impl Shared {
    /// Writes an object that a task that is to end does not give up.
    async fn replace(&self, path: &RemotePath, bytes: bytes::Bytes) -> Result<(), StorageError> {
        self.is_replacing.store(true, Ordering::Release);
        let put = self.remote.storage.put(RequestClass::Control, path, bytes).await;
        self.is_replacing.store(false, Ordering::Release);
        put
    }

    /// The bucket has `wanted`, for good.
    fn accept(&self, wanted: &Wanted) {
        let accepted = *self.accepted.borrow();
        assert!(wanted.number >= accepted, "state {} is accepted after state {accepted}", wanted.number);
        {
            let uploaded = self.uploaded.lock();
            let missing = wanted.layers.iter().map(|layer| file_name(layer)).find(|name| !uploaded.contains(*name));
            assert_eq!(missing, None, "called safe, and a layer is not in the bucket");
        }
        for layer in &wanted.layers {
            layer.set_remote(self.remote.layer_object(self.timeline, file_name(layer)));
        }
        self.in_bucket.store(true, Ordering::Release);
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
        let waiting = wanted.layers.iter().filter(|layer| !uploaded.contains(file_name(layer)));
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
        // Logged once, however often it comes.
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
