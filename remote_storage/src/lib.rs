//! Object storage: one place for paths, budgets, retries and figures of all requests.
//!
//! Everything goes through [`RemoteStorage`], which hides whether the bucket is a directory, S3, or another cloud.
//! Errors tell what the caller must do, by their [`RemoteFailure`](errors::RemoteFailure); whatever may pass by
//! itself was tried again here already.
#![forbid(unsafe_code)]

mod attempts;
mod create;
mod credentials;
mod directory;
mod failed;
mod given_up;
mod health;
mod open;
mod options;
mod part_buffers;
mod path;
mod prices;
mod replace;
mod request;
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
use part_buffers::PartBufferPool;
pub use path::{INDEX_PART_PREFIX, ORIGIN_PREFIX, RemotePath};
use prices::Prices;
use request::Request;
pub use unfinished::UnfinishedWrite;
pub use url::{Cloud, RemoteUrl};

/// Objects that are removed by one request.
const DELETE_BATCH: usize = 1000;
/// Objects that clouds list at once.
const LIST_PAGE: usize = 1000;
/// A list may have many pages: all of it is given as much time as this many bytes.
const LIST_ALLOWANCE: u64 = 64 << 20;

/// Whether [`RemoteStorage::create`] made the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// Yes, with the bytes given.
    New,
    /// No: one with other contents was there.
    Existed,
}

/// An object as a listing tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Where it is.
    pub path: RemotePath,
    /// Size in bytes.
    pub size: u64,
    /// When it was written, in seconds since 1970.
    pub modified: i64,
}

impl From<ObjectMeta> for Listed {
    fn from(meta: ObjectMeta) -> Self {
        Self { path: meta.location.into(), size: meta.size, modified: meta.last_modified.timestamp() }
    }
}

/// A bucket, or a part of one. Cheap to clone.
#[derive(Clone)]
pub struct RemoteStorage {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn ObjectStore>,
    /// What errors name it.
    url: String,
    options: RemoteOptions,
    budgets: Budgets,
    prices: Prices,
    health: Health,
    given_up: GivenUp,
    spares: PartBufferPool,
    /// Where objects are files.
    directory: Option<Utf8PathBuf>,
}

impl RemoteStorage {
    /// A store that is open already, such as one that a test has made; `url` is what errors call it.
    pub fn with_store(store: Arc<dyn ObjectStore>, url: &str) -> Self {
        Self::with_options(store, url, RemoteOptions::default())
    }

    /// Like [`RemoteStorage::with_store`], with limits of one's own.
    pub fn with_options(store: Arc<dyn ObjectStore>, url: &str, options: RemoteOptions) -> Self {
        Self::new(store, url, options, None)
    }

    /// `directory` is where objects are files, if they are.
    fn new(store: Arc<dyn ObjectStore>, url: &str, options: RemoteOptions, directory: Option<Utf8PathBuf>) -> Self {
        let prices = if url.starts_with("file:") { Prices::Free } else { Prices::Cloud };
        let budgets = Budgets::new(&options);
        let (health, given_up, spares) = Default::default();
        let url = url.to_owned();
        let inner = Inner { store, url, options, budgets, prices, health, given_up, spares, directory };
        Self { inner: Arc::new(inner) }
    }

    /// What the store is called.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// The name of an object, for people.
    pub fn name_of(&self, path: &RemotePath) -> String {
        self.inner.name_of(path)
    }

    /// The whole of a small object, which must not be longer than `max_len` bytes.
    pub async fn get(&self, class: RequestClass, path: &RemotePath, max_len: u64) -> Result<Bytes, StorageError> {
        self.inner.get(class, path, max_len).await
    }

    /// Exactly the bytes `range` of an object.
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

    /// Writes an object, replacing one that may be there. When this returns the object is durable.
    pub async fn put(&self, class: RequestClass, path: &RemotePath, bytes: Bytes) -> Result<(), StorageError> {
        self.inner.replace(class, path, bytes).await
    }

    /// Writes an object unless there is one. `bytes` must be unlike those of anybody else, so that a reply that was
    /// lost is told apart from another one's object.
    pub async fn create(&self, class: RequestClass, path: &RemotePath, bytes: Bytes) -> Result<Creation, StorageError> {
        self.inner.create(class, path, bytes).await
    }

    /// Writes an object from a local file, in parts if it is large.
    pub async fn put_file(&self, class: RequestClass, path: &RemotePath, file: &Utf8Path) -> Result<(), StorageError> {
        self.inner.put_file(class, path, file).await
    }

    /// The size of an object in bytes, `None` if there is none.
    pub async fn head(&self, class: RequestClass, path: &RemotePath) -> Result<Option<u64>, StorageError> {
        let inner = &self.inner;
        let request = Request { class, operation: "head", path, bytes: 0 };
        let found = inner.run_to_failure(request, || async { Ok(inner.store.head(path.as_path()).await?.size) }).await;
        match found {
            Err(Failed { kind: Kind::NotFound, .. }) => Ok(None),
            found => found.map(Some).map_err(|failed| inner.error(request, failed)),
        }
    }

    /// All objects below `prefix`, however deep, sorted by path.
    pub async fn list(&self, class: RequestClass, prefix: &RemotePath) -> Result<Vec<Listed>, StorageError> {
        self.list_from(class, prefix, None).await
    }

    /// As [`RemoteStorage::list`], but only those whose paths come after `after`, which stores find without going
    /// through all that comes before.
    pub async fn list_after(
        &self,
        class: RequestClass,
        prefix: &RemotePath,
        after: &RemotePath,
    ) -> Result<Vec<Listed>, StorageError> {
        self.list_from(class, prefix, Some(after)).await
    }

    /// As [`RemoteStorage::list_after`], but only what one request gives, in the order of names.
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

    /// The names directly below `prefix` that have something below them, sorted.
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

    /// Removes objects. Those that are not there are no error.
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

    /// The bytes that `options` ask for, if they are those of the range that `expected` gives, and all of them. A body
    /// that is longer is cut.
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

    /// One attempt. Each page of the list has the time of an attempt.
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

    /// One attempt at a page of a list.
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

/// What `operation` gives, if it does in time.
async fn within<T, E: Into<Failed>>(
    limit: Duration,
    operation: impl Future<Output = Result<T, E>>,
) -> Result<T, Failed> {
    match env::clock::timeout(limit, operation).await {
        Ok(outcome) => outcome.map_err(Into::into),
        Err(_) => Err(Failed::timeout(limit)),
    }
}

/// The body, of which `wanted` bytes are needed.
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
