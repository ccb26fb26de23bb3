//! `pagectl compute start`.

use anyhow::bail;
use camino::Utf8Path;
use clap::Args;
use compute::layout::Layout;
use compute::lifecycle::{self, ComputeConfig, Computes, NewCompute, StartOptions};
use pageserver_api::shard::TenantShardId;
use serde_json::{Map, Value};

use super::control::{self, Opening, Registry};
use super::wanted::{self, HostArgs, Wanted};
use super::{gather, replica};
use crate::output;
use crate::remote::connection::Remote;
use crate::remote::{branches, init_state, moment};
use crate::table::text;

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

/// Why a compute is started, and what is done before.
pub(super) struct By<'a> {
    /// What it does on its branch.
    pub(super) opening: Opening,
    /// Makes a branch ready that is to be written. Returns the branch that took its place.
    pub(super) prepare: &'a dyn Fn(&Value) -> anyhow::Result<Value>,
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
            wanted::check_quota(remote, computes, &branch.value)?;
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
    let options =
        StartOptions { changes: wanted::changes(remote, args, host)?, replace: args.replace, timeout: host.timeout };
    let started = match lifecycle::start(&layout, &options, &Registry::of(remote).opening(opening)) {
        Ok(started) => started,
        Err(error) => {
            if is_new {
                wanted::undo(remote, &layout);
                delete_branch(remote, made_branch.as_ref());
            }
            return Err(with_hint(remote, error.into()));
        }
    };
    let mut warnings = wanted::warnings(remote, &layout, started.is_followed)?;
    if is_new {
        warnings.extend(replica::start_those_of_another(remote, computes, name, host));
    }
    Ok(wanted::described(name, &started, begun, &warnings))
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
