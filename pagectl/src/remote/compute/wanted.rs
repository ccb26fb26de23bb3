//! Which compute is wanted, and what is told of it once it runs: for those that write or read, and for replicas.

use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use clap::Args;
use compute::layout::Layout;
use compute::lifecycle::{self, Changes, ComputeConfig, Computes, OWNER_NAME, Started, State};
use serde::Deserialize;
use serde_json::{Value, json};

use super::control::Registry;
use super::set::Told;
use super::show;
use crate::remote::connection::Remote;
use crate::remote::quota;
use crate::table::text;

/// How long a server may take to say what it is called.
const ASKED: Duration = Duration::from_secs(3);

/// Which compute.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Wanted {
    /// Its name; defaults to the name of the branch.
    #[arg(required_unless_present = "branch")]
    pub(super) name: Option<String>,
    /// The branch, by name or id. Created if it does not exist; a read-only compute needs none of its own.
    #[arg(long)]
    pub(super) branch: Option<String>,
    /// Where a new branch begins, or what a read-only compute sees: an LSN (0/16B3748), a time
    /// (2026-01-31T12:30:00Z), or '10 minutes ago'.
    #[arg(long, value_name = "MOMENT")]
    pub(super) at: Option<String>,
    /// The branch that a new one continues; defaults to the only root, the one that was followed or imported.
    #[arg(long, value_name = "BRANCH")]
    pub(super) from: Option<String>,
    /// Only read: nothing is written to any branch, and there may be any number of such computes.
    #[arg(long)]
    pub(super) read_only: bool,
    /// Follow this compute of this machine as a hot standby that serves reads: a replica. `promote` makes it the
    /// primary. Each start of a replica begins anew, where its primary is.
    #[arg(long, value_name = "COMPUTE", conflicts_with_all = ["branch", "at", "from", "read_only", "replace",
        "keep_subscriptions", "uninitialized"])]
    pub(super) replica_of: Option<String>,
    /// Copy all relations to this machine before starting, instead of reading them on demand.
    #[arg(long)]
    pub(super) copy: bool,
    /// Port of Postgres; a free one by default. A stopped compute keeps its own if none is given.
    #[arg(long)]
    pub(super) port: Option<u16>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) told: Told,
    /// Replace the branch's writer, whose host is lost; whatever it has not sent is lost with it.
    #[arg(long, conflicts_with = "read_only")]
    pub(super) replace: bool,
    /// Keep subscriptions of logical replication enabled on a new branch; they then consume rows at the publisher
    /// that are meant for the branch's ancestor.
    #[arg(long, conflicts_with = "read_only")]
    pub(super) keep_subscriptions: bool,
    /// Even if the branch is closed, since the SQL that is to run on it first has not succeeded: to look at it or to
    /// repair something. What that SQL is to mask can be seen then.
    #[arg(long)]
    pub(super) uninitialized: bool,
}

/// How computes are started on this machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct HostArgs {
    /// Directory of the Postgres programs; by default it is searched for by the branch's version.
    #[arg(long, env = "PAGECTL_PG_BIN", value_name = "DIR")]
    pub(super) pg_bin: Option<Utf8PathBuf>,
    /// The user to run Postgres as when started by root.
    #[arg(long, default_value = "postgres", value_name = "USER")]
    pub(super) user: String,
    /// The Postgres role as which WAL is fetched; it needs REPLICATION.
    #[arg(long, default_value = "postgres", value_name = "ROLE")]
    pub(super) superuser: String,
    /// Page service of the page server; a new compute defaults to host=127.0.0.1 port=64000 user=compute. Several,
    /// separated by commas, if some servers are standbys of others: the compute asks the owner. A stopped compute keeps
    /// its own.
    #[arg(long, env = "PAGECTL_PAGE_SERVICE", value_name = "CONNSTR")]
    pub(super) page_service: Option<String>,
    /// Time limit for Postgres to answer.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    pub(super) timeout: Duration,
}

