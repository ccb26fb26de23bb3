//! A data directory that a stock Postgres can start from, as a tar stream.
//!
//! The directory is that of a server that was shut down at LSN L: its control file says so, and its only WAL segment
//! contains nothing but the shutdown checkpoint record at L. Postgres therefore needs no recovery, and continues
//! writing from there. These are the requirements of `StartupXLOG` in `xlog.c`.
//!
//! * [`server_files`]: control file and WAL, generated.
//! * [`settings`]: configuration files.
//! * [`contents`]: all other files, from the timeline.
//! * [`catalog`]: catalog blocks that are included in a boot image.
//! * [`tar`], [`gzip`]: output. Memory is bounded: a [`Sink`] takes one piece at a time.

mod catalog;
mod cluster;
mod contents;
mod gzip;
mod relations;
mod request;
mod server_files;
mod settings;
mod tar;
#[cfg(test)]
mod tests;

use crate::store::PageStore;
pub use request::{BackupError, BackupRequest, Extent, Sink};

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
