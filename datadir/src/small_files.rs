//! Small files, directory listings, and their errors.

use camino::{Utf8DirEntry, Utf8Path};

use errors::StorageError;

/// The directory of links to tablespaces.
pub(super) const PG_TBLSPC: &str = "pg_tblspc";

/// Reads a whole file, if it exists.
///
/// # Errors
///
/// [`StorageError::Io`] with the path if it exists and cannot be read.
pub fn read_optional(path: &Utf8Path) -> Result<Option<Vec<u8>>, StorageError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(io_error("read", path, 0, source)),
    }
}

pub(super) fn io_error(operation: &'static str, path: &Utf8Path, offset: u64, source: std::io::Error) -> StorageError {
    StorageError::Io { operation, path: path.to_owned(), offset, source }
}

/// The error for a file that is damaged at `offset`.
pub fn corrupt(path: &Utf8Path, offset: u64, reason: impl Into<String>) -> StorageError {
    StorageError::Corrupt { path: path.to_owned(), offset, reason: reason.into() }
}

/// Entries of a directory, none if it does not exist.
pub(super) fn entries(dir: &Utf8Path) -> Result<Vec<Utf8DirEntry>, StorageError> {
    let failed = |source| io_error("list directory", dir, 0, source);
    match dir.read_dir_utf8() {
        Ok(entries) => entries.collect::<Result<_, _>>().map_err(failed),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(error)),
    }
}
