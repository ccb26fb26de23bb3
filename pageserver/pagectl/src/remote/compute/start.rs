//! `pagectl compute start`.

use std::time::Duration;

use anyhow::bail;
use camino::{Utf8Path, Utf8PathBuf};
use clap::Args;
use compute::layout::Layout;
use compute::lifecycle::{self, Computes, NewCompute, StartOptions};
use pageserver_api::shard::TenantShardId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::control::Registry;
use crate::output;
use crate::remote::Remote;
use crate::remote::branch;
use crate::remote::table::text;

/// Which compute, and how it is started here.
#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    wanted: Wanted,
    #[command(flatten)]
    host: HostArgs,
}

/// Which compute.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Wanted {
    /// Its name; that of the branch if not given.
    #[arg(required_unless_present = "branch")]
    pub(super) name: Option<String>,
    /// The branch, by name or id. It is made if there is none; a compute that only reads needs none.
    #[arg(long)]
    branch: Option<String>,
    /// Where a new branch begins, or what a compute that only reads sees: an LSN (0/16B3748), a time
    /// (2026-01-31T12:30:00Z), or '10 minutes ago'.
    #[arg(long, value_name = "MOMENT")]
    at: Option<String>,
    /// The branch that a new one continues; the one that was attached or imported if not given.
    #[arg(long, value_name = "BRANCH")]
    from: Option<String>,
    /// Only read: nothing is written anywhere, and there may be any number of such computes.
    #[arg(long)]
    read_only: bool,
    /// Copy all relations to this machine before it starts, instead of reading them when they are needed.
    #[arg(long)]
    copy: bool,
    /// Port of Postgres; a free one if not given. One that was stopped keeps its own.
    #[arg(long)]
    port: Option<u16>,
    /// Addresses to listen on besides the socket.
    #[arg(long, default_value = "", value_name = "ADDRESSES")]
    listen: String,
    /// A setting of Postgres; any number of them.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// Commits wait until the page server has what they wrote.
    #[arg(long)]
    wait_for_pageserver: bool,
    /// Take the place of the compute that writes the branch: its host is lost, and with it what it has not sent.
    #[arg(long, conflicts_with = "read_only")]
    replace: bool,
    /// How the page server reaches the compute; by its socket if not given.
    #[arg(long, value_name = "CONNSTR")]
    connstr: Option<String>,
}

/// How computes are started on this machine.
#[derive(Clone, Debug, Args)]
pub(crate) struct HostArgs {
    /// Programs of Postgres; looked for by the branch's version if not given.
    #[arg(long, env = "PAGECTL_PG_BIN", value_name = "DIR")]
    pg_bin: Option<Utf8PathBuf>,
    /// Who runs Postgres, if root starts it.
    #[arg(long, default_value = "postgres", value_name = "USER")]
    user: String,
    /// The user of Postgres by whose name WAL is fetched: it needs REPLICATION.
    #[arg(long, default_value = "postgres", value_name = "ROLE")]
    superuser: String,
    /// Page service of the page server.
    #[arg(
        long,
        env = "PAGECTL_PAGE_SERVICE",
        default_value = "host=127.0.0.1 port=64000 user=compute",
        value_name = "CONNSTR"
    )]
    page_service: String,
    /// For Postgres to answer.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

/// Starts a compute, which is made if it is not there, and tells how to reach it.
pub(super) fn run(remote: &Remote<'_>, computes: &Computes, args: &StartArgs) -> anyhow::Result<()> {
    let value = start(remote, computes, &args.wanted, &args.host)?;
    let summary = format!(
        "{} is ready after {} ms, {} of them Postgres: psql \"{} dbname=postgres\"",
        text(&value, "name"),
        text(&value, "ready_ms"),
        text(&value, "postgres_ready_ms"),
        text(&value, "connstr")
    );
    output::finish(remote.common.json, &value, summary);
    Ok(())
}

