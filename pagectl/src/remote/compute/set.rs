//! `pagectl compute set`, and what a compute can be told at any time.

use clap::Args;
use compute::lifecycle::{self, Changes, Computes, PageServerAt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::control::Registry;
use super::show;
use crate::output;
use crate::remote::connection::Remote;

/// What holds for a compute until it is told otherwise.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default)]
pub(super) struct Told {
    /// Addresses to listen on besides the socket; whoever comes by them needs a password. Empty for none.
    #[arg(long, value_name = "ADDRESSES")]
    listen: Option<String>,
    /// Users of this machine who are let in by the socket, besides the one who runs Postgres and root: as the role of
    /// their name, or another one. Empty for none.
    #[arg(long, value_name = "USER[=ROLE]", value_delimiter = ',')]
    listen_users: Option<Vec<String>>,
    /// A setting of Postgres; any number of them.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// A setting that is as the branch has it again; any number of them.
    #[arg(long, value_name = "NAME")]
    unset: Vec<String>,
    /// Commits wait until the page server has what they wrote.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    wait_for_pageserver: Option<bool>,
    /// How the page server reaches the compute; by its socket if empty.
    #[arg(long, value_name = "CONNSTR")]
    connstr: Option<String>,
}

/// The same, of a compute that is there.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    #[serde(flatten)]
    told: Told,
    /// Page service of the page server, where that is another one now; with --token, the token for it, too.
    #[arg(long, value_name = "CONNSTR")]
    page_service: Option<String>,
}

impl Told {
    /// As changes of a compute. A token counts where a page service is given.
    pub(super) fn changes(&self, page_service: Option<String>, token: Option<String>) -> Changes {
        Changes {
            listen: self.listen.clone(),
            listen_users: self.listen_users.clone(),
            wait_for_pageserver: self.wait_for_pageserver,
            settings: self.settings.clone(),
            unset: self.unset.clone(),
            connstr: self.connstr.clone(),
            page_server: page_service.map(|page_service| PageServerAt { page_service, token }),
        }
    }
}

/// Tells a compute something else, whether it runs or not.
pub(super) fn run(remote: &Remote<'_>, computes: &Computes, name: &str, args: &SetArgs) -> anyhow::Result<()> {
    let value = set(remote, computes, name, args)?;
    let summary = match value["needs_restart"].as_bool() {
        Some(true) => format!("{name} knows; some of it is effective when it is stopped and started"),
        _ => format!("{name} knows"),
    };
    output::finish(remote.common.json, &value, summary);
    Ok(())
}

/// The same; what it is told from now on.
pub(super) fn set(remote: &Remote<'_>, computes: &Computes, name: &str, args: &SetArgs) -> anyhow::Result<Value> {
    let layout = computes.layout(name)?;
    let changes = args.told.changes(args.page_service.clone(), remote.token.clone());
    let changed = lifecycle::set(&layout, changes, &Registry::of(remote))?;
    let options = show::options(&lifecycle::ComputeConfig::load(&layout)?.options);
    Ok(json!({ "name": name, "needs_restart": changed.needs_restart, "options": options }))
}
