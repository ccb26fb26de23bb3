//! An in-memory bucket that counts ranged requests, adds latency, and damages objects on demand.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use remote_storage::RemoteStorage;

#[derive(Debug, Default)]
struct State {
    gets: Vec<Range<u64>>,
    latency: Duration,
    under_way: usize,
    most_under_way: usize,
    bytes_under_way: u64,
    most_bytes_under_way: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    objects: Arc<InMemory>,
    state: Arc<Mutex<State>>,
}

/// The requests made to a bucket.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    pub gets: Vec<Range<u64>>,
    pub most_under_way: usize,
    pub most_bytes_under_way: u64,
}

impl Asked {
    pub fn requests(&self) -> usize {
        self.gets.len()
    }

    pub fn bytes(&self) -> u64 {
        self.gets.iter().map(|range| range.end - range.start).sum()
    }
}

impl Bucket {
    pub fn storage(&self) -> RemoteStorage {
        RemoteStorage::with_store(Arc::new(self.clone()), "memory://bucket")
    }

    pub fn set_latency(&self, latency: Duration) {
        self.state.lock().latency = latency;
    }

    /// The requests since the last call.
    pub fn asked(&self) -> Asked {
        let mut state = self.state.lock();
        let most_under_way = std::mem::take(&mut state.most_under_way);
        let most_bytes_under_way = std::mem::take(&mut state.most_bytes_under_way);
        Asked { gets: std::mem::take(&mut state.gets), most_under_way, most_bytes_under_way }
    }

    /// Changes one byte of an object.
    pub async fn damage(&self, path: &Path, offset: u64) {
        let mut bytes = self.objects.get(path).await.expect("there").bytes().await.expect("readable").to_vec();
        bytes[offset as usize] ^= 0x40;
        self.objects.put(path, PutPayload::from_bytes(Bytes::from(bytes))).await.expect("in memory");
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bucket of a test")
    }
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.objects.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if let Some(GetRange::Bounded(range)) = &options.range {
            let latency = {
                let mut state = self.state.lock();
                state.gets.push(range.clone());
                state.under_way += 1;
                state.most_under_way = state.most_under_way.max(state.under_way);
                state.bytes_under_way += range.end - range.start;
                state.most_bytes_under_way = state.most_bytes_under_way.max(state.bytes_under_way);
                state.latency
            };
            tokio::time::sleep(latency).await;
            let mut state = self.state.lock();
            state.under_way -= 1;
            state.bytes_under_way -= range.end - range.start;
        }
        self.objects.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
