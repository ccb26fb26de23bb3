//! What a killed process leaves in a bucket that is a directory: `NAME#1` is an unfinished write of `NAME`.
//!
//! It is not an object, and listings do not include it. Clouds have their own rules for uploads that were never
//! completed.

use std::time::UNIX_EPOCH;

use camino::{Utf8Path, Utf8PathBuf};

use super::{RemotePath, RemoteStorage};
use errors::StorageError;
use virtual_file::fs;

/// A write that was begun and may have been cut short with its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedWrite {
    /// The file.
    pub path: Utf8PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Seconds since the last write to it.
    pub age: u64,
}

/// Whether the name is that of an unfinished write.
fn is_begun(name: &str) -> bool {
    let Some((base, number)) = name.rsplit_once('#') else { return false };
    !base.is_empty() && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

impl RemoteStorage {
    /// The unfinished writes below `prefix`, if the bucket is a directory. Some of them may be under way right now.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub async fn unfinished(&self, prefix: &RemotePath) -> Result<Vec<UnfinishedWrite>, StorageError> {
        let Some(root) = &self.inner.directory else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        let mut dirs = vec![root.join(prefix.to_string())];
        while let Some(dir) = dirs.pop() {
            for name in fs::list_dir_if_any(&dir).await? {
                let path = dir.join(&name);
                match look(&path)? {
                    Some(Entry::Directory) => dirs.push(path),
                    Some(Entry::File { size, age }) if is_begun(&name) => {
                        found.push(UnfinishedWrite { path, size, age })
                    }
                    _ => {}
                }
            }
        }
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }

    /// Removes a file that [`RemoteStorage::unfinished`] found, unless it has been written to since. Returns whether
    /// it did.
    ///
    /// # Errors
    /// If it exists and cannot be removed.
    pub async fn remove_unfinished(&self, begun: &UnfinishedWrite) -> Result<bool, StorageError> {
        let same = |now: u64, size: u64| now >= begun.age && size == begun.size;
        match look(&begun.path)? {
            Some(Entry::File { size, age }) if same(age, size) => fs::unlink(&begun.path).await.map(|()| true),
            _ => Ok(false),
        }
    }
}

enum Entry {
    Directory,
    File { size: u64, age: u64 },
}

/// The kind of `path`; `None` if it is gone, or is neither a file nor a directory. Symbolic links are not followed.
fn look(path: &Utf8Path) -> Result<Option<Entry>, StorageError> {
    let meta = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        meta => {
            meta.map_err(|source| StorageError::Io { operation: "look at", path: path.into(), offset: 0, source })?
        }
    };
    if meta.is_dir() {
        return Ok(Some(Entry::Directory));
    }
    // A modification time in the future counts as age 0.
    let modified = meta.modified().ok().filter(|_| meta.is_file());
    let age = modified.map(|at| {
        let (now, at) = (env::clock::system_now().duration_since(UNIX_EPOCH), at.duration_since(UNIX_EPOCH));
        now.unwrap_or_default().saturating_sub(at.unwrap_or_default()).as_secs()
    });
    Ok(age.map(|age| Entry::File { size: meta.len(), age }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_number_behind_are_of_writes_that_had_begun() {
        for name in ["index_part-00000052#1", "a#b#27"] {
            assert!(is_begun(name), "{name}");
        }
        for name in ["index_part-00000052", "#1", "name#", "name#1a", "name#-1", "notes#1.txt"] {
            assert!(!is_begun(name), "{name}");
        }
    }
}
