//! The boot image that a compute starts from: a tar archive laid out like a compute's directory:
//!
//! * `upper/...`: a data directory without the contents of relations, as of a server that was shut down at an LSN;
//! * `pg_wal/...`: its WAL, a single record;
//! * `boot/manifest` ([`Manifest`]): the relation files and their sizes;
//! * `boot/catalog.index` ([`CatalogIndex`]) and `boot/catalog.pages`: blocks that every server reads at startup,
//!   included so that the first query needs few round trips;
//! * `boot/sums` ([`Sums`]), the last file: size and CRC-32C of every file before it.
//!
//! An unpacked image is complete if the sums match. This module only encodes and decodes bytes; it opens no files.

mod catalog;
mod error;
mod manifest;
mod reader;
mod sums;
#[cfg(test)]
mod tests;

pub use catalog::{CatalogBlock, CatalogIndex};
pub use error::BootImageError;
pub use manifest::{Manifest, RelationSize};
pub use sums::{Sum, Sums};

/// Directory of the files that overlay the relations.
pub const UPPER_DIR: &str = "upper";
/// The list of relation files.
pub const MANIFEST_NAME: &str = "boot/manifest";
/// Lists the blocks that are included.
pub const CATALOG_INDEX_NAME: &str = "boot/catalog.index";
/// Contents of these blocks, concatenated in index order.
pub const CATALOG_PAGES_NAME: &str = "boot/catalog.pages";
/// List of all other files with their checksums.
pub const SUMS_NAME: &str = "boot/sums";
