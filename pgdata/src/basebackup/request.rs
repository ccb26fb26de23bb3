//! What backup is wanted, and where it goes.

use std::future::Future;
use std::io;

use bytes::Bytes;
use utils::lsn::Lsn;

use errors::StorageError;

/// Which files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All but relations; those of unlogged relations are there, since nobody else has them.
    WithoutRelations,
    /// All.
    Full,
    /// All but relations, laid out as the directory of a compute, with a manifest of the relations: see
    /// [`pageserver_api::boot_image`].
    BootImage,
}

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupRequest {
    /// As of when: an LSN that can be read.
    pub lsn: Lsn,
    /// Start of the record that ends there; 0/0 if it is not known.
    pub prev: Lsn,
    /// Which files.
    pub extent: Extent,
    /// Whether the archive is compressed.
    pub gzip: bool,
}

/// Why a backup was not finished. What has been written is of no use then.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The timeline could not be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Nobody takes the bytes.
    #[error("cannot send the backup: {0}")]
    Sink(#[from] io::Error),
}

/// Takes the bytes of the archive.
pub trait Sink: Send {
    /// Takes the next bytes; waits while too many are still on their way.
    fn write(&mut self, bytes: Bytes) -> impl Future<Output = io::Result<()>> + Send;
}
