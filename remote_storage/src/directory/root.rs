//! The place of a bucket that is a directory: whether it is still there, and calls of the file system in it.

use std::io;
use std::os::unix::fs::MetadataExt;

use camino::{Utf8Path, Utf8PathBuf};
use futures_util::stream::{BoxStream, StreamExt};
use futures_util::{TryStreamExt, future, stream};
use object_store::{Error, Result};

/// The directory as found when it was opened.
#[derive(Clone, Debug)]
pub(super) struct Root {
    path: Utf8PathBuf,
    inode: u64,
}

impl Root {
    /// The directory at `path`, which must be there.
    pub(super) fn at(path: &Utf8Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), inode: std::fs::metadata(path)?.ino() })
    }

    pub(super) fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Fails if it is away.
    pub(super) fn check(&self) -> Result<()> {
        match std::fs::metadata(&self.path) {
            Ok(found) if found.ino() == self.inode => Ok(()),
            Ok(_) => Err(self.away("another directory is in its place".into())),
            Err(error) => Err(self.away(error.into())),
        }
    }

    fn away(&self, source: Box<dyn std::error::Error + Send + Sync>) -> Error {
        let source = format!("the directory {} is away: {source}", self.path).into();
        Error::Generic { store: "Directory", source }
    }

    /// Runs `operation`; its result counts only if the directory was there before and after.
    pub(super) async fn during<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        self.check()?;
        let outcome = operation.await;
        self.check().and(outcome)
    }

    /// As [`Root::during`], of a stream: it ends with an error if the directory is away.
    pub(super) fn during_stream<T: Send + 'static>(
        &self,
        stream: BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        let check = |root: Self| stream::once(async move { root.check() }).try_filter_map(|()| future::ok(None));
        check(self.clone()).chain(stream).chain(check(self.clone())).boxed()
    }
}

/// The store's error for one of the file system.
pub(super) fn failed(error: io::Error) -> Error {
    Error::Generic { store: "Directory", source: error.into() }
}

/// Makes calls of the file system where these hold nobody up.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match env::spawn::blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::Generic { store: "Directory", source: error.into() }),
    }
}
