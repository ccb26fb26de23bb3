//! Ensures one process per working directory: a lock on `pageserver.pid`, which the system releases however the
//! process ends.

use std::os::fd::OwnedFd;

use anyhow::{Context, bail};
use camino::Utf8Path;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Name of the file.
const PID_FILE: &str = "pageserver.pid";

/// Holds the lock until dropped.
pub(crate) struct WorkdirLock {
    _fd: OwnedFd,
}

impl WorkdirLock {
    /// Locks `workdir`, and writes this process's id to the file.
    pub(crate) fn take(workdir: &Utf8Path) -> anyhow::Result<Self> {
        let path = workdir.join(PID_FILE);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path.as_std_path(), flags, Mode::from_raw_mode(0o600))
            .with_context(|| format!("cannot open {path}"))?;
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let holder = std::fs::read_to_string(&path).unwrap_or_default();
                bail!("working directory {workdir} is in use by another pageserver, process {}", holder.trim());
            }
            Err(errno) => return Err(errno).with_context(|| format!("cannot lock {path}")),
        }
        rustix::fs::ftruncate(&fd, 0).with_context(|| format!("cannot write {path}"))?;
        let text = format!("{}\n", std::process::id());
        rustix::io::write(&fd, text.as_bytes()).with_context(|| format!("cannot write {path}"))?;
        Ok(Self { _fd: fd })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_working_directory_is_locked_once_and_the_holder_is_named() {
        let dir = camino_tempfile::tempdir().unwrap();
        let lock = WorkdirLock::take(dir.path()).unwrap();
        let error = WorkdirLock::take(dir.path()).err().unwrap().to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(lock);
        WorkdirLock::take(dir.path()).unwrap();
        assert!(WorkdirLock::take(&dir.path().join("absent")).is_err());
    }
}
