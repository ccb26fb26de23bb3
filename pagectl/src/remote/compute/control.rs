//! The part of the management interface that computes need.

use compute::lifecycle::{ComputeConfig, Control};
use serde_json::json;
use utils::lsn::Lsn;

use crate::remote::client::Client;
use crate::remote::connection::Remote;
use crate::table::text;

/// What a compute does on a branch that may be closed.
#[derive(Clone, Debug, Default)]
pub(crate) enum Opening {
    /// It serves those who use the branch, which is open for that.
    #[default]
    Use,
    /// It runs the SQL of the branch, in this run.
    Run(String),
    /// It is there to repair something.
    Repair,
}

/// Registers computes with the server.
pub(crate) struct Registry {
    client: Client,
    opening: Opening,
}

impl Registry {
    pub(crate) fn of(remote: &Remote<'_>) -> Self {
        Self::by(remote.client.clone())
    }

    /// By this client.
    pub(super) fn by(client: Client) -> Self {
        Self { client, opening: Opening::Use }
    }

    /// For computes that do this on their branches.
    pub(super) fn opening(self, opening: Opening) -> Self {
        Self { opening, ..self }
    }
}

pub(super) fn path(compute: &ComputeConfig) -> String {
    format!("/v1/tenant/{}/timeline/{}", compute.tenant, compute.timeline)
}

impl Control for Registry {
    fn register(&self, compute: &ComputeConfig, start: Lsn, connstr: &str, replace: bool) -> Result<(), String> {
        let mut body = json!({ "id": compute.id, "name": compute.name, "connstr": connstr, "slot": compute.slot(),
            "start_lsn": start, "replace": replace });
        match &self.opening {
            Opening::Use => {}
            Opening::Run(run) => body["init_run"] = json!(run),
            Opening::Repair => body["uninitialized"] = json!(true),
        }
        let registered = self.client.call("PUT", &format!("{}/writer", path(compute)), Some(&body));
        registered.map(drop).map_err(|error| format!("{error:#}"))
    }

    fn release(&self, compute: &ComputeConfig) -> Result<(), String> {
        let path = format!("{}/writer?id={}", path(compute), compute.id);
        match self.client.call("DELETE", &path, None) {
            Ok(_) => Ok(()),
            // There is nothing to release: it was never registered, its branch is gone, or another compute replaced
            // it.
            Err(error) if ["(404)", "(409)"].iter().any(|status| error.to_string().ends_with(status)) => Ok(()),
            Err(error) => Err(format!("{error:#}")),
        }
    }

    fn end(&self, compute: &ComputeConfig) -> Result<Lsn, String> {
        let info = self.client.get(&path(compute)).map_err(|error| format!("{error:#}"))?;
        let end = text(&info, "last_record_lsn");
        end.parse().map_err(|error| format!("{end:?}: {error}"))
    }
}
