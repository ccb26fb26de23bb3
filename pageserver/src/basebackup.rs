//! A data directory from which a stock Postgres starts, as a tar stream.
//!
//! The directory is that of a server that was shut down at LSN L: its control file says so, and its only WAL segment
//! has nothing but the record of the shutdown checkpoint at L. So Postgres needs no recovery, and writes on from there.
//! `StartupXLOG` in `xlog.c` is what looks at it.
//!
//! * [`server_files`]: control file and WAL, generated.
//! * [`contents`]: all other files, from the timeline.
//! * [`catalog`]: blocks that come along in a boot image.
//! * [`tar`], [`gzip`]: on their way out. Memory is bounded: a [`Sink`] takes one piece after the other.

mod catalog;
mod contents;
mod gzip;
mod relations;
mod server_files;
mod tar;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;

use bytes::Bytes;
use utils::lsn::Lsn;

use crate::errors::StorageError;
use crate::pgdata::PageStore;

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

/// Writes the archive to `sink`.
pub async fn write<S: PageStore, W: Sink>(store: &S, request: BackupRequest, sink: &mut W) -> Result<(), BackupError> {
    let layout = match request.extent {
        Extent::BootImage => tar::Layout::Compute,
        Extent::WithoutRelations | Extent::Full => tar::Layout::DataDirectory,
    };
    if !request.gzip {
        return contents::write(store, request, &mut tar::Tar::new(sink, layout)).await;
    }
    let mut gzip = gzip::Gzip::new(sink);
    contents::write(store, request, &mut tar::Tar::new(&mut gzip, layout)).await?;
    Ok(gzip.finish().await?)
}
