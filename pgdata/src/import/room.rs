//! Disk space of an import. It reserves room before each write; where room is short, finished layers are uploaded to
//! the bucket and removed from the disk before the import ends.
//!
//! Nothing references these objects before the import's end. So before the first one is uploaded, the bucket gets a
//! deletion mark for the timeline: whoever attaches the tenant after a crash removes what is left of the import. At
//! the end, the timeline's first index part replaces the mark.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, watch};
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;

use engine::config::PageServerConf;
use engine::disk_budget::Hold;
use engine::tenant::remote::{TenantRemote, mark_import, remove_timeline};
use engine::tenant::storage_layer::{LayerIdentity, PersistentLayerDesc, read_identity};
use errors::{ErrorKind, StorageError};
use remote_storage::{RemotePath, RequestClass};
use virtual_file::fs;

/// A finished layer file under its temporary name.
pub(super) type FinishedLayer = (PersistentLayerDesc, Utf8PathBuf);

/// A layer is finished when it holds this many bytes,
const LAYER_BYTES: u64 = 256 << 20;
/// or the local disk's capacity divided by this, but at least `LAYER_BYTES_MIN`.
const LAYER_SHARE: u64 = 32;
const LAYER_BYTES_MIN: u64 = 1 << 20;
/// Number of concurrent uploads.
const PARALLEL: usize = 4;
/// An import without room fails when none of its own uploads has ended for this long.
const STALLED: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 120 });
/// Time that the uploads in progress get to end when an import is given up.
const LAST_UPLOADS: Duration = Duration::from_secs(3);
/// Pause between attempts to upload.
const PAUSE: Duration = Duration::from_secs(1);

/// What an import has on the local disk and, before it ends, in the bucket.
#[derive(Debug)]
pub(super) struct Room {
    conf: &'static PageServerConf,
    remote: Option<Arc<TenantRemote>>,
    tenant: TenantShardId,
    timeline: TimelineId,
    hold: Hold,
    layer_bytes: u64,
    state: Mutex<State>,
    marked: OnceCell<()>,
    /// Number of uploads that have ended.
    ended: watch::Sender<u64>,
    cancel: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    /// Finished layers that exist only on this disk.
    here: VecDeque<FinishedLayer>,
    uploading: usize,
    /// Layers that were uploaded and removed, by their former local name.
    gone: HashMap<Utf8PathBuf, (LayerIdentity, RemotePath)>,
    /// Why the last attempt to upload failed; cleared by a success.
    failed: Option<String>,
    /// No new upload may start.
    closed: bool,
    /// Failed uploads are not retried.
    given_up: bool,
}

impl State {
    fn upload_ended(&mut self) {
        assert!(self.uploading > 0, "an upload ends that was not under way");
        self.uploading -= 1;
    }
}

impl Room {
    /// For the import of a timeline. Without a bucket, everything stays on the local disk.
    pub(super) fn new(
        conf: &'static PageServerConf,
        tenant: TenantShardId,
        timeline: TimelineId,
        remote: Option<Arc<TenantRemote>>,
    ) -> Arc<Self> {
        let (state, marked, cancel) = Default::default();
        let (hold, ended, layer_bytes) = (conf.disk_budget.hold(), watch::Sender::new(0), layer_bytes(conf));
        Arc::new(Self { conf, remote, tenant, timeline, hold, layer_bytes, state, marked, ended, cancel })
    }

    /// Size at which a layer is finished.
    pub(super) fn layer_bytes(&self) -> u64 {
        self.layer_bytes
    }

    /// Waits until `bytes` may be written.
    ///
    /// # Errors
    /// [`StorageError::NoRoom`] if uploads cannot make room either.
    pub(super) async fn take(self: &Arc<Self>, bytes: u64) -> Result<(), StorageError> {
        let mut ended = self.ended.subscribe();
        let mut stalled = None::<Instant>;
        loop {
            self.upload_if_short();
            match self.hold.take(bytes).await {
                Err(StorageError::NoRoom(why)) => {
                    if self.state.lock().uploading == 0 {
                        return Err(self.refusal(&why));
                    }
                    let deadline = *stalled.get_or_insert_with(|| env::clock::now() + STALLED);
                    if ended.has_changed().unwrap_or(false) {
                        ended.mark_unchanged();
                        stalled = None;
                    } else if env::clock::now() >= deadline {
                        return Err(self.refusal(&why));
                    }
                }
                other => return other,
            }
        }
    }

    /// Counts bytes that are on disk without having been waited for.
    pub(super) fn add(&self, bytes: u64) {
        self.hold.add(bytes);
    }

    /// Registers a finished layer, which may now be uploaded.
    pub(super) fn finished(self: &Arc<Self>, layer: FinishedLayer) {
        self.state.lock().here.push_back(layer);
        self.upload_if_short();
    }

    /// Starts uploads of finished layers if there is no room for two more.
    fn upload_if_short(self: &Arc<Self>) {
        self.begin_uploads(&mut self.state.lock());
    }

    fn begin_uploads(self: &Arc<Self>, state: &mut State) {
        let Some(remote) = &self.remote else { return };
        while state.uploading < PARALLEL && !state.closed && !self.conf.disk_budget.has_room_for(2 * self.layer_bytes())
        {
            let Some(layer) = state.here.pop_front() else { return };
            state.uploading += 1;
            let upload = upload_and_go_on(Arc::clone(self), Arc::clone(remote), layer);
            let room = Arc::clone(self);
            env::spawn::watched("upload of a layer of an import", upload, move |reason| room.note_panic(reason));
        }
    }

