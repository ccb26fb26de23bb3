//! Uploads local files, large ones in parts, with a bounded amount of each in memory.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use camino::Utf8Path;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::retry::{RetryContext, RetryPolicy};
use object_store::{MultipartUpload, PutMultipartOptions, PutPayload};
use tokio::sync::OwnedSemaphorePermit;

use super::directory::PIECE;
use super::failed::{Failed, Kind};
use super::options::RemoteOptions;
use super::part_buffers::PartBuffers;
use super::request::Request;
use super::{Inner, RemotePath, RequestClass};
use errors::StorageError;
use metrics::{METRICS, StoreFault};
use virtual_file::{OpenMode, VirtualFile};

/// Maximum number of concurrent parts of one file.
const PARTS_AT_ONCE: usize = 4;
/// How long the cleanup of a failed upload may take.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// A local file being uploaded.
struct Source {
    file: VirtualFile,
    len: u64,
    spare: Arc<PartBuffers>,
}

impl Source {
    async fn open(path: &Utf8Path, spare: Arc<PartBuffers>) -> Result<Self, StorageError> {
        let file = VirtualFile::open(path, OpenMode::Read).await?;
        let len = file.size()?;
        Ok(Self { file, len, spare })
    }

    /// Reads the bytes from `offset` on, at most `part_size`, which must be a multiple of the file's alignment.
    async fn part(&self, offset: u64, part_size: u64) -> Result<Bytes, StorageError> {
        let wanted = part_size.min(self.len - offset);
        let span = wanted.next_multiple_of(self.file.align()) as usize;
        let mut read = self.spare.take(span, part_size as usize);
        loop {
            let before = read.len();
            let (at, piece) = (offset + before as u64, PIECE.min(span - before));
            let more = self.file.start_read_into(at, piece, read).await;
            read = more.map_err(|source| self.file.error("read", at, source))?;
            if read.len() == span || read.len() < before + piece {
                break;
            }
        }
        let mut bytes = self.spare.lend(read, part_size as usize);
        if (bytes.len() as u64) < wanted {
            let cut = std::io::ErrorKind::UnexpectedEof.into();
            return Err(self.file.error("read", offset, cut));
        }
        bytes.truncate(wanted as usize);
        Ok(bytes)
    }
}

impl Inner {
    pub(super) async fn put_file(
        &self,
        class: RequestClass,
        path: &RemotePath,
        file: &Utf8Path,
    ) -> Result<(), StorageError> {
        let source = Source::open(file, self.spares.share()).await?;
        if source.len <= self.options.part_size {
            let bytes = source.part(0, self.options.part_size).await?;
            return self.put(class, path, &bytes).await;
        }
        let request = Request { class, operation: "upload", path, bytes: source.len };
        let limit = self.options.retry_deadline + Duration::from_millis((source.len * 1000) >> 20);
        let mut attempts = 0;
        let whole = async {
            loop {
                attempts += 1;
                match self.upload(request, &source).await {
                    Ok(()) => return Ok(()),
                    Err(Interrupted::Local(error)) => return Err(error),
                    Err(Interrupted::Remote(failed)) if failed.is_final(attempts, &self.options) => {
                        return Err(self.error(request, failed));
                    }
                    Err(Interrupted::Remote(failed)) => {
                        env::clock::sleep(failed.pause(attempts, &self.options)).await;
                    }
                }
            }
        };
        env::clock::timeout(limit, whole).await.unwrap_or_else(|_| Err(self.error(request, Failed::timeout(limit))))
    }

    /// One attempt: uploads all parts, then makes the object visible.
    async fn upload(&self, request: Request<'_>, source: &Source) -> Result<(), Interrupted> {
        let one = Request { bytes: self.options.part_size, ..request };
        let start = || async {
            let retries = Arc::new(PartRetries { options: self.options.clone() });
            let options = PutMultipartOptions::default().with_retry_policy(retries);
            Ok(self.store.put_multipart_opts(request.path.as_path(), options).await?)
        };
        let mut upload = AbortOnDrop(Some(self.run_to_failure(one, start).await?));
        let sink = upload.get()?;
        let offsets = (0..source.len).step_by(self.options.part_size as usize);
        let in_order = stream::iter(offsets).map(|offset| self.part(one, source, offset)).buffered(1);
        let sending = in_order.map_ok(|(bytes, turn)| {
            METRICS.remote_storage_bytes_out.of(request.class).inc_by(bytes.len() as u64);
            let sent = sink.put_part(PutPayload::from_bytes(bytes));
            async move {
                let _turn = turn;
                Ok(self.timed(one, async { Ok(sent.await?) }).await?)
            }
        });
        sending.try_buffer_unordered(PARTS_AT_ONCE).try_collect::<Vec<()>>().await?;
        let sink = upload.get()?;
        self.attempt(one, async { Ok(sink.complete().await?) }).await?;
        upload.0 = None;
        Ok(())
    }

    /// Reads a part once it is the part's turn to be sent.
    async fn part(
        &self,
        request: Request<'_>,
        source: &Source,
        offset: u64,
    ) -> Result<(Bytes, OwnedSemaphorePermit), Interrupted> {
        let turn = Arc::clone(self.budgets.of(request.class)).acquire_owned().await;
        let turn = turn.map_err(|_| Failed::new(Kind::Never, "the store was closed"))?;
        Ok((source.part(offset, self.options.part_size).await?, turn))
    }
}

/// Why an attempt to upload a file failed.
enum Interrupted {
    Local(StorageError),
    Remote(Failed),
}

impl From<StorageError> for Interrupted {
    fn from(error: StorageError) -> Self {
        Self::Local(error)
    }
}

impl From<Failed> for Interrupted {
    fn from(failed: Failed) -> Self {
        // An upload has no condition, so "not found" is a fault: the whole file may be uploaded again.
        let kind = match failed.kind {
            Kind::NotFound => Kind::Fault(StoreFault::Unavailable),
            kind => kind,
        };
        Self::Remote(Failed { kind, ..failed })
    }
}

/// An upload whose parts are discarded unless it is completed.
struct AbortOnDrop(Option<Box<dyn MultipartUpload>>);

impl AbortOnDrop {
    fn get(&mut self) -> Result<&mut Box<dyn MultipartUpload>, Failed> {
        self.0.as_mut().ok_or_else(|| Failed::new(Kind::Never, "the upload has ended"))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        let Some(mut upload) = self.0.take() else { return };
        // Without a runtime the process is about to end; clouds have rules for what is left behind.
        if tokio::runtime::Handle::try_current().is_ok() {
            env::spawn::task("abort of an upload", async move {
                let _ = env::clock::timeout(ABORT_TIMEOUT, upload.abort()).await;
            });
        }
    }
}

/// Resends a failed part without those that succeeded.
#[derive(Debug)]
struct PartRetries {
    options: RemoteOptions,
}

#[async_trait]
impl RetryPolicy for PartRetries {
    async fn retry(&self, context: RetryContext) -> bool {
        let failed = Failed::new(Kind::Fault(StoreFault::Unavailable), "");
        let attempts = context.attempt.try_into().unwrap_or(u32::MAX);
        METRICS.remote_storage_failures.of(StoreFault::Unavailable).inc();
        if failed.is_final(attempts, &self.options) {
            return false;
        }
        env::clock::sleep(failed.pause(attempts, &self.options)).await;
        true
    }
}
