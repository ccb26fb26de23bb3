//! Layout of a compute's directory.

use std::path::{Path, PathBuf};

/// The directory of a compute.
///
/// Everything here belongs to the user that runs Postgres, except the files that root relies on if root manages the
/// compute; nobody else may enter it. `upper` and `data` are one tree: what Postgres sees under `data` is `upper`
/// and, for relations that were never written, the manifest.
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

    /// The compute's configuration: name, timeline, LSN, version, port, state. Belongs to whoever created the
    /// compute.
    pub fn config(&self) -> PathBuf {
        self.root.join("compute.json")
    }

    /// Where its blocks come from: the part of the configuration that the file system needs.
    pub fn origin(&self) -> PathBuf {
        self.root.join("origin.json")
    }

    /// Mount point: the data directory of Postgres.
    pub fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// The real files and directories behind `data`. Its `pg_wal` is a symbolic link to `../pg_wal`.
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

    /// Blocks from the boot image: see [`crate::catalog`]. May be missing.
    pub fn catalog(&self) -> PathBuf {
        self.root.join("catalog/blocks")
    }

    /// Log of the manifest's files that were removed.
    pub fn removed(&self) -> PathBuf {
        self.root.join("removed")
    }

    /// Files being prepared for `upper`.
    pub fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    /// Unlinked files that are still open.
    pub fn orphans(&self) -> PathBuf {
        self.root.join("orphans")
    }

    /// Held by the supervisor; contains its process id.
    pub fn lock(&self) -> PathBuf {
        self.root.join("fs.lock")
    }

    /// Held by the daemon; contains its process id. Only one daemon at a time writes to `upper`.
    pub fn daemon_lock(&self) -> PathBuf {
        self.root.join("daemon.lock")
    }

    /// Log of the file system.
    pub fn log(&self) -> PathBuf {
        self.root.join("fs.log")
    }
}
