//! An abandoned write that takes effect late does not undo the write that came after it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result,
};
use remote_storage::{RemoteOptions, RemotePath, RemoteStorage, RequestClass};

const LATE: Duration = Duration::from_millis(250);
const ATTEMPT: Duration = Duration::from_millis(150);

/// Never answers the next write, but performs it later.
#[derive(Debug, Default)]
struct LateStore {
    inner: Arc<InMemory>,
    is_late: AtomicBool,
    writes: AtomicU32,
}

impl fmt::Display for LateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("late")
    }
}

#[async_trait]
impl ObjectStore for LateStore {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        if self.is_late.swap(false, Ordering::Relaxed) {
            let (inner, path) = (Arc::clone(&self.inner), path.clone());
            tokio::spawn(async move {
                tokio::time::sleep(LATE).await;
                inner.put_opts(&path, payload, options).await
            });
            return std::future::pending().await;
        }
        self.inner.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

async fn contents_after_a_late_write(max_attempts: u32) -> (Bytes, u32) {
    let store = Arc::new(LateStore::default());
    let options = RemoteOptions { attempt_timeout: ATTEMPT, max_attempts, ..RemoteOptions::default() };
    let storage = RemoteStorage::with_options(store.clone(), "memory:///late", options);
    let path = RemotePath::from(Path::from("tenants/t/index"));
    store.is_late.store(true, Ordering::Relaxed);
    let old = storage.put(RequestClass::Control, &path, "old".into()).await;
    assert_eq!(old.is_ok(), max_attempts > 1, "one attempt is given up, two are not");
    storage.put(RequestClass::Control, &path, "new".into()).await.unwrap();
    tokio::time::sleep(LATE * 2).await;
    let found = storage.get(RequestClass::Control, &path, 100).await.unwrap();
    (found, store.writes.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_write_that_was_given_up_is_waited_for_before_the_next_one_counts() {
    assert_eq!(contents_after_a_late_write(1).await, (Bytes::from_static(b"new"), 3), "late, new, and new once more");
    let (found, writes) = contents_after_a_late_write(5).await;
    assert_eq!(found, "new");
    assert!(writes >= 3, "{writes}");
}
