//! What is where in the directory of a compute.

use std::path::{Path, PathBuf};

/// The directory of a compute.
///
/// Everything here belongs to the user that runs Postgres, but for what root goes by where root manages it, and may be
/// entered by nobody else. `upper` and `data` are one tree: what Postgres sees under
/// `data` is `upper` and, where a relation was never written, the manifest.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The layout of the compute in directory `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What the compute is: name, timeline, LSN, version, port, state. It belongs to whoever made the compute.
    pub fn config(&self) -> PathBuf {
        self.root.join("compute.json")
    }

    /// Where its blocks come from: what the file system has to know of the same.
    pub fn origin(&self) -> PathBuf {
        self.root.join("origin.json")
    }

    /// Mount point: the data directory of Postgres.
    pub fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// Real files and directories behind `data`. Its `pg_wal` is a symbolic link to `../pg_wal`.
    pub fn upper(&self) -> PathBuf {
        self.root.join("upper")
    }

    /// WAL: a plain directory, never behind the file system.
    pub fn wal(&self) -> PathBuf {
        self.root.join("pg_wal")
    }

    /// Relation files and their sizes at the boot LSN: see [`crate::manifest`].
    pub fn manifest(&self) -> PathBuf {
        self.root.join("manifest")
    }

    /// Blocks that came with the boot image: see [`crate::catalog`]. May be missing.
    pub fn catalog(&self) -> PathBuf {
        self.root.join("catalog/blocks")
    }

    /// Names of the manifest that were removed: a log.
    pub fn removed(&self) -> PathBuf {
        self.root.join("removed")
    }

    /// Files on their way into `upper`.
    pub fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    /// Files without a name that somebody has open.
    pub fn orphans(&self) -> PathBuf {
        self.root.join("orphans")
    }

    /// Held by the supervisor, with its process id.
    pub fn lock(&self) -> PathBuf {
        self.root.join("fs.lock")
    }

    /// Held by the daemon, with its process id: one at a time writes to `upper`.
    pub fn daemon_lock(&self) -> PathBuf {
        self.root.join("daemon.lock")
    }

    /// Log of the file system.
    pub fn log(&self) -> PathBuf {
        self.root.join("fs.log")
    }
}
