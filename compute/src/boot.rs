//! Turns a boot image into the directory of a compute.
//!
//! The archive is unpacked as it arrives, and trusted once all its checksums match; then the manifest and the catalog
//! blocks are written to the files that the file system reads.

mod error;
mod unpack;

use std::io;
use std::path::Path;

use pageserver_api::boot_image::{CATALOG_INDEX_NAME, CATALOG_PAGES_NAME, CatalogIndex, MANIFEST_NAME, Manifest};
use pageserver_api::reltag::RelTag;
use pageserver_client::{BackupStream, ClientError, PageServer};

pub use error::BootError;
use error::io_error;

use crate::BLOCK;
use crate::catalog::CatalogWriter;
use crate::layout::Layout;
use crate::private;
use crate::source::servers::Servers;
use crate::source::timeline_at::TimelineAt;
use crate::source::{RelFork, RelationFile};

/// The contents of a boot image.
#[derive(Clone, Debug)]
pub struct Booted {
    /// The manifest: the relations and the properties of the cluster.
    pub manifest: Manifest,
    /// Number of blocks that the image contained.
    pub catalog_blocks: usize,
    /// Total size of the archive's files, in bytes.
    pub bytes: u64,
}

/// Fills the directory of a compute, which must exist and be empty, from the first server that has the timeline.
pub async fn fetch(servers: &Servers, at: &TimelineAt, layout: &Layout) -> Result<Booted, BootError> {
    let mut failed = None;
    for (_, server) in servers.in_turn() {
        match server.boot_image(at.tenant, at.timeline, at.lsn, false).await {
            Ok(stream) => return unpacked(stream, layout).await,
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.unwrap_or_else(|| ClientError::Config("there is no page server".into())).into())
}

async fn unpacked(stream: BackupStream, layout: &Layout) -> Result<Booted, BootError> {
    let bytes = unpack::unpack(stream, layout.root()).await?;
    let layout = layout.clone();
    let finished = env::spawn::blocking(move || finish(&layout)).await;
    let (manifest, catalog_blocks) = finished.map_err(|error| BootError::Io {
        path: "boot image".to_owned(),
        source: io::Error::other(error.to_string()),
    })??;
    Ok(Booted { manifest, catalog_blocks, bytes })
}

/// Fetches only the manifest.
pub(crate) async fn manifest(server: &PageServer, at: &TimelineAt) -> Result<Manifest, BootError> {
    let stream = server.boot_image(at.tenant, at.timeline, at.lsn, false).await?;
    let bytes = unpack::one_file(stream, MANIFEST_NAME).await?;
    Ok(Manifest::decode(&bytes)?)
}

/// Converts the manifest to the form that the file system needs.
pub(crate) fn relation_files(manifest: &Manifest) -> Vec<RelationFile> {
    let file = |entry: &pageserver_api::boot_image::RelationSize| RelationFile {
        path: manifest.path(entry.rel),
        rel: rel_fork(entry.rel),
        blocks: entry.blocks,
    };
    manifest.relations.iter().map(file).collect()
}

fn rel_fork(rel: RelTag) -> RelFork {
    RelFork { spc: rel.spcnode, db: rel.dbnode, rel: rel.relnode, fork: rel.forknum }
}

/// Moves files that exist only for the transfer to where they belong.
fn finish(layout: &Layout) -> Result<(Manifest, usize), BootError> {
    let read = |name: &str| {
        let path = layout.root().join(name);
        std::fs::read(&path).map_err(io_error(&path))
    };
    let manifest = Manifest::decode(&read(MANIFEST_NAME)?)?;
    let (index, pages) = (CatalogIndex::decode(&read(CATALOG_INDEX_NAME)?)?, read(CATALOG_PAGES_NAME)?);
    let path = layout.manifest();
    crate::manifest::write(&path, &relation_files(&manifest)).map_err(io_error(&path))?;
    let path = layout.catalog();
    write_catalog(&path, &index, &pages).map_err(io_error(&path))?;
    let link = layout.upper().join("pg_wal");
    std::os::unix::fs::symlink("../pg_wal", &link).map_err(io_error(&link))?;
    let boot = layout.root().join("boot");
    std::fs::remove_dir_all(&boot).map_err(io_error(&boot))?;
    Ok((manifest, index.0.len()))
}

fn write_catalog(path: &Path, index: &CatalogIndex, pages: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), private::make_dirs)?;
    let mut writer = CatalogWriter::create(path)?;
    for (entry, page) in index.0.iter().zip(pages.chunks(BLOCK)) {
        writer.add(rel_fork(entry.rel), entry.block, page)?;
    }
    writer.finish()
}