    /// An upload panicked: its layer stays here, unless its file is gone already, in which case the bucket has it.
    fn note_panic(&self, reason: String) {
        {
            let mut state = self.state.lock();
            state.upload_ended();
            state.failed = Some(reason);
        }
        self.ended.send_modify(|ended| *ended += 1);
    }

    /// Uploads a layer, retrying as necessary, and removes its file.
    async fn upload(&self, remote: &Arc<TenantRemote>, layer: &FinishedLayer) -> Result<(), StorageError> {
        let (desc, file) = layer;
        let identity = read_identity(file).await?;
        let name = desc.layer_name().file_name(remote.generation(), identity.file_id);
        let path = RemotePath::layer(&self.tenant, &self.timeline, &name.to_string());
        loop {
            let uploaded = async {
                self.marked.get_or_try_init(|| mark_import(remote, self.timeline)).await?;
                remote.storage().put_file(RequestClass::Upload, &path, file).await
            };
            match uploaded.await {
                Err(error) if error.kind() == ErrorKind::Retry && !self.state.lock().given_up => {
                    self.state.lock().failed = Some(error.to_string());
                    env::clock::sleep(PAUSE).await;
                }
                done => break done?,
            }
        }
        {
            let mut state = self.state.lock();
            state.failed = None;
            state.gone.insert(file.clone(), (identity, path));
        }
        fs::unlink(file).await?;
        self.hold.release(desc.file_size);
        Ok(())
    }

    /// Waits for the uploads in progress, and returns those of `layers` that are only in the bucket.
    ///
    /// # Errors
    /// [`StorageError::Fenced`], and whatever keeps uploads from ending.
    pub(super) async fn end(
        &self,
        layers: &[FinishedLayer],
    ) -> Result<HashMap<Utf8PathBuf, LayerIdentity>, StorageError> {
        self.state.lock().closed = true;
        let mut ended = self.ended.subscribe();
        while self.state.lock().uploading > 0 {
            if env::clock::timeout(STALLED, ended.changed()).await.is_err() {
                let why = self.state.lock().failed.take().unwrap_or_default();
                return Err(StorageError::NoRoom(format!("the import's layers do not reach the bucket: {why}")));
            }
        }
        let mut gone = std::mem::take(&mut self.state.lock().gone);
        let mut named = HashMap::new();
        for (_, path) in layers {
            named.extend(gone.remove_entry(path));
        }
        if let Some(remote) = &self.remote {
            remote.check_known()?;
            // Layers of files that turned out not to count. What cannot be deleted becomes an orphan, which a scrub
            // finds.
            let unused: Vec<RemotePath> = gone.into_values().map(|(_, object)| object).collect();
            if !unused.is_empty() {
                let _ = remote.storage().delete(&unused).await;
            }
        }
        Ok(named.into_iter().map(|(path, (identity, _))| (path, identity)).collect())
    }

    /// Stops uploading, and removes what was uploaded. What cannot be removed now is removed at the next start.
    pub async fn discard(&self) {
        {
            let mut state = self.state.lock();
            (state.closed, state.given_up) = (true, true);
        }
        // An aborted upload may still arrive; its object then remains until the next start.
        if env::clock::timeout(LAST_UPLOADS, self.uploads_ended()).await.is_err() {
            self.cancel.cancel();
            self.uploads_ended().await;
        }
        if let Some(remote) = self.remote.as_ref().filter(|_| self.marked.initialized())
            && let Err(error) = remove_timeline(remote, self.timeline, remote.generation(), 0).await
        {
            tracing::warn!(timeline = %self.timeline, "objects of it are left, a later start removes them: {error}");
        }
    }

    async fn uploads_ended(&self) {
        let mut ended = self.ended.subscribe();
        while self.state.lock().uploading > 0 && ended.changed().await.is_ok() {}
    }

    /// Does not suggest a sufficient size, since the rest of the import may be of any size.
    fn refusal(&self, why: &str) -> StorageError {
        let (held, budget) = (self.hold.bytes().div_ceil(1 << 20), self.conf.disk_budget_bytes >> 20);
        let failed = self.state.lock().failed.as_ref().map_or_else(String::new, |failed| format!(" ({failed})"));
        let needs = match budget {
            0 => String::new(),
            budget => format!("; its disk_budget must be above {} MiB", held.max(budget)),
        };
        let reason = format!(
            "the import does not fit on the local disk: it holds {held} MiB there that cannot be uploaded before its \
             end{failed}{needs}: {why}"
        );
        StorageError::NoRoom(reason)
    }
}

fn layer_bytes(conf: &PageServerConf) -> u64 {
    let by_disk = conf.disk_budget.measured().and_then(|now| Some(now.disk_free? + now.resident));
    let by_budget = Some(conf.disk_budget_bytes).filter(|bytes| *bytes > 0);
    let capacity = by_disk.into_iter().chain(by_budget).min().unwrap_or(u64::MAX);
    (capacity / LAYER_SHARE).clamp(LAYER_BYTES_MIN, LAYER_BYTES)
}

/// The task of one upload. Whatever its outcome, it starts the next ones.
async fn upload_and_go_on(room: Arc<Room>, remote: Arc<TenantRemote>, layer: FinishedLayer) {
    let uploaded = tokio::select! {
        uploaded = room.upload(&remote, &layer) => uploaded,
        () = room.cancel.cancelled() => Ok(()),
    };
    {
        let mut state = room.state.lock();
        state.upload_ended();
        if let Err(error) = uploaded {
            tracing::warn!(timeline = %room.timeline, "{}: not uploaded yet: {error}", layer.1);
            state.failed = Some(error.to_string());
        }
        room.begin_uploads(&mut state);
    }
    room.ended.send_modify(|ended| *ended += 1);
}
