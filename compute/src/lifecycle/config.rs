//! A compute's persistent configuration: the file `compute.json`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use super::options::{Changes, Options};
use super::owner::Owner;
use super::replica_of::ReplicaOf;
use super::{LifecycleError, Result, io_error};
use crate::layout::Layout;
use crate::private::Trust;
use crate::source::origin::Origin;
use crate::source::pagestream::{PagestreamSource, TimelineAt};
use crate::source::servers::Servers;

/// Where a compute's relations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// A file system reads them from the timeline on demand.
    Lazy,
    /// All of them were copied to the local disk.
    Copy,
}

/// What a compute must do about logical replication subscriptions at its next start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subscriptions {
    /// Nothing: they are its own, or there are none.
    #[default]
    Settled,
    /// Disable them and leave the mark, unless the branch has the mark.
    Disable,
    /// Only leave the mark.
    Keep,
}

/// The configuration of a compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeConfig {
    /// Identifies it among all computes that ever existed.
    pub id: String,
    /// Its name on this host.
    pub name: String,
    /// Its tenant.
    pub tenant: TenantId,
    /// The timeline that it was created from, and to which it writes if it is a writer.
    pub timeline: TimelineId,
    /// The timeline's name.
    pub branch: Option<String>,
    /// The LSN of the timeline at which it was created.
    pub boot_lsn: Lsn,
    /// End of WAL when it was stopped and released: the branch may have had other writers since.
    pub released_lsn: Option<Lsn>,
    /// Major version of Postgres.
    pub pg_version: u32,
    /// Whether pages have checksums.
    pub data_checksums: bool,
    /// Directory with the Postgres programs.
    pub bin_dir: PathBuf,
    /// Port on which Postgres listens.
    pub port: u16,
    /// Page service, as a libpq connection string, or several, separated by commas.
    pub page_service: String,
    /// Token for the page service. Only the owner may read the file.
    pub token: Option<String>,
    /// It is a standby that is never promoted: it writes nothing to its branch.
    pub read_only: bool,
    /// The compute that it follows, if it is a replica: it only reads then.
    #[serde(default)]
    pub replica: Option<ReplicaOf>,
    /// The Postgres user for readiness checks and for fetching WAL: needs REPLICATION.
    pub superuser: String,
    /// The user that runs Postgres, if not the caller.
    pub owner: Option<Owner>,
    /// Where the relations are.
    pub storage: Storage,
    /// Options that its starts have set.
    #[serde(default)]
    pub options: Options,
    /// What remains to be done about logical replication subscriptions before it runs.
    #[serde(default)]
    pub subscriptions: Subscriptions,
}

impl ComputeConfig {
    /// Reads the configuration in a directory. The caller acts on its content, so a file that anybody else may have
    /// written is refused.
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
        // The parser's message may contain parts of a token.
        let compute: Self = serde_json::from_slice(&bytes).map_err(|error| {
            LifecycleError::Refused(format!("{}, line {}: this is no compute", path.display(), error.line()))
        })?;
        if layout.root().file_name() != Some(compute.name.as_ref()) {
            let text = format!("{}: this is the compute {}, under another name", path.display(), compute.name);
            return Err(LifecycleError::Refused(text));
        }
        Ok(compute)
    }

    /// Applies the changes. If one is invalid, nothing changes.
    pub(super) fn change(&mut self, mut changes: Changes) -> Result<()> {
        let mut new = self.clone();
        if let Some(at) = changes.page_server.take() {
            new.page_service = at.page_service;
            new.token = at.token.or(new.token);
            new.page_servers()?;
        }
        new.port = changes.port.unwrap_or(new.port);
        new.options.change(changes)?;
        *self = new;
        Ok(())
    }

    /// Writes this as the configuration in a directory, durably.
    pub fn store(&self, layout: &Layout) -> Result<()> {
        let path = layout.config();
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| LifecycleError::Refused(format!("{}: {error}", path.display())))?;
        Trust::me().replace(&path, &bytes, |_| Ok(())).map_err(io_error(&path))
    }

    /// Tells the file system, which runs as the Postgres user, where blocks come from.
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

    /// The pageservers, of which one is the owner of the tenant.
    pub(super) fn page_servers(&self) -> Result<Servers> {
        Servers::parse(&self.page_service, self.token.as_deref())
            .map_err(|error| LifecycleError::Refused(format!("page service: {error}")))
    }

    /// The timeline and LSN of the relations.
    pub(super) fn at(&self) -> TimelineAt {
        let Self { tenant, timeline, boot_lsn: lsn, data_checksums, .. } = *self;
        TimelineAt { tenant, timeline, lsn, data_checksums }
    }

    /// The source of the relations as of the boot LSN. Must be called in a runtime.
    pub(super) fn source(&self) -> Result<PagestreamSource> {
        Ok(PagestreamSource::new(self.page_servers()?, self.at()))
    }

    /// The data directory of Postgres.
    pub fn data_dir(&self, layout: &Layout) -> PathBuf {
        match self.storage {
            Storage::Lazy => layout.data(),
            Storage::Copy => layout.upper(),
        }
    }

    /// The replication slot through which the pageserver receives the branch's WAL.
    pub fn slot(&self) -> String {
        format!("pageserver_{}", self.timeline)
    }
}
