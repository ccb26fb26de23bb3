//! A store that delays every request by a given time, and counts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use remote_storage::{RemoteOptions, RemoteStorage, RemoteUrl, StoreSettings};

#[derive(Debug, Default)]
struct Figures {
    latency_us: AtomicU64,
    gets: AtomicU64,
    bytes: AtomicU64,
    requests: AtomicU64,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Slow {
    inner: Arc<dyn ObjectStore>,
    figures: Arc<Figures>,
}

/// Requests made to a store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// Reads of ranges.
    pub gets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// All requests.
    pub requests: u64,
}

/// Where the objects of a run are.
#[derive(Clone, Debug)]
pub enum Place {
    /// A directory.
    Directory(camino::Utf8PathBuf),
    /// A bucket of the S3 server whose address the environment names.
    S3 { endpoint: String, bucket: String },
}

impl Place {
    /// The kind of store, for display.
    pub fn kind(&self) -> &'static str {
        match self {
            Place::Directory(_) => "directory",
            Place::S3 { .. } => "S3 server on loopback",
        }
    }

    /// Opens what is below `prefix`.
    pub async fn open(&self, prefix: &str) -> anyhow::Result<Slow> {
        let inner: Arc<dyn ObjectStore> = match self {
            Place::Directory(dir) => {
                let dir = dir.join(prefix);
                std::fs::create_dir_all(&dir)?;
                Arc::new(LocalFileSystem::new_with_prefix(dir)?)
            }
            Place::S3 { endpoint, bucket } => {
                let name = format!("s3://{bucket}/{prefix}");
                let settings = StoreSettings {
                    url: RemoteUrl::parse(&name).map_err(anyhow::Error::msg)?,
                    name,
                    endpoint: Some(endpoint.clone()),
                    region: Some("us-east-1".to_owned()),
                    path_style: true,
                    allow_http: true,
                    sign_payload: signs_payload(),
                    credentials_file: None,
                    scratch: None,
                    options: RemoteOptions::default(),
                };
                settings.open().await?.context("a bucket")?
            }
        };
        Ok(Slow { inner, figures: Arc::default() })
    }
}

/// Whether contents are signed, which costs time on both sides.
pub fn signs_payload() -> bool {
    std::env::var_os("BENCH_S3_UNSIGNED").is_none()
}

impl Slow {
    /// The store in the form that the engine takes.
    pub fn storage(&self) -> RemoteStorage {
        RemoteStorage::with_store(Arc::new(self.clone()), "bench:")
    }

    /// Sets the delay of each request from now on.
    pub fn set_latency(&self, latency: Duration) {
        self.figures.latency_us.store(latency.as_micros() as u64, Ordering::Relaxed);
    }

    /// The requests since the last call.
    pub fn asked(&self) -> Asked {
        let take = |figure: &AtomicU64| figure.swap(0, Ordering::Relaxed);
        let Figures { gets, bytes, requests, .. } = &*self.figures;
        Asked { gets: take(gets), bytes: take(bytes), requests: take(requests) }
    }

    async fn wait(&self) {
        self.figures.requests.fetch_add(1, Ordering::Relaxed);
        let latency = Duration::from_micros(self.figures.latency_us.load(Ordering::Relaxed));
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
    }
}

impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Slow {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.wait().await;
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.wait().await;
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if let Some(GetRange::Bounded(range)) = &options.range {
            self.figures.gets.fetch_add(1, Ordering::Relaxed);
            self.figures.bytes.fetch_add(range.end - range.start, Ordering::Relaxed);
        }
        self.wait().await;
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        use futures_util::{FutureExt, StreamExt};
        let (store, prefix) = (self.clone(), prefix.cloned());
        let listed = async move {
            store.wait().await;
            store.inner.list(prefix.as_ref())
        };
        listed.into_stream().flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.wait().await;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.wait().await;
        self.inner.copy_opts(from, to, options).await
    }
}
