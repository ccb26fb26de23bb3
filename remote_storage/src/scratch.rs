//! A bucket that is only read: what is written goes to a directory, and what is removed is only hidden. So a second
//! server can try things on what a live one serves, and nobody notices.
//!
//! Objects that the live server removes are gone here too.
//!
//! [`Scratch::forget`] makes it look like the one below it again.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use camino::Utf8Path;
use futures_util::stream::{BoxStream, StreamExt};
use futures_util::{FutureExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

use super::directory::Directory;
use errors::StorageError;

/// Two stores that look like one.
#[derive(Clone, Debug)]
pub(super) struct Scratch {
    /// Is only read.
    base: Arc<dyn ObjectStore>,
    /// What was written.
    own: Directory,
    /// An empty object for each one that was removed.
    marks: Directory,
    removed: Arc<Mutex<BTreeSet<Path>>>,
}

impl Scratch {
    /// Puts `dir` in front of `base`, with what it has from earlier.
    pub(super) async fn open(base: Arc<dyn ObjectStore>, dir: &Utf8Path) -> std::result::Result<Self, StorageError> {
        let (own, marks) = (Directory::open(&dir.join("written")).await?, Directory::open(&dir.join("removed")).await?);
        let listed: Result<Vec<ObjectMeta>> = marks.list(None).try_collect().await;
        let wrong = |error| StorageError::Invalid(format!("remote_storage_scratch {dir}: {error}"));
        let removed = listed.map_err(wrong)?.into_iter().map(|mark| mark.location).collect();
        Ok(Self { base, own, marks, removed: Arc::new(Mutex::new(removed)) })
    }

    fn is_removed(&self, path: &Path) -> bool {
        self.removed.lock().contains(path)
    }

    /// Hides an object of the base.
    async fn hide(&self, path: &Path) -> Result<()> {
        self.marks.put(path, PutPayload::new()).await?;
        self.removed.lock().insert(path.clone());
        Ok(())
    }

    async fn unhide(&self, path: &Path) -> Result<()> {
        if self.is_removed(path) {
            self.marks.delete(path).await?;
            self.removed.lock().remove(path);
        }
        Ok(())
    }

    async fn is_there(&self, path: &Path) -> Result<bool> {
        match self.head(path).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Forgets what was written and removed below `prefix`.
    pub(super) async fn forget(&self, prefix: &Path) -> Result<()> {
        for directory in [&self.own, &self.marks] {
            let all: Vec<ObjectMeta> = directory.list(Some(prefix)).try_collect().await?;
            for object in all {
                directory.delete(&object.location).await?;
            }
        }
        self.removed.lock().retain(|path| !path.prefix_matches(prefix));
        Ok(())
    }

    async fn remove(&self, path: Path) -> Result<Path> {
        self.hide(&path).await?;
        match self.own.delete(&path).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(path),
            Err(error) => Err(error),
        }
    }

    /// Of what the base has, what is neither hidden nor replaced, after all that was written.
    fn merge(&self, own: Vec<ObjectMeta>, base: Vec<ObjectMeta>) -> Vec<ObjectMeta> {
        let replaced: BTreeSet<Path> = own.iter().map(|object| object.location.clone()).collect();
        let stays = |object: &ObjectMeta| !replaced.contains(&object.location) && !self.is_removed(&object.location);
        own.into_iter().chain(base.into_iter().filter(stays)).collect()
    }
}

#[async_trait]
impl ObjectStore for Scratch {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if options.mode == PutMode::Create && self.is_there(path).await? {
            let source = "it is there".into();
            return Err(Error::AlreadyExists { path: path.to_string(), source });
        }
        let put = self.own.put_opts(path, payload, options).await?;
        self.unhide(path).await?;
        Ok(put)
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.unhide(path).await?;
        self.own.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        match self.own.get_opts(path, options.clone()).await {
            Err(Error::NotFound { .. }) if !self.is_removed(path) => self.base.get_opts(path, options).await,
            other => other,
        }
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let scratch = self.clone();
        let remove = move |path| {
            let scratch = scratch.clone();
            async move { scratch.remove(path).await }
        };
        paths.and_then(remove).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (scratch, prefix) = (self.clone(), prefix.cloned());
        let whole = async move {
            let own: Vec<ObjectMeta> = scratch.own.list(prefix.as_ref()).try_collect().await?;
            let base: Vec<ObjectMeta> = scratch.base.list(prefix.as_ref()).try_collect().await?;
            Ok::<_, Error>(stream::iter(scratch.merge(own, base).into_iter().map(Ok)))
        };
        whole.into_stream().try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let own = self.own.list_with_delimiter(prefix).await?;
        let mut all = self.base.list_with_delimiter(prefix).await?;
        all.objects = self.merge(own.objects, all.objects);
        let common: BTreeSet<Path> = all.common_prefixes.into_iter().chain(own.common_prefixes).collect();
        all.common_prefixes = common.into_iter().collect();
        Ok(all)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        if self.own.head(from).await.is_err() {
            return Err(Error::NotImplemented { operation: "copy".to_owned(), implementer: self.to_string() });
        }
        self.own.copy_opts(from, to, options).await?;
        self.unhide(to).await
    }
}

