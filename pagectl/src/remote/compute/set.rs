//! `pagectl compute set`, and the options that can be changed at any time.

use clap::Args;
use compute::lifecycle::{self, Changes, Computes, PageServerAt};
use serde::Deserialize;
use serde_json::{Value, json};

use super::control::Registry;
use super::show;
use crate::output;
use crate::remote::connection::Remote;

/// Options that apply to a compute until they are changed.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default)]
pub(super) struct Told {
    /// Addresses to listen on besides the socket; connections over them need a password. Empty for none.
    #[arg(long, value_name = "ADDRESSES")]
    listen: Option<String>,
    /// Users of this machine who may connect by the socket, besides root and the user who runs Postgres: as the role
    /// of the same name, or as ROLE. Empty for none.
    #[arg(long, value_name = "USER[=ROLE]", value_delimiter = ',')]
    listen_users: Option<Vec<String>>,
    /// A setting of Postgres; may be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// Reset a setting to the branch's value; may be repeated.
    #[arg(long, value_name = "NAME")]
    unset: Vec<String>,
    /// Make commits wait until the page server has received what they wrote.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    wait_for_pageserver: Option<bool>,
    /// With several page servers: how many of those that have a journal have to have what a commit wrote, if commits
    /// wait for the page server; 0: the owner. By default 1.
    #[arg(long, value_name = "COUNT")]
    quorum: Option<u32>,
    /// How the page server connects to the compute; by its socket if empty.
    #[arg(long, value_name = "CONNSTR")]
    connstr: Option<String>,
    /// Let a gateway stop the compute when nobody is connected. What a gateway has started may sleep, what this command
    /// starts may not, unless this says otherwise.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    sleeps: Option<bool>,
    /// How many MiB of a table are fetched ahead of a scan, unless the compute is a copy: 0 for none, by default 32.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(..=1024))]
    read_ahead: Option<u32>,
}

/// Options of an existing compute.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    #[serde(flatten)]
    told: Told,
    /// New page service of the page server, or several, separated by commas; --token, if given, is the new token for
    /// it.
    #[arg(long, value_name = "CONNSTR")]
    page_service: Option<String>,
}

impl Told {
    /// For a compute that a gateway starts: it may sleep, and listens on these addresses if they change.
    pub(super) fn to_sleep(listen: Option<String>) -> Self {
        Self { listen, sleeps: Some(true), ..Self::default() }
    }

    /// As changes to a compute. The token applies only together with a page service.
    pub(super) fn changes(&self, page_service: Option<String>, token: Option<String>) -> Changes {
        Changes {
            listen: self.listen.clone(),
            listen_users: self.listen_users.clone(),
            wait_for_pageserver: self.wait_for_pageserver,
            until_durable: None,
            followers: None,
            quorum: self.quorum,
            settings: self.settings.clone(),
            unset: self.unset.clone(),
            connstr: self.connstr.clone(),
            sleeps: self.sleeps,
            port: None,
            ahead_mib: self.read_ahead,
            page_server: page_service.map(|page_service| PageServerAt { page_service, token }),
        }
    }
}

/// Changes a compute's options, whether it runs or not.
pub(super) fn run(remote: &Remote<'_>, computes: &Computes, name: &str, args: &SetArgs) -> anyhow::Result<()> {
    let value = set(remote, computes, name, args)?;
    let summary = match value["needs_restart"].as_bool() {
        Some(true) => format!("{name} knows; some of it is effective when it is stopped and started"),
        _ => format!("{name} knows"),
    };
    output::finish(remote.common.json, &value, summary);
    Ok(())
}

/// Changes a compute's options and returns all of them.
pub(super) fn set(remote: &Remote<'_>, computes: &Computes, name: &str, args: &SetArgs) -> anyhow::Result<Value> {
    let layout = computes.layout(name)?;
    let changes = args.told.changes(args.page_service.clone(), remote.token.clone());
    let changed = lifecycle::set(&layout, changes, &Registry::of(remote))?;
    let options = show::options(&lifecycle::ComputeConfig::load(&layout)?.options);
    Ok(json!({ "name": name, "needs_restart": changed.needs_restart, "options": options }))
}
