//! `pagectl compute promote`: a replica takes the place of its primary.
//!
//! The replica does not leave recovery: that would begin another timeline of Postgres, and its branch has one. Its
//! primary is stopped or ended, the branch gets what the replica has received and it has not, and the replica's
//! directory is made again as that of a compute that begins where the branch ends: which takes as long as any start.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use compute::layout::Layout;
use compute::lifecycle::{self, ComputeConfig, Computes, StartOptions, State};
use serde_json::{Value, json};
use utils::lsn::Lsn;

use super::control::{self, Registry};
use super::wanted::{self, HostArgs, Wanted};
use super::{bring, gather, replica, stop};
use crate::output;
use crate::remote::connection::Remote;
use crate::table::text;

/// How long a replica may take to say what it has received.
const ANSWER: Duration = Duration::from_secs(5);

/// Which replica.
#[derive(Debug, Args)]
pub(crate) struct PromoteArgs {
    /// The replica.
    pub(super) name: String,
    /// Time limit for its primary to stop in order; then it is ended.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    pub(super) stop_within: Duration,
    /// Port of Postgres; it keeps its own by default.
    #[arg(long)]
    pub(super) port: Option<u16>,
    #[command(flatten)]
    pub(super) host: HostArgs,
}

/// Promotes a replica, and prints how to reach it.
pub(super) fn run(remote: &Remote<'_>, computes: &Computes, args: &PromoteArgs) -> anyhow::Result<()> {
    let value = promote(remote, computes, args)?;
    let warnings = value["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let warnings: String = warnings.map(|warning| format!("\n{warning}")).collect();
    let summary = format!(
        "{} writes the branch from LSN {} on, after {} ms: psql \"{} dbname=postgres\"{warnings}",
        text(&value, "name"),
        text(&value, "start_lsn"),
        text(&value, "ready_ms"),
        text(&value, "connstr")
    );
    output::finish(remote.common.json, &value, summary);
    Ok(())
}

pub(super) fn promote(remote: &Remote<'_>, computes: &Computes, args: &PromoteArgs) -> anyhow::Result<Value> {
    let (begun, name) = (env::clock::now(), &args.name);
    let layout = computes.layout(name)?;
    let compute = ComputeConfig::load(&layout)?;
    let Some(of) = compute.replica.clone() else {
        bail!("{name} is no replica: only a replica can take its primary's place");
    };
    let branch = remote.client.get(&control::path(&compute))?;
    check_writer(&branch, &of.primary, &of.primary_id)?;
    let mut warnings: Vec<String> =
        end_primary(remote, computes, &of.primary, &of.primary_id, args.stop_within)?.into_iter().collect();
    if !matches!(State::of(&compute, &layout), State::Running(_)) {
        warnings.push(format!("{name} did not run: what it alone had received is not on the branch"));
    }
    let brought = take_all(remote, &compute, &layout, &branch)?;
    if let State::Running(_) = State::of(&compute, &layout) {
        stop::stopped(remote, computes, name, replica::STOP)?;
    }
    lifecycle::rewrite(&layout, &compute, brought.end)?;
    let by_default = Wanted { port: args.port, ..Wanted::default() };
    let mut changes = wanted::changes(remote, &by_default, &args.host)?;
    changes.sleeps = None;
    let options = StartOptions { changes, replace: true, timeout: args.host.timeout };
    let started = lifecycle::start(&layout, &options, &Registry::of(remote))?;
    warnings.extend(wanted::warnings(remote, &layout, started.is_followed)?);
    warnings.extend(follow(remote, computes, &of.primary, name, &args.host)?);
    let mut value = wanted::described(name, &started, begun, &warnings);
    value["start_lsn"] = json!(brought.end);
    value["brought_bytes"] = json!(brought.bytes);
    Ok(value)
}

/// The branch is written by the primary of the replica, or by nobody: of another one the replica knows nothing.
fn check_writer(branch: &Value, primary: &str, id: &str) -> anyhow::Result<()> {
    match branch["walreceiver"]["writer"]["id"].as_str() {
        Some(writer) if writer != id => bail!(
            "another compute than {primary} writes the branch, {}: stop the replica, and start it with --replica-of",
            text(&branch["walreceiver"]["writer"], "name")
        ),
        _ => Ok(()),
    }
}

/// Stops the primary, or ends it: it writes nothing any more. Returns what is to be said of it.
fn end_primary(
    remote: &Remote<'_>,
    computes: &Computes,
    primary: &str,
    id: &str,
    limit: Duration,
) -> anyhow::Result<Option<String>> {
    let layout = computes.layout(primary)?;
    if !layout.config().exists() {
        return Ok(Some(format!("{primary} is gone: what neither the page server nor the replica had is lost")));
    }
    let compute = ComputeConfig::load(&layout)?;
    if compute.id != id {
        return Ok(None);
    }
    if let State::Running(_) = State::of(&compute, &layout)
        && let Err(error) = stop::stopped(remote, computes, primary, limit)
    {
        tracing::warn!("{error:#}");
    }
    if ComputeConfig::load(&layout)?.released_lsn.is_some() {
        return Ok(None);
    }
    lifecycle::end_all(&layout)?;
    Ok(Some(format!(
        "{primary} did not stop in order: what it had committed and neither the page server nor the replica has \
         received is in its directory only, and is not on the branch; {primary} is not started again"
    )))
}

/// What was brought to a branch.
struct Brought {
    end: Lsn,
    bytes: u64,
}

/// Brings to the branch all that standbys and the replica have of the former writer.
fn take_all(remote: &Remote<'_>, compute: &ComputeConfig, layout: &Layout, branch: &Value) -> anyhow::Result<Brought> {
    let received = match State::of(compute, layout) {
        State::Running(_) => Some(
            lifecycle::progress(compute, layout, ANSWER)
                .map_err(|reason| anyhow::anyhow!("what {} has received is not known: {reason}", compute.name))?,
        ),
        _ => None,
    };
    gather::gather(remote, branch)?;
    let before = replica::end(remote, compute)?;
    let Some(received) = received.map(|progress| progress.received) else {
        return Ok(Brought { end: before, bytes: 0 });
    };
    let end = bring::bring(remote, compute, layout, received).map_err(|error| {
        anyhow::anyhow!(
            "{} has WAL up to {received}, the branch up to {before}, and it cannot be brought there: {error:#}. \
             Nothing is lost: try again. To do without it, stop {0} before",
            compute.name
        )
    })?;
    Ok(Brought { end, bytes: end.0.saturating_sub(before.0) })
}

/// The other replicas of the former primary follow the new one. Returns warnings.
fn follow(
    remote: &Remote<'_>,
    computes: &Computes,
    former: &str,
    primary: &str,
    host: &HostArgs,
) -> anyhow::Result<Vec<String>> {
    let mut warnings = Vec::new();
    for (name, compute) in computes.list()? {
        let Ok(compute) = compute else { continue };
        if compute.replica.as_ref().is_none_or(|of| of.primary != former) || name == primary {
            continue;
        }
        let layout = computes.layout(&name)?;
        lifecycle::follow(&layout, primary)?;
        warnings.extend(replica::restart(remote, computes, &name, primary, host).err());
    }
    Ok(warnings)
}
