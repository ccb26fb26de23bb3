//! Access to the bucket: paths, concurrency limits, retries and metrics of all requests.
//!
//! Everything goes through [`RemoteStorage`], which hides whether the bucket is a directory, S3, or another cloud.
//! The [`RemoteFailure`](errors::RemoteFailure) of an error tells the caller what to do; transient faults have
//! already been retried here.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod attempts;
mod create;
mod credentials;
mod directory;
mod failed;
mod given_up;
mod health;
mod open;
mod options;
mod overlay;
mod part_buffers;
mod path;
mod prices;
mod replace;
mod request;
mod scratch;
mod unfinished;
mod upload;
mod url;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use futures_util::{StreamExt, TryFutureExt, TryStreamExt, stream};
use object_store::{GetOptions, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt};

use errors::StorageError;
use failed::{Failed, Kind};
use given_up::GivenUp;
use health::Health;
use metrics::METRICS;
pub use metrics::RequestClass;
pub use open::StoreSettings;
use options::Budgets;
pub use options::RemoteOptions;
pub use overlay::Overlay;
use part_buffers::PartBufferPool;
pub use path::{INDEX_PART_PREFIX, LAYER_LIST_PREFIX, ORIGIN_PREFIX, RemotePath, TAIL_PREFIX};
use prices::Prices;
use request::Request;
pub use unfinished::UnfinishedWrite;
pub use url::{Cloud, RemoteUrl};

/// Maximum number of objects removed by one request.
const DELETE_BATCH: usize = 1000;
/// Number of objects that clouds list per page.
const LIST_PAGE: usize = 1000;
/// A listing may have many pages: as a whole it gets as much time as a transfer of this many bytes.
const LIST_ALLOWANCE: u64 = 64 << 20;

/// Whether [`RemoteStorage::create`] created the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// It was created with the given bytes.
    New,
    /// An object with other contents existed already.
    Existed,
}

/// A listed object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its path.
    pub path: RemotePath,
    /// Size in bytes.
    pub size: u64,
    /// When it was last written, in seconds since 1970.
    pub modified: i64,
}

impl From<ObjectMeta> for Listed {
    fn from(meta: ObjectMeta) -> Self {
        Self { path: meta.location.into(), size: meta.size, modified: meta.last_modified.timestamp() }
    }
}

/// A bucket, or a prefix of one. Cheap to clone.
#[derive(Clone)]
pub struct RemoteStorage {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn ObjectStore>,
    /// Its name in errors.
    url: String,
    options: RemoteOptions,
    budgets: Budgets,
    prices: Prices,
    health: Health,
    given_up: GivenUp,
    spares: PartBufferPool,
    /// The directory of the objects, if they are files.
    directory: Option<Utf8PathBuf>,
}

impl RemoteStorage {
    /// Wraps an open store, such as one created by a test; `url` is its name in errors.
    pub fn with_store(store: Arc<dyn ObjectStore>, url: &str) -> Self {
        Self::with_options(store, url, RemoteOptions::default())
    }

    /// As [`RemoteStorage::with_store`], with the given limits.
    pub fn with_options(store: Arc<dyn ObjectStore>, url: &str, options: RemoteOptions) -> Self {
        Self::new(store, url, options, None)
    }

    /// `directory` is where the objects are, if they are files.
    fn new(store: Arc<dyn ObjectStore>, url: &str, options: RemoteOptions, directory: Option<Utf8PathBuf>) -> Self {
        let prices = if url.starts_with("file:") { Prices::Free } else { Prices::Cloud };
        let budgets = Budgets::new(&options);
        let (health, given_up, spares) = Default::default();
        let url = url.to_owned();
        let inner = Inner { store, url, options, budgets, prices, health, given_up, spares, directory };
        Self { inner: Arc::new(inner) }
    }

    /// The bucket's name in errors.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// The name of an object, for humans.
    pub fn name_of(&self, path: &RemotePath) -> String {
        self.inner.name_of(path)
    }

    /// Reads all of a small object, which must not be longer than `max_len` bytes.
    pub async fn get(&self, class: RequestClass, path: &RemotePath, max_len: u64) -> Result<Bytes, StorageError> {
        self.inner.get(class, path, max_len).await
    }

    /// Reads exactly the bytes `range` of an object.
    pub async fn get_range(
        &self,
        class: RequestClass,
        path: &RemotePath,
        range: Range<u64>,
    ) -> Result<Bytes, StorageError> {
        let wanted = range.end.saturating_sub(range.start);
        if wanted == 0 {
            return Ok(Bytes::new());
        }
        let inner = &self.inner;
        let options = || GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
        let request = Request { class, operation: "get", path, bytes: wanted };
        inner.run(request, || async { inner.body(class, path, options(), |_| range.clone()).await }).await
    }

