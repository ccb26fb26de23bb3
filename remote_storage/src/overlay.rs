//! A bucket that is only read, for a part of a server that must not change it: see [`Scratch`].

use std::sync::Arc;

use camino::Utf8Path;

use super::scratch::Scratch;
use super::{RemotePath, RemoteStorage};
use errors::StorageError;

/// A bucket that is only read, with a directory before it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Overlay {
    storage: RemoteStorage,
    scratch: Scratch,
}

impl Overlay {
    /// Puts `dir` in front of `base`, with what it has from earlier.
    ///
    /// # Errors
    /// If the directory cannot be created or read.
    pub async fn open(base: &RemoteStorage, dir: &Utf8Path) -> Result<Self, StorageError> {
        let scratch = Scratch::open(Arc::clone(&base.inner.store), dir).await?;
        let storage = RemoteStorage::with_options(Arc::new(scratch.clone()), base.url(), base.inner.options.clone());
        Ok(Self { storage, scratch })
    }

    /// Both, as one bucket.
    pub fn storage(&self) -> &RemoteStorage {
        &self.storage
    }

    /// Forgets what was written and removed below `prefix`: what the bucket has there is seen again. Nobody may use
    /// what is there meanwhile.
    ///
    /// # Errors
    /// Those of the directory.
    pub async fn forget(&self, prefix: &RemotePath) -> Result<(), StorageError> {
        let forgotten = self.scratch.forget(prefix.as_path()).await;
        forgotten.map_err(|error| StorageError::Invalid(format!("what was written before {prefix} stays: {error}")))
    }
}
