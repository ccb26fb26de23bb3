//! Where a layer's bytes are, and how that changes: opening, eviction, download, healing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};

use super::{Layer, Reader};
use crate::context::{DownloadBehavior, RequestContext};
use crate::task_mgr::TaskKind;
use crate::tenant::storage_layer::inspect::{LayerInspector, VerifiedLayer};
use crate::tenant::storage_layer::{
    DeltaLayer, ImageLayer, PARTIAL_SUFFIX, ReadCosts, RemoteFile, RemoteObject, opening_bytes,
};
use errors::StorageError;
use metrics::METRICS;
use virtual_file::fs;

/// How long to wait after a failed download before the next attempt.
const DOWNLOAD_PAUSE: Duration = Duration::from_secs(30);

impl Layer {
    /// Space that it takes on this disk, in bytes: the whole file, or the cached blocks.
    pub fn local_bytes(&self) -> u64 {
        if self.is_local() { self.desc.file_size } else { fs::allocated_bytes(&self.partial_path()) }
    }

    /// The file that caches some of its blocks while the whole file is not here.
    pub fn partial_path(&self) -> Utf8PathBuf {
        format!("{}{PARTIAL_SUFFIX}", self.path).into()
    }

    /// Removes its files from this disk. Reads in progress continue with the file that they have open. Returns the
    /// number of bytes freed.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if the bucket does not have the layer.
    pub async fn evict(&self) -> Result<u64, StorageError> {
        if !self.is_remote() {
            return Err(StorageError::Invalid(format!("{}: the bucket does not have this layer", self.path)));
        }
        let Ok(_downloading) = self.downloading.try_lock() else { return Ok(0) };
        if self.closed.is_cancelled() {
            // Its directory may be another process's by now.
            return Ok(0);
        }
        let _changing = self.changing.lock().await;
        let freed = self.local_bytes();
        if self.is_local() {
            fs::unlink(&self.path).await?;
            METRICS.layers_evicted.inc();
        }
        self.leave_disk();
        if let Some(remote) = self.reader.write().take().as_ref().and_then(|reader| reader.remote_file()) {
            remote.leave_disk();
        }
        fs::unlink(&self.partial_path()).await?;
        Ok(freed)
    }

    /// The whole file no longer counts as being here.
    fn leave_disk(&self) {
        assert!(self.is_remote(), "{}: the only copy of a layer is let go", self.path);
        self.resident.store(false, Ordering::Release);
    }

    /// Downloads the whole layer, verified and durable. Does nothing if it is here.
    ///
    /// # Errors
    /// Those of the disk and of the bucket. Reads are not affected.
    pub async fn download(&self, ctx: &RequestContext) -> Result<(), StorageError> {
        let _downloading = self.downloading.lock().await;
        let reader = self.reader(ctx).await?;
        let Some(remote) = reader.remote_file() else { return Ok(()) };
        tokio::select! {
            biased;
            () = self.closed.cancelled() => return Err(StorageError::Shutdown),
            completed = remote.complete() => completed?,
        }
        let _changing = self.changing.lock().await;
        remote.leave_disk();
        fs::rename(&self.partial_path(), &self.path).await?;
        fs::fsync_dir(self.path.parent().unwrap_or(&self.path)).await?;
        let reader = self.open_local(ctx).await?;
        self.resident.store(true, Ordering::Release);
        *self.reader.write() = Some(Arc::new(reader));
        METRICS.layers_downloaded.inc();
        Ok(())
    }

    /// Stops writing to the timeline's directory, which may be about to be removed: ends a download in progress and
    /// waits for it. Reads in progress continue.
    pub(crate) async fn close(&self) {
        self.closed.cancel();
        if let Some(remote) = self.reader.read().as_ref().and_then(|reader| reader.remote_file()) {
            remote.leave_disk();
        }
        drop(self.downloading.lock().await);
    }

    /// Removes its files from this disk for good. Nobody else may hold it.
    pub(in super::super) async fn remove(&self) -> Result<(), StorageError> {
        self.close().await;
        fs::unlink(&self.path).await?;
        fs::unlink(&self.partial_path()).await
    }

    /// Checks everything in the local file: blocks, index, values. If the whole file is not here, there is nothing to
    /// check.
    pub async fn verify_local(&self) -> Result<VerifiedLayer, StorageError> {
        if !self.is_local() {
            return Ok(VerifiedLayer::default());
        }
        LayerInspector::open_as(&self.path, &self.file).await?.verify().await
    }

    /// Verifies every block of the object. Returns their number.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if the bucket does not have the layer; [`StorageError::Corrupt`] naming the object.
    pub async fn verify_remote(&self) -> Result<u64, StorageError> {
        let Some(object) = self.remote() else {
            return Err(StorageError::Invalid(format!("{}: the bucket does not have this layer", self.path)));
        };
        self.open_object(object).await.verify_all().await
    }

    /// The current reader, if the layer is open.
    fn opened(&self) -> Option<Arc<Reader>> {
        self.reader.read().as_ref().map(Arc::clone)
    }

    /// As [`reader`](Self::reader). If the layer is not open, how long that took is added to `costs`.
    pub(super) async fn reader_timed(
        &self,
        costs: &mut ReadCosts,
        ctx: &RequestContext,
    ) -> Result<Arc<Reader>, StorageError> {
        if let Some(reader) = self.opened() {
            return Ok(reader);
        }
        let began = env::clock::now();
        let reader = self.reader(ctx).await;
        costs.fetching += env::clock::now().saturating_duration_since(began);
        reader
    }

