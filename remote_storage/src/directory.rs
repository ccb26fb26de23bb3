//! A directory as an object store, which may become unavailable like any bucket: unmounted, or moved.
//!
//! Without checks of the directory itself, the objects of an unavailable directory would appear not to exist, and a
//! write would create another directory in its place.

mod listing;
mod root;
#[allow(clippy::disallowed_methods, reason = "objects are no files of the engine; `LocalFileSystem` does the same")]
mod upload;

use std::fmt;

use async_trait::async_trait;
use camino::Utf8Path;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use errors::StorageError;
use root::Root;
pub(super) use upload::PIECE;
use upload::Upload;
use virtual_file::fs;

/// A directory whose files are objects.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    files: LocalFileSystem,
    root: Root,
}

impl Directory {
    /// Creates the directory if it does not exist. A new one is accessible to its owner only: objects may contain
    /// passwords.
    pub(super) async fn open(path: &Utf8Path) -> std::result::Result<Self, StorageError> {
        let is_new = !path.exists();
        fs::create_dir_all(path).await?;
        if is_new {
            fs::make_private(path).await?;
        }
        fs::fsync_dir(path.parent().unwrap_or(Utf8Path::new("/"))).await?;
        let error = |source| StorageError::Io { operation: "open", path: path.to_owned(), offset: 0, source };
        let root = Root::at(path).map_err(error)?;
        let files = LocalFileSystem::new_with_prefix(path.as_std_path());
        let files = files.map_err(|cause| error(std::io::Error::other(cause)))?.with_fsync(true);
        Ok(Self { files, root })
    }
}

#[async_trait]
impl ObjectStore for Directory {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        if payload.content_length() > PIECE && matches!(options.mode, PutMode::Overwrite) {
            let mut upload = self.put_multipart_opts(path, PutMultipartOptions::default()).await?;
            upload.put_part(payload).await?;
            return upload.complete().await;
        }
        self.root.during(self.files.put_opts(path, payload, options)).await
    }

    async fn put_multipart_opts(&self, path: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let (file, depth) = (self.files.path_to_filesystem(path)?, path.parts().count().saturating_sub(1));
        let upload = Upload::begin(self.root.clone(), file, depth).await?;
        Ok(Box::new(upload))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.root.during(self.files.get_opts(path, options)).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.root.during_stream(self.files.delete_stream(paths))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.root.during_stream(self.files.list(prefix))
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.root.during_stream(match prefix {
            Some(prefix) => listing::sorted_after(self.files.clone(), prefix.clone(), offset.clone()),
            None => self.files.list_with_offset(None, offset),
        })
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.root.during(self.files.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.root.during(self.files.copy_opts(from, to, options)).await
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Directory({})", self.root.path())
    }
}
