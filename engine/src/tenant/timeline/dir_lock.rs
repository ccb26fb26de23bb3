//! One process per timeline: a lock on its directory, which the kernel releases however the process ends.

use std::os::fd::OwnedFd;

use camino::Utf8Path;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use errors::StorageError;

/// Holds the lock until dropped.
#[derive(Debug)]
pub(crate) struct DirLock {
    _fd: Option<OwnedFd>,
}

impl DirLock {
    /// Locks `dir`. A directory unknown to the kernel (it may be on a simulated disk) needs no lock.
    pub(crate) fn take(dir: &Utf8Path) -> Result<Self, StorageError> {
        let error = |errno: Errno| StorageError::Io {
            operation: "lock",
            path: dir.to_owned(),
            offset: 0,
            source: errno.into(),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(dir.as_std_path(), flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(Self { _fd: None }),
            Err(errno) => return Err(error(errno)),
        };
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _fd: Some(fd) }),
            Err(Errno::WOULDBLOCK) => {
                Err(StorageError::Invalid(format!("timeline directory {dir} is in use by another process")))
            }
            Err(errno) => Err(error(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_locked_once() {
        let dir = camino_tempfile::tempdir().unwrap();
        let lock = DirLock::take(dir.path()).unwrap();
        assert!(matches!(DirLock::take(dir.path()), Err(StorageError::Invalid(_))));
        drop(lock);
        DirLock::take(dir.path()).unwrap();
        DirLock::take(&dir.path().join("absent")).unwrap();
    }
}
