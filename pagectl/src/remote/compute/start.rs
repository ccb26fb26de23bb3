//! `pagectl compute start`.

use std::time::{Duration, Instant};

use anyhow::bail;
use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use compute::layout::Layout;
use compute::lifecycle::{
    self, Changes, ComputeConfig, Computes, NewCompute, OWNER_NAME, StartOptions, Started, State,
};
use pageserver_api::shard::TenantShardId;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::control::{self, Opening, Registry};
use super::set::Told;
use super::show;
use super::{gather, replica};
use crate::output;
use crate::remote::connection::Remote;
use crate::remote::{branches, init_state, moment, quota};
use crate::table::text;

/// How long a server may take to say what it is called.
const ASKED: Duration = Duration::from_secs(3);
/// Default address of the page service.
const PAGE_SERVICE: &str = "host=127.0.0.1 port=64000 user=compute";

/// Which compute, and how it is started here.
#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    pub(super) wanted: Wanted,
    #[command(flatten)]
    pub(super) host: HostArgs,
}

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

/// Why a compute is started, and what is done before.
pub(super) struct By<'a> {
    /// What it does on its branch.
    pub(super) opening: Opening,
    /// Makes a branch ready that is to be written. Returns the branch that took its place.
    pub(super) prepare: &'a dyn Fn(&Value) -> anyhow::Result<Value>,
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
    superuser: String,
    /// Page service of the page server; a new compute defaults to host=127.0.0.1 port=64000 user=compute. Several,
    /// separated by commas, if some servers are standbys of others: the compute asks the owner. A stopped compute keeps
    /// its own.
    #[arg(long, env = "PAGECTL_PAGE_SERVICE", value_name = "CONNSTR")]
    pub(super) page_service: Option<String>,
    /// Time limit for Postgres to answer.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    pub(super) timeout: Duration,
}

/// Starts a compute, creating it if it does not exist, and prints how to reach it.
pub(super) fn run(remote: &Remote<'_>, computes: &Computes, args: &StartArgs, by: &By<'_>) -> anyhow::Result<()> {
    let value = start(remote, computes, &args.wanted, &args.host, by)?;
    let summary = format!(
        "{} is ready after {} ms, {} of them Postgres: psql \"{} dbname=postgres\"",
        text(&value, "name"),
        text(&value, "ready_ms"),
        text(&value, "postgres_ready_ms"),
        text(&value, "connstr")
    );
    output::finish(remote.common.json, &value, format!("{summary}{}", remarks(&value)));
    Ok(())
}

