//! The boot image: what a compute starts with. A tar archive that is laid out as a compute's directory:
//!
//! * `upper/...`: all of a data directory but the relations' contents, as of a server that was shut down at an LSN;
//! * `pg_wal/...`: its WAL, which is one record;
//! * `boot/manifest` ([`Manifest`]): which relation files there are, and how large;
//! * `boot/catalog.index` ([`CatalogIndex`]) and `boot/catalog.pages`: blocks that every server reads when it starts,
//!   so that the first query needs few round trips;
//! * `boot/sums` ([`Sums`]), the last: size and CRC-32C of every file before.
//!
//! Whoever unpacks it has all of it if the sums are right. Bytes in, values or errors out: nothing here opens a file.

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

/// Directory of what overlays the relations.
pub const UPPER_DIR: &str = "upper";
/// The list of relation files.
pub const MANIFEST_NAME: &str = "boot/manifest";
/// Which blocks came along.
pub const CATALOG_INDEX_NAME: &str = "boot/catalog.index";
/// Their contents, one after the other in the order of the index.
pub const CATALOG_PAGES_NAME: &str = "boot/catalog.pages";
/// The list of all other files with their checksums.
pub const SUMS_NAME: &str = "boot/sums";
