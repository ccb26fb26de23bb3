//! What a compute is, for as long as it lives: the file `compute.json`.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use pageserver_client::PageServer;
use serde::{Deserialize, Serialize};
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use super::owner::Owner;
use super::{LifecycleError, Result, io_error};
use crate::layout::Layout;
use crate::source::pagestream::{PagestreamSource, TimelineAt};

/// Where a compute's relations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// A file system reads them from the timeline when they are needed.
    Lazy,
    /// All of them were copied to the local disk.
    Copy,
}

/// A compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeConfig {
    /// What tells it from all others that ever were.
    pub id: String,
    /// Its name on this host.
    pub name: String,
    /// Its tenant.
    pub tenant: TenantId,
    /// The timeline that it was made of, and writes if it writes.
    pub timeline: TimelineId,
    /// The timeline's name.
    pub branch: Option<String>,
    /// It was made of the timeline as of this LSN.
    pub boot_lsn: Lsn,
    /// Where the WAL of a compute ended that was stopped and released: the branch may have been written by others
    /// since.
    pub released_lsn: Option<Lsn>,
    /// Major version of Postgres.
    pub pg_version: u32,
    /// Whether pages have checksums.
    pub data_checksums: bool,
    /// Programs of Postgres.
    pub bin_dir: PathBuf,
    /// Port of Postgres.
    pub port: u16,
    /// Page service, as libpq takes it.
    pub page_service: String,
    /// Token for the page service. The file is readable by its owner only.
    pub token: Option<String>,
    /// A standby that never becomes anything else: it writes nothing to its branch.
    pub read_only: bool,
    /// The user of Postgres that is asked whether it is ready, and by whose name WAL is fetched: it needs REPLICATION.
    pub superuser: String,
    /// Who runs Postgres, if not the caller.
    pub owner: Option<Owner>,
    /// Where the relations are.
    pub storage: Storage,
}

impl ComputeConfig {
    /// That of the compute in a directory.
    pub fn load(layout: &Layout) -> Result<Self> {
        let path = layout.config();
        let bytes = std::fs::read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                LifecycleError::Refused(format!("there is no compute in {}", layout.root().display()))
            }
            _ => io_error(&path)(error),
        })?;
        // The parser's own words may hold parts of a token.
        serde_json::from_slice(&bytes).map_err(|error| {
            LifecycleError::Refused(format!("{}, line {}: this is no compute", path.display(), error.line()))
        })
    }

    /// Makes this that of the compute in a directory, durably.
    pub fn store(&self, layout: &Layout) -> Result<()> {
        let (path, temporary) = (layout.config(), layout.root().join("compute.json.new"));
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| LifecycleError::Refused(format!("{}: {error}", path.display())))?;
        let written = || {
            let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            if let Some(owner) = &self.owner {
                owner.give(&temporary)?;
            }
            std::fs::rename(&temporary, &path)?;
            File::open(layout.root())?.sync_all()
        };
        written().map_err(io_error(&path))
    }

    /// The page server.
    pub fn page_server(&self) -> Result<PageServer> {
        PageServer::new(&self.page_service, self.token.as_deref())
            .map_err(|error| LifecycleError::Refused(format!("page service: {error}")))
    }

    /// Which timeline the relations are of, as of when.
    pub fn at(&self) -> TimelineAt {
        let Self { tenant, timeline, boot_lsn: lsn, data_checksums, .. } = *self;
        TimelineAt { tenant, timeline, lsn, data_checksums }
    }

    /// The relations as they were. Must be called in a runtime.
    pub fn source(&self) -> Result<PagestreamSource> {
        Ok(PagestreamSource::new(self.page_server()?, self.at()))
    }

    /// The data directory of Postgres.
    pub fn data_dir(&self, layout: &Layout) -> PathBuf {
        match self.storage {
            Storage::Lazy => layout.data(),
            Storage::Copy => layout.upper(),
        }
    }

    /// The replication slot through which the branch gets WAL.
    pub fn slot(&self) -> String {
        format!("pageserver_{}", self.timeline)
    }
}