/// Remarks that the user needs to see although nobody asked for them.
fn remarks(value: &Value) -> String {
    let mut remarks = String::new();
    let disabled = value["disabled_subscriptions"].as_array().cloned().unwrap_or_default();
    if !disabled.is_empty() {
        let names: Vec<&str> = disabled.iter().filter_map(Value::as_str).collect();
        remarks += &format!(
            "\nDisabled, for the branch has them from where it was made of, and would take rows from that: \
             subscriptions {}. \
             To use one here, give it a slot of its own (ALTER SUBSCRIPTION ... SET (slot_name = ...)) and enable it",
            names.join(", ")
        );
    }
    for warning in value["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        remarks += &format!("\n{warning}");
    }
    remarks
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

/// Starts a compute, creating it if it does not exist.
pub(super) fn start(
    remote: &Remote<'_>,
    computes: &Computes,
    args: &Wanted,
    host: &HostArgs,
    by: &By<'_>,
) -> anyhow::Result<Value> {
    let begun = env::clock::now();
    if let Some(primary) = replica::primary_of(computes, args)? {
        return replica::start(remote, computes, &primary, args, host);
    }
    let opening = if args.uninitialized { Opening::Repair } else { by.opening.clone() };
    let name = args.name.as_deref().or(args.branch.as_deref()).unwrap_or_default();
    let layout = computes.layout(name)?;
    let is_new = !layout.config().exists();
    let mut made_branch = None;
    if is_new {
        let mut branch = branch_for(remote, name, args)?;
        if args.replace && !branch.is_new && gather::gather(remote, &branch.value)? {
            branch = branch_for(remote, name, args)?;
        }
        if matches!(opening, Opening::Use) && !args.read_only {
            branch.value = (by.prepare)(&branch.value)?;
        }
        made_branch = branch.is_new.then(|| branch.value.clone());
        if args.read_only {
            check_quota(remote, computes, &branch.value)?;
        }
        let created = create(remote, computes, name, args, host, &branch.value);
        created.inspect_err(|_| delete_branch(remote, made_branch.as_ref()))?;
    } else if args.keep_subscriptions {
        bail!("the compute {name} exists: its subscriptions are as it was left");
    } else if args.at.is_some() || args.from.is_some() {
        bail!("the compute {name} exists: it goes on where it was. For another moment give another name");
    } else if matches!(opening, Opening::Use) {
        check_reader(remote, &layout)?;
    }
    let options = StartOptions { changes: changes(remote, args, host)?, replace: args.replace, timeout: host.timeout };
    let started = match lifecycle::start(&layout, &options, &Registry::of(remote).opening(opening)) {
        Ok(started) => started,
        Err(error) => {
            if is_new {
                undo(remote, &layout);
                delete_branch(remote, made_branch.as_ref());
            }
            return Err(with_hint(remote, error.into()));
        }
    };
    let mut warnings = warnings(remote, &layout, started.is_followed)?;
    if is_new {
        warnings.extend(replica::start_those_of_another(remote, computes, name, host));
    }
    Ok(described(name, &started, begun, &warnings))
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

/// Refuses to start a compute again that only reads, if nobody is to see what it reads.
fn check_reader(remote: &Remote<'_>, layout: &Layout) -> anyhow::Result<()> {
    let compute = ComputeConfig::load(layout)?;
    if !compute.read_only {
        // The server refuses.
        return Ok(());
    }
    let branch = remote.client.get(&control::path(&compute))?;
    init_state::check_moment(&branch, compute.boot_lsn).map_err(anyhow::Error::msg)
}

/// The role by which the root is followed can replicate, so a compute's WAL can be fetched as that role.
fn with_hint(remote: &Remote<'_>, error: anyhow::Error) -> anyhow::Error {
    if !error.to_string().contains("--superuser") {
        return error;
    }
    let root = remote.branch_or_root(None).ok();
    match root.as_ref().and_then(|root| root["walreceiver"]["user"].as_str()).filter(|user| !user.is_empty()) {
        Some(user) => anyhow::anyhow!("{error:#}\nThe pageserver follows the cluster as user {user:?}"),
        None => error,
    }
}

/// If the compute does not start, a branch created for it would be in the way of the next attempt.
fn delete_branch(remote: &Remote<'_>, branch: Option<&Value>) {
    let Some(branch) = branch else { return };
    let path = format!("/v1/tenant/{}/timeline/{}", text(branch, "tenant_id"), text(branch, "timeline_id"));
    if let Err(left) = remote.client.call("DELETE", &path, None) {
        tracing::warn!("the branch {} is left: {left:#}", text(branch, "name"));
    }
}

/// A compute that never answered has no data to lose.
pub(super) fn undo(remote: &Remote<'_>, layout: &Layout) {
    if let Err(left) = lifecycle::destroy(layout, true, &Registry::of(remote)) {
        tracing::warn!("{} is left: {left}", layout.root().display());
    }
}

fn create(
    remote: &Remote<'_>,
    computes: &Computes,
    name: &str,
    args: &Wanted,
    host: &HostArgs,
    branch: &Value,
) -> anyhow::Result<()> {
    let at = args.at.as_deref().filter(|_| args.read_only);
    let lsn = moment::lsn_at(remote, branch, at)?;
    if args.read_only && !args.uninitialized {
        init_state::check_moment(branch, lsn).map_err(anyhow::Error::msg)?;
    }
    let tenant: TenantShardId = text(branch, "tenant_id").parse()?;
    // What it has inherited stays so when it is detached.
    let point = ["ancestor_lsn", "detached_lsn"].map(|at| &branch[at]).into_iter().find(|lsn| lsn.is_string());
    let new = NewCompute {
        name,
        tenant: tenant.tenant_id,
        timeline: text(branch, "timeline_id").parse()?,
        branch: branch["name"].as_str().map(str::to_owned),
        lsn,
        branch_point: point.and_then(Value::as_str).map(str::parse).transpose()?,
        keep_subscriptions: args.keep_subscriptions,
        pg_version: branch["pg_version"].as_u64().and_then(|major| u32::try_from(major).ok()).unwrap_or_default(),
        page_service: host.page_service.as_deref().unwrap_or(PAGE_SERVICE),
        token: remote.token.clone(),
        read_only: args.read_only,
        replica: None,
        copy: args.copy,
        port: args.port,
        user: &host.user,
        superuser: &host.superuser,
        pg_bin: host.pg_bin.as_deref().map(Utf8Path::as_std_path),
    };
    lifecycle::create(computes, &new)?;
    Ok(())
}

/// The branch of a compute.
struct Branch {
    value: Value,
    is_new: bool,
}

/// The branch for the compute: an existing one that nobody writes, or a new one.
fn branch_for(remote: &Remote<'_>, name: &str, args: &Wanted) -> anyhow::Result<Branch> {
    let wanted = args.branch.as_deref();
    if args.read_only && args.from.is_none() {
        return Ok(Branch { value: remote.branch_or_root(wanted)?, is_new: false });
    }
    let found = match wanted {
        Some(wanted) => remote.find_branch(wanted)?,
        None => bail!("say with --branch what {name} is to write, or that it is to be --read-only"),
    };
    let Some(found) = found else {
        let value =
            branches::create(remote, wanted.unwrap_or(name), args.from.as_deref(), args.at.as_deref(), Map::new())?;
        return Ok(Branch { value, is_new: true });
    };
    if args.at.is_some() || args.from.is_some() {
        bail!("the branch {} exists: for another moment give a new one", wanted.unwrap_or(name));
    }
    match branches::writer(&found) {
        Some(writer) if !args.replace || !writer.starts_with("compute") => bail!(
            "{writer} writes the branch {}: stop it first, or give another branch with --branch NAME --from {0}",
            wanted.unwrap_or(name)
        ),
        _ => Ok(Branch { value: found, is_new: false }),
    }
}
