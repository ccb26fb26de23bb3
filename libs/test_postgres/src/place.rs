//! Directories for servers.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use camino_tempfile::Utf8TempDir;

use crate::programs::{Postgres, own};

/// A directory for servers, their sockets and logs. Removed with its contents when neither it nor any of its servers
/// is in use.
#[derive(Clone, Debug)]
pub struct Place {
    postgres: Postgres,
    _dir: Arc<Utf8TempDir>,
    path: Utf8PathBuf,
}

impl Postgres {
    /// A new directory for servers.
    pub fn place(&self) -> Place {
        // The path of a socket is limited to 107 bytes, and other users must be able to reach it.
        let dir = camino_tempfile::Builder::new().prefix("test-pg-").tempdir_in("/tmp").unwrap();
        own(dir.path());
        let path = dir.path().canonicalize_utf8().unwrap();
        Place { postgres: self.clone(), _dir: Arc::new(dir), path }
    }
}

impl Place {
    /// Its path.
    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// The programs of its servers.
    pub fn postgres(&self) -> &Postgres {
        &self.postgres
    }

    /// A new directory that servers may write to, as for a tablespace.
    pub fn directory(&self, name: &str) -> Utf8PathBuf {
        let path = self.path.join(name);
        std::fs::create_dir(&path).unwrap();
        own(&path);
        path
    }
}
