//! Computes that read a moment of a branch for one command, and go with it.

use compute::layout::Layout;
use compute::lifecycle::{self, ComputeConfig, Computes, Session};
use serde_json::Value;
use utils::lsn::Lsn;

use super::control::{Opening, Registry};
use super::start::{self, By};
use super::wanted::{HostArgs, Wanted};
use crate::remote::connection::Remote;
use crate::table::text;

/// Such a compute. It is removed when this is dropped.
pub(crate) struct Reader<'a> {
    remote: &'a Remote<'a>,
    layout: Layout,
}

impl<'a> Reader<'a> {
    /// Starts one.
    pub(crate) fn start(
        remote: &'a Remote<'a>,
        computes: &Computes,
        host: &HostArgs,
        branch: &Value,
        lsn: Lsn,
    ) -> anyhow::Result<Self> {
        let id = text(branch, "timeline_id");
        let random = env::random::u64() & 0xff_ffff;
        let name = format!("diff-{}-{random:06x}", id.get(..12).unwrap_or(&id));
        let wanted = Wanted {
            name: Some(name.clone()),
            branch: Some(id),
            at: Some(lsn.to_string()),
            read_only: true,
            ..Wanted::default()
        };
        let by = By { opening: Opening::Use, prepare: &|branch| Ok(branch.clone()) };
        start::start(remote, computes, &wanted, host, &by)?;
        Ok(Self { remote, layout: computes.layout(&name)? })
    }

    /// A session in one of its databases.
    pub(crate) fn session(&self, database: &str) -> anyhow::Result<Session> {
        Ok(Session::open(&self.layout, database)?)
    }

    /// Its directory of programs, and how to connect to it.
    pub(crate) fn programs(&self) -> anyhow::Result<(std::path::PathBuf, String)> {
        let compute = ComputeConfig::load(&self.layout)?;
        let connstr = lifecycle::connstr(&compute, &self.layout);
        Ok((compute.bin_dir, connstr))
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        if let Err(left) = lifecycle::destroy(&self.layout, true, &Registry::of(self.remote)) {
            tracing::warn!("{} is left: {left}", self.layout.root().display());
        }
    }
}
