//! Objects that are replaced repeatedly: an abandoned write may still take effect, and must not undo a later one.
//!
//! Whoever abandons a write cannot know whether the bucket continues with it. So after writing behind an abandoned
//! write, we wait as long as that one may still take, and check the contents. Only then does the write count as done.

use bytes::Bytes;
use object_store::{ObjectStoreExt, PutPayload};

use super::failed::{Failed, Kind};
use super::given_up::GivenUp;
use super::request::Request;
use super::{Inner, RemotePath, RequestClass};
use errors::StorageError;
use metrics::{METRICS, StoreFault};

/// A write in flight. If it is dropped before its outcome is known, it counts as abandoned.
struct UnderWay<'a> {
    given_up: &'a GivenUp,
    path: &'a RemotePath,
    has_ended: bool,
}

impl UnderWay<'_> {
    fn end<T>(mut self, outcome: Result<T, Failed>) -> Result<T, Failed> {
        self.has_ended = match &outcome {
            Ok(_) => true,
            Err(Failed { kind: Kind::Fault(StoreFault::Timeout | StoreFault::Unavailable), .. }) => false,
            Err(_) => true,
        };
        outcome
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.given_up.note(self.path);
        }
    }
}

impl Inner {
    /// Writes an object that an earlier write may still be replacing, and that may be replaced again.
    pub(super) async fn replace(
        &self,
        class: RequestClass,
        path: &RemotePath,
        bytes: Bytes,
    ) -> Result<(), StorageError> {
        loop {
            self.put(class, path, &bytes).await?;
            let Some(since) = self.given_up.since(path) else { return Ok(()) };
            let passed = env::clock::now().saturating_duration_since(since);
            env::clock::sleep(self.time_for(bytes.len() as u64).saturating_sub(passed)).await;
            self.given_up.forget(path);
            if self.get(class, path, u64::MAX).await? == bytes {
                return Ok(());
            }
            tracing::info!("{}: an earlier write took effect late, writing once more", self.name_of(path));
        }
    }

    /// Writes an object without regard to earlier writes that may still take effect: one attempt, so that none of its
    /// contents appears a second time.
    pub(super) async fn sign(&self, class: RequestClass, path: &RemotePath, bytes: Bytes) -> Result<(), StorageError> {
        let request = Request { class, operation: "put", path, bytes: bytes.len() as u64 };
        METRICS.remote_storage_bytes_out.of(class).inc_by(bytes.len() as u64);
        let put = async {
            let put = self.store.put(path.as_path(), PutPayload::from_bytes(bytes)).await;
            put.map(drop).map_err(Failed::from)
        };
        self.attempt(request, put).await.map_err(|failed| self.error(request, failed))
    }

    /// Writes an object that has the same contents whoever writes it.
    pub(super) async fn put(&self, class: RequestClass, path: &RemotePath, bytes: &Bytes) -> Result<(), StorageError> {
        let request = Request { class, operation: "put", path, bytes: bytes.len() as u64 };
        let put = || async {
            METRICS.remote_storage_bytes_out.of(class).inc_by(bytes.len() as u64);
            let under_way = UnderWay { given_up: &self.given_up, path, has_ended: false };
            let put = self.store.put(path.as_path(), PutPayload::from_bytes(bytes.clone())).await;
            under_way.end(put.map(drop).map_err(Failed::from))
        };
        self.run(request, put).await
    }
}