    /// The current reader. Opens the layer if necessary, once for all who want it.
    pub(super) async fn reader(&self, ctx: &RequestContext) -> Result<Arc<Reader>, StorageError> {
        if let Some(reader) = self.opened() {
            return Ok(reader);
        }
        let _changing = self.changing.lock().await;
        if let Some(reader) = self.opened() {
            return Ok(reader);
        }
        let opened = match self.remote().filter(|_| !self.is_local()) {
            Some(object) => self.open_remote(object).await?,
            None => self.open_local(ctx).await?,
        };
        let opened = Arc::new(opened);
        *self.reader.write() = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Maximum bytes fetched from the bucket to open it.
    pub(crate) fn opening_bytes(&self) -> u64 {
        let is_open = self.is_local() || self.reader.read().is_some();
        if is_open { 0 } else { opening_bytes(self.identity, self.file.file_size, &self.resources) }
    }

    /// Opens the layer, so that a read finds it open.
    pub(crate) async fn open(&self, ctx: &RequestContext) -> Result<(), StorageError> {
        self.reader(ctx).await.map(drop)
    }

    async fn open_local(&self, ctx: &RequestContext) -> Result<Reader, StorageError> {
        let pages = &self.resources.pages;
        match self.desc.is_delta {
            true => DeltaLayer::open(&self.path, &self.file, pages, ctx).await.map(Reader::Delta),
            false => ImageLayer::open(&self.path, &self.file, pages, ctx).await.map(Reader::Image),
        }
    }

    async fn open_object(&self, object: RemoteObject) -> RemoteFile {
        RemoteFile::open(object, self.identity, &self.file, self.partial_path(), &self.resources).await
    }

    async fn open_remote(&self, object: RemoteObject) -> Result<Reader, StorageError> {
        let remote = Arc::new(self.open_object(object).await);
        if self.closed.is_cancelled() {
            remote.leave_disk();
        }
        let (desc, identity, generation) = (&self.file, self.identity, self.name.generation);
        match desc.is_delta {
            true => DeltaLayer::open_remote(remote, desc, identity, generation).await.map(Reader::Delta),
            false => ImageLayer::open_remote(remote, desc, identity, generation).await.map(Reader::Image),
        }
    }

    /// On an `error` of the local file in another read than those of pages: as these do
    /// ([`Layer::collect`]), makes reads go to the bucket if the file is to blame. Returns whether to read again.
    pub(crate) async fn heal(self: &Arc<Self>, error: &StorageError) -> bool {
        self.set_aside(self.opened().as_ref(), error).await
    }

    /// On an `error` of the local file, open as `reader` or not at all: if the file is to blame and the bucket has
    /// the layer, removes the file, so that reads go to the bucket. Returns whether to retry the read.
    pub(super) async fn set_aside(self: &Arc<Self>, reader: Option<&Arc<Reader>>, error: &StorageError) -> bool {
        if !self.is_remote() || !is_damage_of(&self.path, error) {
            return false;
        }
        let _changing = self.changing.lock().await;
        let is_replaced = match (self.reader.read().as_ref(), reader) {
            (Some(now), Some(then)) => !Arc::ptr_eq(now, then),
            (None, None) => false,
            _ => true,
        };
        if is_replaced || !self.is_local() {
            // Somebody else has handled it already.
            return true;
        }
        tracing::warn!("{}: reading from the bucket, the local file is of no use: {error}", self.path);
        METRICS.layers_healed.inc();
        self.leave_disk();
        *self.reader.write() = None;
        // If it cannot be removed, the download will replace it.
        let _ = fs::unlink(&self.path).await;
        self.download_soon();
        true
    }

    /// Whether the whole layer is being downloaded in the background, or soon will be.
    pub fn is_being_fetched(&self) -> bool {
        self.download_wanted.load(Ordering::Acquire)
    }

    /// Starts to download the whole layer in the background.
    pub(crate) fn download_soon(self: &Arc<Self>) {
        if !self.resources.blocks.disk_allowed(self.desc.file_size) || self.download_wanted.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let layer = Arc::clone(self);
        let panicked = Arc::clone(self);
        let work = async move {
            if let Some(remote) = layer.opened().as_ref().and_then(|reader| reader.remote_file()) {
                remote.until_quiet().await;
            }
            let turn = layer.resources.downloads.acquire().await;
            let ctx = RequestContext::new(TaskKind::LayerDownload, DownloadBehavior::Download);
            if let Err(error) = layer.download(&ctx).await
                && !layer.closed.is_cancelled()
            {
                tracing::info!("{}: not fetched as a whole, reads go on from the bucket: {error}", layer.path);
                drop(turn);
                env::clock::sleep(DOWNLOAD_PAUSE).await;
            }
            layer.download_wanted.store(false, Ordering::Release);
        };
        // Reads continue from the bucket.
        env::spawn::watched("download of a layer", work, move |_| {
            panicked.download_wanted.store(false, Ordering::Release);
        });
    }
}

/// Whether the error means that the file at `own` no longer has the bytes that were written.
fn is_damage_of(own: &Utf8Path, error: &StorageError) -> bool {
    match error {
        StorageError::Corrupt { path, .. } => path == own,
        StorageError::Io { path, source, .. } => {
            let is_lost = source.kind() == io::ErrorKind::NotFound || source.raw_os_error() == Some(libc::EIO);
            path == own && is_lost
        }
        _ => false,
    }
}
