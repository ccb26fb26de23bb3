//! `backup_label`: where a base backup starts.

use camino::Utf8Path;
use utils::lsn::Lsn;

use super::small_files::{corrupt, read_optional};
use errors::StorageError;

/// Contents of a `backup_label` file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupLabel {
    /// WAL must be replayed from here. The files are consistent only at the end of the backup.
    pub start: Lsn,
    /// The checkpoint record that the backup starts with.
    pub checkpoint: Lsn,
}

/// Reads the file, if there is one.
pub(super) fn read(path: &Utf8Path) -> Result<Option<BackupLabel>, StorageError> {
    let Some(bytes) = read_optional(path)? else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let lsn = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let lsn = line.and_then(|line| line.split(' ').next()?.parse::<Lsn>().ok());
        lsn.ok_or_else(|| corrupt(path, 0, format!("no line with a valid {name:?}")))
    };
    Ok(Some(BackupLabel { start: lsn("START WAL LOCATION")?, checkpoint: lsn("CHECKPOINT LOCATION")? }))
}