/// What waiting for the page server guarantees.
const WAITS: &str = "Commits here wait until the page server has received what they wrote, not until it is durable \
                     there, for which it would need a journal (its setting durability): one that was acknowledged \
                     survives the loss of this compute, or of the page server, and is lost with both together \
                     (docs/operations.md)";

/// Whether the page server has a journal, in which WAL is durable as soon as it has arrived.
fn has_journal(remote: &Remote<'_>) -> anyhow::Result<bool> {
    Ok(remote.client.call("GET", "/v1/status", None)?["durability"] == "journal")
}

/// The names under which the page servers follow a compute, if there are several: the owner's, and one of each server
/// with a journal, as a standby. None if that is not known, as one does not answer.
fn followers(remote: &Remote<'_>) -> Option<Vec<String>> {
    let asked = remote.client.each().into_iter().map(|one| one.within(ASKED).get("/v1/status"));
    let all: Vec<Value> = asked.collect::<Result<_, _>>().ok()?;
    let standbys = all.iter().filter(|status| status["durability"] == "journal").map(|it| text(it, "standby_name"));
    let names: Vec<String> = std::iter::once(OWNER_NAME.to_owned()).chain(standbys).collect();
    // One server alone is no standby of another.
    Some(if all.len() > 1 { names } else { Vec::new() })
}

/// Warns about possible problems.
pub(super) fn warnings(remote: &Remote<'_>, layout: &Layout, is_followed: bool) -> anyhow::Result<Vec<String>> {
    let config = ComputeConfig::load(layout)?;
    let mut warnings = Vec::new();
    if !is_followed {
        warnings.push(format!("{}: its WAL stays on this machine meanwhile", show::not_followed(remote, &config)));
    }
    if config.options.wait_for_pageserver && !config.read_only && !config.options.until_durable {
        warnings.push(WAITS.to_owned());
    }
    Ok(warnings)
}

/// What is told of a compute that was started.
pub(super) fn described(name: &str, started: &Started, begun: Instant, warnings: &[String]) -> Value {
    let total = env::clock::now().saturating_duration_since(begun).as_millis() as u64;
    json!({ "name": name, "connstr": started.connstr, "ready_ms": total, "postgres_ready_ms": started.ready_ms,
        "disabled_subscriptions": started.disabled_subscriptions, "warnings": warnings })
}

/// What a start changes of a compute's options.
pub(super) fn changes(remote: &Remote<'_>, args: &Wanted, host: &HostArgs) -> anyhow::Result<Changes> {
    let changes = args.told.changes(host.page_service.clone(), remote.token.clone());
    let sleeps = Some(changes.sleeps.unwrap_or(false));
    let (until_durable, followers) = (Some(has_journal(remote)?), followers(remote));
    Ok(Changes { until_durable, followers, sleeps, port: args.port, ..changes })
}

/// Refuses one more compute that only reads, if the tenant may have no more computes; of others the server counts.
pub(super) fn check_quota(remote: &Remote<'_>, computes: &Computes, branch: &Value) -> anyhow::Result<()> {
    let tenant = text(branch, "tenant_id");
    let mut running = 0;
    for compute in computes.list()?.into_iter().filter_map(|(_, compute)| compute.ok()) {
        let is_reader = compute.read_only && compute.tenant.to_string() == tenant;
        let layout = computes.layout(&compute.name)?;
        running += u64::from(is_reader && matches!(State::of(&compute, &layout), State::Running(_)));
    }
    quota::check_readers(remote, &tenant, running)
}

/// A compute that never answered has no data to lose.
pub(super) fn undo(remote: &Remote<'_>, layout: &Layout) {
    if let Err(left) = lifecycle::destroy(layout, true, &Registry::of(remote)) {
        tracing::warn!("{} is left: {left}", layout.root().display());
    }
}
