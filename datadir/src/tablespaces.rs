//! The tablespaces of a data directory.

use camino::{Utf8Path, Utf8PathBuf};
use wal_decoder::tablespaces::TablespaceTable;

use super::small_files::{PG_TBLSPC, entries, io_error};
use errors::StorageError;

/// The tablespaces in `pg_tblspc`: symbolic links, or directories if they are in place.
pub(super) fn read(root: &Utf8Path) -> Result<TablespaceTable, StorageError> {
    let mut found = Vec::new();
    for entry in entries(&root.join(PG_TBLSPC))? {
        let Ok(oid) = entry.file_name().parse::<u32>() else { continue };
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        let path = match is_link {
            true => entry.path().read_link_utf8().map_err(|source| io_error("read link", entry.path(), 0, source))?,
            false => Utf8PathBuf::new(),
        };
        found.push((oid, path));
    }
    found.sort();
    let mut table = TablespaceTable::default();
    for (oid, path) in found {
        table.create(oid, path.as_str().as_bytes()).map_err(|error| StorageError::Invalid(error.to_string()))?;
    }
    Ok(table)
}