    /// Writes an object, replacing an existing one. The object is durable when this returns.
    pub async fn put(&self, class: RequestClass, path: &RemotePath, bytes: Bytes) -> Result<(), StorageError> {
        self.inner.replace(class, path, bytes).await
    }

    /// As [`RemoteStorage::put`], for an object that is a sign of life: that a write takes effect late, and hides a
    /// later one, does no harm, so nothing is waited for. One attempt is made, so that these bytes appear once at most.
    pub async fn sign(&self, class: RequestClass, path: &RemotePath, bytes: Bytes) -> Result<(), StorageError> {
        self.inner.sign(class, path, bytes).await
    }

    /// Writes an object unless it exists. `bytes` must differ from those of every other writer, so that a lost reply
    /// can be told apart from an object created by somebody else.
    pub async fn create(&self, class: RequestClass, path: &RemotePath, bytes: Bytes) -> Result<Creation, StorageError> {
        self.inner.create(class, path, bytes).await
    }

    /// Writes an object from a local file, in parts if it is large.
    pub async fn put_file(&self, class: RequestClass, path: &RemotePath, file: &Utf8Path) -> Result<(), StorageError> {
        self.inner.put_file(class, path, file).await
    }

    /// The size of an object in bytes; `None` if it does not exist.
    pub async fn head(&self, class: RequestClass, path: &RemotePath) -> Result<Option<u64>, StorageError> {
        let inner = &self.inner;
        let request = Request { class, operation: "head", path, bytes: 0 };
        let found = inner.run_to_failure(request, || async { Ok(inner.store.head(path.as_path()).await?.size) }).await;
        match found {
            Err(Failed { kind: Kind::NotFound, .. }) => Ok(None),
            found => found.map(Some).map_err(|failed| inner.error(request, failed)),
        }
    }

    /// Lists all objects below `prefix`, recursively, sorted by path.
    pub async fn list(&self, class: RequestClass, prefix: &RemotePath) -> Result<Vec<Listed>, StorageError> {
        self.list_from(class, prefix, None).await
    }

    /// As [`RemoteStorage::list`], but only objects whose paths sort after `after`, which object stores find without
    /// scanning those before.
    pub async fn list_after(
        &self,
        class: RequestClass,
        prefix: &RemotePath,
        after: &RemotePath,
    ) -> Result<Vec<Listed>, StorageError> {
        self.list_from(class, prefix, Some(after)).await
    }

    /// As [`RemoteStorage::list_after`], but only the page that one request returns, in name order.
    pub async fn list_page(
        &self,
        class: RequestClass,
        prefix: &RemotePath,
        after: &RemotePath,
    ) -> Result<Vec<Listed>, StorageError> {
        let inner = &self.inner;
        let request = Request { class, operation: "list", path: prefix, bytes: 0 };
        inner.run(request, || inner.list_page(prefix, after)).await
    }

    async fn list_from(
        &self,
        class: RequestClass,
        prefix: &RemotePath,
        after: Option<&RemotePath>,
    ) -> Result<Vec<Listed>, StorageError> {
        let inner = &self.inner;
        let request = Request { class, operation: "list", path: prefix, bytes: LIST_ALLOWANCE };
        let mut listed = inner.run(request, || inner.list(prefix, after)).await?;
        listed.sort_by(|one, other| one.path.cmp(&other.path));
        listed.dedup_by(|one, other| one.path == other.path);
        Ok(listed)
    }

    /// The names directly below `prefix` that have objects below them, sorted.
    pub async fn list_dirs(&self, class: RequestClass, prefix: &RemotePath) -> Result<Vec<String>, StorageError> {
        let inner = &self.inner;
        let request = Request { class, operation: "list", path: prefix, bytes: 0 };
        let found = inner.run(request, || async {
            inner.store.list_with_delimiter(Some(prefix.as_path())).await.map_err(Failed::of_list)
        });
        let found = found.await?.common_prefixes;
        let mut names: Vec<String> = found.iter().filter_map(|path| path.filename().map(str::to_owned)).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Removes objects. Missing objects are not an error.
    pub async fn delete(&self, paths: &[RemotePath]) -> Result<(), StorageError> {
        for batch in paths.chunks(DELETE_BATCH) {
            self.inner.delete(batch).await?;
        }
        Ok(())
    }
}

impl Inner {
    fn name_of(&self, path: &RemotePath) -> String {
        format!("{}/{path}", self.url.trim_end_matches('/'))
    }

