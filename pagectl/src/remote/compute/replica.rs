//! `pagectl compute start NAME --replica-of COMPUTE`: hot standbys of computes.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use camino::Utf8Path;
use compute::layout::Layout;
use compute::lifecycle::{self, ComputeConfig, Computes, Control, NewCompute, Primary, StartOptions, State};
use serde_json::Value;
use utils::lsn::Lsn;

use super::control::{self, Registry};
use super::wanted::{self, HostArgs, Wanted};
use super::{show, stop};
use crate::remote::connection::Remote;
use crate::table::text;

/// Polling interval for the branch to have what a replica begins with.
const LOOK: Duration = Duration::from_millis(10);
/// How long a replica that has just started may take to say how far it is.
const ANSWER: Duration = Duration::from_secs(5);
/// Time limit for a replica to stop.
pub(super) const STOP: Duration = Duration::from_secs(30);

/// The primary of the compute that is to be started, if that is a replica: as it was, or as is wanted now.
pub(super) fn primary_of(computes: &Computes, args: &Wanted) -> anyhow::Result<Option<String>> {
    let name = args.name.as_deref().or(args.branch.as_deref()).unwrap_or_default();
    let layout = computes.layout(name)?;
    let existing = if layout.config().exists() { Some(ComputeConfig::load(&layout)?) } else { None };
    let was = existing.as_ref().and_then(|compute| compute.replica.as_ref());
    let Some(primary) = args.replica_of.clone().or_else(|| was.map(|of| of.primary.clone())) else { return Ok(None) };
    if existing.is_some() && was.is_none() {
        bail!("the compute {name} exists, and is no replica: give the replica another name");
    }
    let others = [args.at.is_some(), args.from.is_some(), args.read_only, args.keep_subscriptions, args.uninitialized];
    let on_branch = args.name.is_some() && args.branch.is_some();
    if others.contains(&true) || on_branch {
        bail!("{name} is a replica of {primary}: it is what that is, and takes no other branch or moment");
    }
    if args.replace {
        bail!("{name} is a replica of {primary}: pagectl compute promote {name}");
    }
    if primary == name {
        bail!("{name} cannot be a replica of itself");
    }
    Ok(Some(primary))
}

/// Starts a replica, new or stopped, and waits until it answers.
pub(super) fn start(
    remote: &Remote<'_>,
    computes: &Computes,
    primary: &str,
    args: &Wanted,
    host: &HostArgs,
) -> anyhow::Result<Value> {
    let begun = env::clock::now();
    let name = args.name.as_deref().unwrap_or_default();
    let layout = computes.layout(name)?;
    let existing = if layout.config().exists() { Some(ComputeConfig::load(&layout)?) } else { None };
    if let Some(State::Running(pid)) = existing.as_ref().map(|compute| State::of(compute, &layout)) {
        bail!("{name} runs already, as process {pid}: with `set {name}` it is told something else");
    }
    let (primary, _kept) = Primary::of(&computes.layout(primary)?, host.timeout)?;
    let branch = await_beginning(remote, &primary, begun, host.timeout)?;
    wanted::check_quota(remote, computes, &branch)?;
    let is_new = existing.is_none();
    match &existing {
        None => create(remote, computes, name, &primary, args, host)?,
        Some(compute) if (compute.tenant, compute.timeline) != (primary.compute.tenant, primary.compute.timeline) => {
            bail!("{name} is a replica on another branch than that of {}: destroy it first", primary.compute.name)
        }
        Some(compute) => drop(lifecycle::renew(&layout, compute, &primary)?),
    }
    let options = StartOptions { changes: wanted::changes(remote, args, host)?, replace: false, timeout: host.timeout };
    let started = match lifecycle::start(&layout, &options, &Registry::of(remote)) {
        Ok(started) => started,
        Err(error) => {
            if is_new {
                wanted::undo(remote, &layout);
            }
            return Err(error.into());
        }
    };
    let mut warnings = wanted::warnings(remote, &layout, started.is_followed)?;
    warnings.extend(await_end(&layout, primary.end, begun, host.timeout)?);
    Ok(wanted::described(name, &started, begun, &warnings))
}

