//! Files that survive a crash: written to a temporary file, synced, renamed, and the directory synced.

#![allow(clippy::disallowed_methods, reason = "below the engine, whose seam for files is above")]

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Makes the entries of directory `dir` durable.
pub fn fsync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Replaces the file `path` with `contents` so that a crash leaves the old or the new contents, never a mixture.
///
/// Writes `path` + `.tmp` first; both must be on one file system. Errors leave the old file in place.
pub fn replace_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut temp_name = path.as_os_str().to_owned();
    temp_name.push(".tmp");
    let temp = Path::new(&temp_name);
    let mut file = File::create(temp)?;
    file.write_all(contents)?;
    file.sync_all()?;
    drop(file);
    rename_durably(temp, path, parent)
}

fn rename_durably(from: &Path, to: &Path, parent: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    fsync_dir(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_whole_files() {
        let dir = std::env::temp_dir().join(format!("durable-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("file");
        replace_file(&path, b"one").unwrap();
        replace_file(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        assert!(replace_file(&dir.join("missing").join("file"), b"x").is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