impl fmt::Display for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scratch({} over {})", self.own, self.base)
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    async fn text(store: &dyn ObjectStore, path: &str) -> Option<String> {
        let got = store.get(&Path::from(path)).await.ok()?;
        Some(String::from_utf8(got.bytes().await.unwrap().to_vec()).unwrap())
    }

    async fn names(store: &dyn ObjectStore) -> Vec<String> {
        let listed: Vec<ObjectMeta> = store.list(None).try_collect().await.unwrap();
        let mut names: Vec<String> = listed.into_iter().map(|object| object.location.to_string()).collect();
        names.sort();
        names
    }

    /// A bucket with `a/1`, `a/2` and `b/1`, and a scratch directory before it.
    async fn both(dir: &Utf8Path) -> (Arc<InMemory>, Scratch) {
        let base = Arc::new(InMemory::new());
        for path in ["a/1", "a/2", "b/1"] {
            base.put(&Path::from(path), format!("base {path}").into()).await.unwrap();
        }
        let scratch = Scratch::open(base.clone(), dir).await.unwrap();
        (base, scratch)
    }

    #[tokio::test]
    async fn what_is_written_and_removed_is_seen_here_and_not_there() {
        let dir = camino_tempfile::tempdir().unwrap();
        let (base, scratch) = both(dir.path()).await;
        scratch.put(&Path::from("a/1"), "own".into()).await.unwrap();
        scratch.put(&Path::from("c/1"), "new".into()).await.unwrap();
        let gone = stream::iter(["a/2", "c/1", "d/never"].map(|path| Ok(Path::from(path)))).boxed();
        let removed: Vec<Path> = scratch.delete_stream(gone).try_collect().await.unwrap();
        assert_eq!(removed.len(), 3);
        scratch.put(&Path::from("c/1"), "again".into()).await.unwrap();

        let check = async |scratch: &Scratch| {
            assert_eq!(names(scratch).await, ["a/1", "b/1", "c/1"]);
            assert_eq!(text(scratch, "a/1").await.as_deref(), Some("own"));
            assert_eq!(text(scratch, "a/2").await, None);
            assert_eq!(text(scratch, "b/1").await.as_deref(), Some("base b/1"));
            assert_eq!(text(scratch, "c/1").await.as_deref(), Some("again"));
            let dirs = scratch.list_with_delimiter(None).await.unwrap().common_prefixes;
            assert_eq!(dirs, ["a", "b", "c"].map(Path::from));
            let below = scratch.list_with_delimiter(Some(&Path::from("a"))).await.unwrap().objects;
            assert_eq!(below.iter().map(|object| object.size).collect::<Vec<_>>(), [3]);
        };
        check(&scratch).await;
        drop(scratch);
        check(&Scratch::open(base.clone(), dir.path()).await.unwrap()).await;
        assert_eq!(names(&*base).await, ["a/1", "a/2", "b/1"], "the bucket has changed");
        assert_eq!(text(&*base, "a/1").await.as_deref(), Some("base a/1"));
    }

    #[tokio::test]
    async fn what_is_forgotten_shows_the_bucket_again() {
        let dir = camino_tempfile::tempdir().unwrap();
        let (base, scratch) = both(dir.path()).await;
        for path in ["a/1", "a/3", "b/1"] {
            scratch.put(&Path::from(path), "own".into()).await.unwrap();
        }
        scratch.delete(&Path::from("a/2")).await.unwrap();
        base.put(&Path::from("a/4"), "later".into()).await.unwrap();
        scratch.forget(&Path::from("a")).await.unwrap();
        assert_eq!(names(&scratch).await, ["a/1", "a/2", "a/4", "b/1"]);
        assert_eq!(text(&scratch, "a/1").await.as_deref(), Some("base a/1"));
        assert_eq!(text(&scratch, "b/1").await.as_deref(), Some("own"));
        scratch.put(&Path::from("a/1"), "own".into()).await.unwrap();
        assert_eq!(text(&scratch, "a/1").await.as_deref(), Some("own"));
        assert_eq!(text(&*base, "a/1").await.as_deref(), Some("base a/1"));
    }

    #[tokio::test]
    async fn only_what_is_nowhere_is_created() {
        let dir = camino_tempfile::tempdir().unwrap();
        let (_base, scratch) = both(dir.path()).await;
        let create = async |path: &str| {
            let put = scratch.put_opts(&Path::from(path), "new".into(), PutMode::Create.into()).await;
            match put {
                Ok(_) => true,
                Err(Error::AlreadyExists { .. }) => false,
                Err(error) => panic!("{error}"),
            }
        };
        assert!(!create("a/1").await, "the bucket has it");
        assert!(create("a/3").await && !create("a/3").await);
        scratch.delete(&Path::from("a/1")).await.unwrap();
        assert!(create("a/1").await, "it was removed");
        let mut upload = scratch.put_multipart_opts(&Path::from("a/2"), PutMultipartOptions::default()).await.unwrap();
        upload.put_part("part".into()).await.unwrap();
        assert_eq!(text(&scratch, "a/2").await.as_deref(), Some("base a/2"));
        upload.complete().await.unwrap();
        assert_eq!(text(&scratch, "a/2").await.as_deref(), Some("part"));
    }
}
