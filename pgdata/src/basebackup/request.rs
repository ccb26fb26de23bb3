//! Backup requests, and the destination of the archive.

use std::future::Future;
use std::io;

use bytes::Bytes;
use utils::lsn::Lsn;

use errors::StorageError;

/// Which files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All but relations. Unlogged relations are included, since they cannot be had from anywhere else.
    WithoutRelations,
    /// All files.
    Full,
    /// All but relations, laid out as a compute's directory, with a manifest of the relations: see
    /// [`pageserver_api::boot_image`].
    BootImage,
}

/// A request for a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupRequest {
    /// The LSN of the backup; it must be readable.
    pub lsn: Lsn,
    /// Start of the record that ends at `lsn`; 0/0 if unknown.
    pub prev: Lsn,
    /// Which files.
    pub extent: Extent,
    /// Whether the archive is compressed.
    pub gzip: bool,
}

/// Why a backup was not finished. Whatever has been written is then unusable.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The timeline could not be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The receiver is gone.
    #[error("cannot send the backup: {0}")]
    Sink(#[from] io::Error),
}

/// Takes the bytes of the archive.
pub trait Sink: Send {
    /// Takes the next bytes; waits while too many are still in flight.
    fn write(&mut self, bytes: Bytes) -> impl Future<Output = io::Result<()>> + Send;
}
