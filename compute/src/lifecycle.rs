//! The life of a compute: created from a boot image, started, stopped, restarted, destroyed.
//!
//! Each step is useful on its own: [`create`] fills a directory, [`start`] brings up a server that answers, [`stop`]
//! shuts it down and waits until its branch has everything that it wrote, [`destroy`] removes it. [`Control`] is what
//! they need of the pageserver's management interface.

mod access;
pub mod config;
mod copy;
mod create;
mod guests;
mod install;
mod mounted;
mod options;
mod owner;
mod port;
mod reader;
mod replica;
mod replica_of;
mod run;
mod server;
mod set;
mod settings;
mod sql;
mod start;
mod subscriptions;
mod trouble;
mod wishes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use utils::lsn::Lsn;

use crate::boot::BootError;
use crate::layout::Layout;
use crate::source::SourceError;
pub use config::ComputeConfig;
pub use create::{NewCompute, create, renew, rewrite};
pub use guests::guests;
pub use install::find as find_server;
pub use options::{Changes, OWNER_NAME, Options, PageServerAt};
pub use port::{free_port, is_free};
pub use replica::{Kept, Primary, Progress, follow, progress, wal_between, wal_end};
pub use replica_of::ReplicaOf;
pub use run::{Stopped, destroy, end_all, stop};
pub use server::{State, connstr, log, socket};
pub use set::{Changed, set};
pub use sql::{Session, SqlError, run_sql};
pub use start::{StartOptions, Started, start};
pub use trouble::Trouble;

/// Why an operation on a compute failed.
#[derive(Debug, thiserror::Error)]
pub enum LifecycleError {
    /// The request is invalid, or not possible now.
    #[error("{0}")]
    Refused(String),
    /// The pageserver's management interface failed.
    #[error("{0}")]
    Control(String),
    /// The boot image could not be used.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The blocks could not be read.
    #[error("cannot read the timeline: {0}")]
    Source(#[from] SourceError),
    /// The Postgres server failed.
    #[error("{0}")]
    Server(String),
    /// The local disk failed.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: String,
        /// The operating system's error.
        source: std::io::Error,
    },
}

/// Result type of this module.
pub type Result<T> = std::result::Result<T, LifecycleError>;

pub(crate) fn io_error(path: &Path) -> impl FnOnce(std::io::Error) -> LifecycleError {
    let path = path.display().to_string();
    move |source| LifecycleError::Io { path, source }
}

/// What a compute needs of the pageserver's management interface. Errors carry the pageserver's message.
pub trait Control {
    /// Registers the compute as the writer of its branch, from `start` on.
    fn register(
        &self,
        compute: &ComputeConfig,
        start: Lsn,
        connstr: &str,
        replace: bool,
    ) -> std::result::Result<(), String>;

    /// Ends the registration.
    fn release(&self, compute: &ComputeConfig) -> std::result::Result<(), String>;

    /// The end of the branch.
    fn end(&self, compute: &ComputeConfig) -> std::result::Result<Lsn, String>;
}

/// The computes in one directory.
#[derive(Clone, Debug)]
pub struct Computes {
    dir: PathBuf,
}

impl Computes {
    /// The computes in `dir`, which need not exist.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The layout of the compute `name`.
    ///
    /// # Errors
    /// `name` is not a valid name.
    pub fn layout(&self, name: &str) -> Result<Layout> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !first || name.len() > 63 || !name.bytes().all(plain) {
            let rule = "a letter or digit, then letters, digits and _.-, 63 at most";
            return Err(LifecycleError::Refused(format!("{name:?} is no name for a compute: {rule}")));
        }
        let dir = std::path::absolute(&self.dir).map_err(io_error(&self.dir))?;
        Ok(Layout::new(dir.join(name)))
    }

    /// All computes, sorted by name; the error for one whose `compute.json` cannot be read.
    pub fn list(&self) -> Result<Vec<(String, Result<ComputeConfig>)>> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error(&self.dir)(error)),
        };
        let mut all = Vec::new();
        for entry in entries {
            let name = entry.map_err(io_error(&self.dir))?.file_name().to_string_lossy().into_owned();
            let Ok(layout) = self.layout(&name) else { continue };
            let loaded = ComputeConfig::load(&layout);
            // Also one that was destroyed just now.
            if loaded.is_ok() || layout.config().exists() {
                all.push((name, loaded));
            }
        }
        all.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(all)
    }
}

/// A duration in milliseconds, for display.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
