//! A server's connection to the bucket: requests and replies may be delayed, so that those of several servers arrive
//! in any order.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// Pseudorandom numbers from a seed.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D).rotate_left(20) % limit
    }
}

struct Line {
    bucket: Arc<InMemory>,
    dice: Mutex<Dice>,
    cut: AtomicBool,
    calls: AtomicU64,
}

#[derive(Clone)]
pub struct SlowStore(Arc<Line>);

impl SlowStore {
    pub fn new(bucket: Arc<InMemory>, seed: u64) -> Self {
        let (cut, calls) = Default::default();
        Self(Arc::new(Line { bucket, dice: Mutex::new(Dice::new(seed)), cut, calls }))
    }

    /// Lets nothing through any more: the server is dead.
    pub fn cut(&self) {
        self.0.cut.store(true, Ordering::Relaxed);
    }

    pub fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::Relaxed)
    }

    /// Travels one way.
    async fn travel(&self) -> Result<()> {
        let delay = {
            let mut dice = self.0.dice.lock().unwrap();
            match dice.below(100) {
                0..50 => 0,
                50..85 => dice.below(3),
                85..97 => dice.below(25),
                _ => dice.below(300),
            }
        };
        match delay {
            0 => tokio::task::yield_now().await,
            delay => tokio::time::sleep(Duration::from_millis(delay)).await,
        }
        if self.0.cut.load(Ordering::Relaxed) {
            return Err(Error::Generic { store: "Slow", source: "the server is dead".into() });
        }
        Ok(())
    }

    async fn there_and_back<T>(&self, effect: impl Future<Output = Result<T>>) -> Result<T> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        self.travel().await?;
        let done = effect.await;
        self.travel().await?;
        done
    }
}

#[async_trait]
impl ObjectStore for SlowStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.there_and_back(self.0.bucket.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.there_and_back(self.0.bucket.put_multipart_opts(location, opts)).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.there_and_back(self.0.bucket.get_opts(location, options)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .then(move |location| {
                let store = store.clone();
                async move {
                    let location = location?;
                    store.there_and_back(store.0.bucket.delete(&location)).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (self.clone(), prefix.cloned());
        let listed = async move {
            let all = store.there_and_back(store.0.bucket.list(prefix.as_ref()).try_collect::<Vec<_>>()).await?;
            Ok::<_, Error>(stream::iter(all.into_iter().map(Ok)))
        };
        stream::once(listed).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.there_and_back(self.0.bucket.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.there_and_back(self.0.bucket.copy_opts(from, to, options)).await
    }
}

impl fmt::Debug for SlowStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlowStore")
    }
}

impl fmt::Display for SlowStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlowStore")
    }
}