fn create(
    remote: &Remote<'_>,
    computes: &Computes,
    name: &str,
    primary: &Primary,
    args: &Wanted,
    host: &HostArgs,
) -> anyhow::Result<()> {
    let of = &primary.compute;
    let pg_bin = host.pg_bin.as_deref().map_or(of.bin_dir.as_path(), Utf8Path::as_std_path);
    let new = NewCompute {
        name,
        tenant: of.tenant,
        timeline: of.timeline,
        branch: of.branch.clone(),
        lsn: primary.redo,
        branch_point: None,
        keep_subscriptions: false,
        pg_version: of.pg_version,
        page_service: host.page_service.as_deref().unwrap_or(&of.page_service),
        token: remote.token.clone().or_else(|| of.token.clone()),
        read_only: true,
        replica: Some(primary),
        copy: args.copy,
        port: args.port,
        user: of.owner.as_ref().map_or(host.user.as_str(), |owner| owner.name.as_str()),
        superuser: &of.superuser,
        pg_bin: Some(pg_bin),
    };
    lifecycle::create(computes, &new)?;
    Ok(())
}

/// Waits until the branch has the checkpoint that a replica begins with. Returns the branch.
fn await_beginning(remote: &Remote<'_>, primary: &Primary, begun: Instant, limit: Duration) -> anyhow::Result<Value> {
    let name = &primary.compute.name;
    loop {
        let branch = remote.client.get(&control::path(&primary.compute))?;
        if branch["walreceiver"]["writer"]["id"] != primary.compute.id.as_str() {
            bail!("{name} does not write its branch any more: another compute has taken its place");
        }
        let end: Lsn = text(&branch, "last_record_lsn").parse().context("the end of the branch")?;
        if end > primary.checkpoint {
            return Ok(branch);
        }
        if env::clock::now().saturating_duration_since(begun) >= limit {
            bail!(
                "a replica of {name} begins at LSN {}, and the branch ends at {end}: {}",
                primary.redo,
                show::not_followed(remote, &primary.compute)
            );
        }
        env::clock::pause(LOOK);
    }
}

/// Waits until a replica shows what was committed at its primary before it was started. The answer is a warning.
fn await_end(layout: &Layout, end: Lsn, begun: Instant, limit: Duration) -> anyhow::Result<Option<String>> {
    let compute = ComputeConfig::load(layout)?;
    loop {
        let progress = lifecycle::progress(&compute, layout, ANSWER).map_err(anyhow::Error::msg)?;
        if progress.replayed >= end {
            return Ok(None);
        }
        if env::clock::now().saturating_duration_since(begun) >= limit {
            return Ok(Some(format!(
                "{} has replayed up to {}, and goes on to {end}",
                compute.name, progress.replayed
            )));
        }
        env::clock::pause(LOOK);
    }
}

/// Replicas that run and follow the former compute of this name: what they have replayed may not be on its branch.
pub(super) fn start_those_of_another(
    remote: &Remote<'_>,
    computes: &Computes,
    primary: &str,
    host: &HostArgs,
) -> Vec<String> {
    let is_stale = |compute: &ComputeConfig, id: &str| {
        compute.replica.as_ref().is_some_and(|of| of.primary == primary && of.primary_id != id)
    };
    let id = computes.layout(primary).and_then(|layout| ComputeConfig::load(&layout)).map(|compute| compute.id);
    let (Ok(id), Ok(all)) = (id, computes.list()) else { return Vec::new() };
    let stale = all.into_iter().filter_map(|(_, compute)| compute.ok()).filter(|compute| is_stale(compute, &id));
    stale.filter_map(|compute| restart(remote, computes, &compute.name, primary, host).err()).collect()
}

/// Starts a replica anew if it runs, as one of `primary`. The error is a warning.
pub(super) fn restart(
    remote: &Remote<'_>,
    computes: &Computes,
    name: &str,
    primary: &str,
    host: &HostArgs,
) -> Result<(), String> {
    let again = || {
        let layout = computes.layout(name)?;
        let compute = ComputeConfig::load(&layout)?;
        if !matches!(State::of(&compute, &layout), State::Running(_)) {
            return Ok(());
        }
        stop::stopped(remote, computes, name, STOP)?;
        let by_default = Wanted { name: Some(name.to_owned()), ..Wanted::default() };
        start(remote, computes, primary, &by_default, host).map(drop)
    };
    again().map_err(|error: anyhow::Error| {
        format!("The replica {name} does not follow {primary}: {error:#}. Try: pagectl compute start {name}")
    })
}

/// The end of a branch.
pub(super) fn end(remote: &Remote<'_>, compute: &ComputeConfig) -> anyhow::Result<Lsn> {
    Registry::of(remote).end(compute).map_err(anyhow::Error::msg)
}
