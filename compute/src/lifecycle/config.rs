//! What a compute is, for as long as it lives: the file `compute.json`.

use std::path::PathBuf;

use pageserver_client::PageServer;
use serde::{Deserialize, Serialize};
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use super::options::{Changes, Options};
use super::owner::Owner;
use super::{LifecycleError, Result, io_error};
use crate::layout::Layout;
use crate::private::Trust;
use crate::source::origin::Origin;
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

/// What a compute has to do about subscriptions of logical replication at its next start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subscriptions {
    /// Nothing: they are its own, or there are none.
    #[default]
    Settled,
    /// Unless the branch has the mark, disable them, and leave it.
    Disable,
    /// Leave the mark.
    Keep,
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
    /// What it was told to do at its starts.
    #[serde(default)]
    pub options: Options,
    /// What is to be done about subscriptions of logical replication before it runs.
    #[serde(default)]
    pub subscriptions: Subscriptions,
}

impl ComputeConfig {
    /// That of the compute in a directory. What is there is done in the name of the caller, so nobody else may have
    /// written it.
    pub fn load(layout: &Layout) -> Result<Self> {
        let path = layout.config();
        let bytes = Trust::me().read(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                LifecycleError::Refused(format!("there is no compute in {}", layout.root().display()))
            }
            std::io::ErrorKind::PermissionDenied => LifecycleError::Refused(format!(
                "{error}. A compute is managed by the user who made it; if that is you, and nobody else can have \
                 changed the file, make it yours by chown"
            )),
            _ => io_error(&path)(error),
        })?;
        // The parser's own words may hold parts of a token.
        let compute: Self = serde_json::from_slice(&bytes).map_err(|error| {
            LifecycleError::Refused(format!("{}, line {}: this is no compute", path.display(), error.line()))
        })?;
        if layout.root().file_name() != Some(compute.name.as_ref()) {
            let text = format!("{}: this is the compute {}, under another name", path.display(), compute.name);
            return Err(LifecycleError::Refused(text));
        }
        Ok(compute)
    }

    /// Takes the changes in. If one makes no sense, nothing changes.
    pub(super) fn change(&mut self, mut changes: Changes) -> Result<()> {
        let mut new = self.clone();
        if let Some(at) = changes.page_server.take() {
            new.page_service = at.page_service;
            new.token = at.token.or(new.token);
            new.page_server()?;
        }
        new.options.change(changes)?;
        *self = new;
        Ok(())
    }

    /// Makes this that of the compute in a directory, durably.
    pub fn store(&self, layout: &Layout) -> Result<()> {
        let path = layout.config();
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| LifecycleError::Refused(format!("{}: {error}", path.display())))?;
        Trust::me().replace(&path, &bytes, |_| Ok(())).map_err(io_error(&path))
    }

    /// Tells the file system, which runs as the user of Postgres, where blocks come from.
    pub(super) fn store_origin(&self, layout: &Layout) -> Result<()> {
        let path = layout.origin();
        let Self { page_service, token, .. } = self.clone();
        let origin = Origin { page_service, token, at: self.at() };
        let known = Trust::of(layout.root()).and_then(|trust| Origin::load(&path, trust));
        if known.is_ok_and(|known| known == origin) {
            return Ok(());
        }
        let give = |file: &std::fs::File| self.owner.as_ref().map_or(Ok(()), |owner| owner.give_file(file));
        origin.store(&path, give).map_err(io_error(&path))
    }

    /// The page server.
    pub(super) fn page_server(&self) -> Result<PageServer> {
        PageServer::new(&self.page_service, self.token.as_deref())
            .map_err(|error| LifecycleError::Refused(format!("page service: {error}")))
    }

    /// Which timeline the relations are of, as of when.
    pub(super) fn at(&self) -> TimelineAt {
        let Self { tenant, timeline, boot_lsn: lsn, data_checksums, .. } = *self;
        TimelineAt { tenant, timeline, lsn, data_checksums }
    }

    /// The relations as they were. Must be called in a runtime.
    pub(super) fn source(&self) -> Result<PagestreamSource> {
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