/// Starts a compute, which is made if it is not there.
pub(super) fn start(remote: &Remote<'_>, computes: &Computes, args: &Wanted, host: &HostArgs) -> anyhow::Result<Value> {
    let begun = env::clock::now();
    let name = args.name.as_deref().or(args.branch.as_deref()).unwrap_or_default();
    let layout = computes.layout(name)?;
    let is_new = !layout.config().exists();
    if is_new {
        create(remote, computes, name, args, host)?;
    } else if args.at.is_some() || args.from.is_some() {
        bail!("the compute {name} exists: it goes on where it was. For another moment give another name");
    }
    let started = match lifecycle::start(&layout, &options(args, host), &Registry(remote)) {
        Ok(started) => started,
        Err(error) => {
            if is_new {
                undo(remote, &layout);
            }
            return Err(error.into());
        }
    };
    let total = env::clock::now().saturating_duration_since(begun).as_millis() as u64;
    Ok(json!({ "name": name, "connstr": started.connstr, "ready_ms": total, "postgres_ready_ms": started.ready_ms }))
}

fn options(args: &Wanted, host: &HostArgs) -> StartOptions {
    StartOptions {
        listen: args.listen.clone(),
        wait_for_pageserver: args.wait_for_pageserver,
        overrides: args.settings.clone(),
        replace: args.replace,
        connstr: args.connstr.clone(),
        timeout: host.timeout,
    }
}

/// A compute that never answered has nothing that anybody misses.
fn undo(remote: &Remote<'_>, layout: &Layout) {
    if let Err(left) = lifecycle::destroy(layout, true, &Registry(remote)) {
        tracing::warn!("{} is left: {left}", layout.root().display());
    }
}

fn create(remote: &Remote<'_>, computes: &Computes, name: &str, args: &Wanted, host: &HostArgs) -> anyhow::Result<()> {
    let branch = branch_for(remote, name, args)?;
    let at = args.at.as_deref().filter(|_| args.read_only);
    let lsn = branch::lsn_at(remote, &branch, at)?;
    let tenant: TenantShardId = text(&branch, "tenant_id").parse()?;
    let new = NewCompute {
        name,
        tenant: tenant.tenant_id,
        timeline: text(&branch, "timeline_id").parse()?,
        branch: branch["name"].as_str().map(str::to_owned),
        lsn,
        pg_version: branch["pg_version"].as_u64().and_then(|major| u32::try_from(major).ok()).unwrap_or_default(),
        page_service: &host.page_service,
        token: remote.token.clone(),
        read_only: args.read_only,
        copy: args.copy,
        port: args.port,
        user: &host.user,
        superuser: &host.superuser,
        pg_bin: host.pg_bin.as_deref().map(Utf8Path::as_std_path),
    };
    lifecycle::create(computes, &new)?;
    Ok(())
}

/// The branch that the compute is for: one that is there and nobody writes, or a new one.
fn branch_for(remote: &Remote<'_>, name: &str, args: &Wanted) -> anyhow::Result<Value> {
    let wanted = args.branch.as_deref();
    if args.read_only && args.from.is_none() {
        return remote.branch_or_root(wanted);
    }
    let found = match wanted {
        Some(wanted) => remote.find_branch(wanted)?,
        None => bail!("say with --branch what {name} is to write, or that it is to be --read-only"),
    };
    let Some(found) = found else {
        return branch::create(remote, wanted.unwrap_or(name), args.from.as_deref(), args.at.as_deref());
    };
    if args.at.is_some() || args.from.is_some() {
        bail!("the branch {} exists: for another moment give a new one", wanted.unwrap_or(name));
    }
    match branch::writer(&found) {
        Some(writer) if !args.replace || !writer.starts_with("compute") => bail!(
            "{writer} writes the branch {}: stop it first, or give another branch with --branch NAME --from {0}",
            wanted.unwrap_or(name)
        ),
        _ => Ok(found),
    }
}