    async fn get(&self, class: RequestClass, path: &RemotePath, max_len: u64) -> Result<Bytes, StorageError> {
        let request = Request { class, operation: "get", path, bytes: max_len };
        let whole = |meta: &ObjectMeta| 0..meta.size.min(max_len.saturating_add(1));
        let bytes = self.run(request, || self.body(class, path, GetOptions::default(), whole)).await?;
        if bytes.len() as u64 > max_len {
            let failed = Failed::malformed(format!("longer than {max_len} bytes, which it cannot be"));
            return Err(self.error(request, failed));
        }
        Ok(bytes)
    }

    /// Reads the bytes requested by `options`, provided that they are all bytes of the range that `expected` returns.
    /// A longer body is truncated.
    async fn body(
        &self,
        class: RequestClass,
        path: &RemotePath,
        options: GetOptions,
        expected: impl Fn(&ObjectMeta) -> Range<u64>,
    ) -> Result<Bytes, Failed> {
        let got = within(self.options.attempt_timeout, self.store.get_opts(path.as_path(), options)).await?;
        let expected = expected(&got.meta);
        if got.range.start != expected.start || got.range.end < expected.end {
            return Err(Failed::malformed(format!("bytes {:?} came instead of {expected:?}", got.range)));
        }
        let wanted = expected.end - expected.start;
        let mut bytes = within(self.time_for(wanted), read_body(got, wanted)).await?;
        METRICS.remote_storage_bytes_in.of(class).inc_by(bytes.len() as u64);
        if (bytes.len() as u64) < wanted {
            return Err(Failed::malformed(format!("{} bytes came instead of {wanted}", bytes.len())));
        }
        bytes.truncate(wanted as usize);
        Ok(bytes)
    }

    /// One attempt. Each page of the listing gets the time of an attempt.
    async fn list(&self, prefix: &RemotePath, after: Option<&RemotePath>) -> Result<Vec<Listed>, Failed> {
        let mut pages = match after {
            Some(after) => self.store.list_with_offset(Some(prefix.as_path()), after.as_path()),
            None => self.store.list(Some(prefix.as_path())),
        };
        let mut listed = Vec::new();
        let limit = self.options.attempt_timeout;
        while let Some(next) = within(limit, pages.try_next().map_err(Failed::of_list)).await? {
            listed.push(next.into());
        }
        Ok(listed)
    }

    /// One attempt to get a page of a listing.
    async fn list_page(&self, prefix: &RemotePath, after: &RemotePath) -> Result<Vec<Listed>, Failed> {
        let pages = self.store.list_with_offset(Some(prefix.as_path()), after.as_path()).map_err(Failed::of_list);
        let page = within(self.options.attempt_timeout, pages.take(LIST_PAGE).try_collect::<Vec<_>>()).await?;
        Ok(page.into_iter().map(Listed::from).collect())
    }

    async fn delete(&self, batch: &[RemotePath]) -> Result<(), StorageError> {
        let Some(first) = batch.first() else { return Ok(()) };
        let request = Request { class: RequestClass::Delete, operation: "delete", path: first, bytes: 0 };
        let delete = || async {
            let paths: Vec<_> = batch.iter().map(|path| Ok(path.as_path().clone())).collect();
            let mut outcomes = self.store.delete_stream(stream::iter(paths).boxed());
            let mut failed = None;
            while let Some(outcome) = outcomes.next().await {
                match outcome.map_err(Failed::from) {
                    Ok(_) | Err(Failed { kind: Kind::NotFound, .. }) => {}
                    Err(failure) => failed = Some(failure),
                }
            }
            failed.map_or(Ok(()), Err)
        };
        self.run(request, delete).await
    }
}

/// The result of `operation`, or a timeout after `limit`.
async fn within<T, E: Into<Failed>>(
    limit: Duration,
    operation: impl Future<Output = Result<T, E>>,
) -> Result<T, Failed> {
    match env::clock::timeout(limit, operation).await {
        Ok(outcome) => outcome.map_err(Into::into),
        Err(_) => Err(Failed::timeout(limit)),
    }
}

/// Reads the first `wanted` bytes of the body.
async fn read_body(got: GetResult, wanted: u64) -> Result<Bytes, Failed> {
    if got.range.end - got.range.start == wanted {
        return Ok(got.bytes().await?);
    }
    let mut stream = got.into_stream();
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < wanted {
        let Some(more) = stream.next().await.transpose()? else { break };
        bytes.extend_from_slice(&more);
    }
    Ok(bytes.into())
}

impl fmt::Debug for RemoteStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteStorage").field(&self.inner.url).finish()
    }
}
