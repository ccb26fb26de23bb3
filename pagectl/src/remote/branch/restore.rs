//! `pagectl branch restore`: a branch as of an earlier moment, in its place.

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::removal::{self, ComputesOfIt};
use crate::output;
use crate::remote::connection::Remote;
use crate::remote::moment::{self, Moment};
use crate::table::text;

/// What to restore, and to when.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Its name or id.
    branch: String,
    /// The moment: an LSN (0/16B3748), a time (2026-01-31T12:30:00Z), or '10 minutes ago'.
    #[arg(long, value_name = "MOMENT")]
    at: String,
    /// The name under which the branch is kept as it is now; by default its name, `-before-` and the time.
    #[arg(long, value_name = "NAME")]
    keep_as: Option<String>,
    #[command(flatten)]
    computes: ComputesOfIt,
}

/// Restores a branch.
pub(super) fn run(remote: &Remote<'_>, args: &RestoreArgs) -> anyhow::Result<()> {
    let moment = moment::parse(&args.at)?;
    let branch = remote.branch_or_root(Some(&args.branch))?;
    let (tenant, id) = (text(&branch, "tenant_id"), text(&branch, "timeline_id"));
    // Before any compute ends: the moment must exist, and stay until the branch begins there.
    let lsn = moment::lsn_at(remote, &branch, Some(&args.at))?;
    let end: Lsn = text(&branch, "last_record_lsn").parse()?;
    if lsn > end {
        bail!("{} stays as it is: LSN {lsn} is after its last record, which ends at {end}", args.branch);
    }
    if let Some(taken) = args.keep_as.as_deref().map(|name| remote.find_branch(name)).transpose()?.flatten() {
        bail!("{} stays as it is: there is a branch {} already", args.branch, text(&taken, "name"));
    }
    let lease = format!("/v1/tenant/{tenant}/timeline/{id}/lsn_lease");
    let leased = remote.client.call("POST", &lease, Some(&json!({ "lsn": lsn })));
    leased.with_context(|| format!("{} stays as it is", args.branch))?;
    removal::end_computes(remote, &branch, &args.branch, &args.computes)?;
    let mut body = json!({ "new_timeline_id": TimelineId::generate(), "keep_as": args.keep_as });
    match moment {
        // The server says of a moment that cannot be had why.
        Moment::Time(time) if !time.ends_with("ago") => body["timestamp"] = json!(time),
        // How long ago counts from before computes end.
        _ => body["lsn"] = json!(lsn),
    }
    let path = format!("/v1/tenant/{tenant}/timeline/{id}/restore");
    let done = remote.client.call("POST", &path, Some(&body)).with_context(|| {
        format!(
            "what became of {}: pagectl branch list. If the server was interrupted, it goes on with it",
            args.branch
        )
    })?;
    let (now, kept): (&Value, &Value) = (&done["branch"], &done["kept"]);
    let summary = format!(
        "branch {} is as it was at LSN {} (timeline {}); what it was until now is kept as {}",
        text(now, "name"),
        text(now, "ancestor_lsn"),
        text(now, "timeline_id"),
        text(kept, "name")
    );
    output::finish(remote.common.json, &done, summary);
    Ok(())
}
