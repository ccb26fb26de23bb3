//! `pagectl branch ...`, and lookup of branches by name.

mod diff;

use anyhow::bail;
use clap::Subcommand;
use pageserver_api::shard::TenantShardId;
use serde_json::{Value, json};
use utils::id::TimelineId;

use super::connection::Remote;
use super::moment::{self, Moment};
use crate::output;
use crate::table::{bytes, table, text};

/// Operations on branches.
#[derive(Debug, Subcommand)]
pub(crate) enum BranchCommand {
    /// Create a branch of another one, at its end or at an earlier point.
    Create {
        /// Its name.
        name: String,
        /// The branch that it continues, by name or id; defaults to the only root, the one that was followed or
        /// imported.
        #[arg(long, value_name = "BRANCH")]
        from: Option<String>,
        /// Where to branch: an LSN (0/16B3748), a time (2026-01-31T12:30:00Z), or '10 minutes ago'.
        #[arg(long, value_name = "MOMENT")]
        at: Option<String>,
    },
    /// List all branches.
    List,
    /// Show which relations differ between two branches or two points in time, and in how many blocks.
    Diff {
        /// Its name or id.
        branch: String,
        /// The branch to compare with; defaults to the ancestor, as of the branch point.
        other: Option<String>,
        /// Compare as of an LSN, a time, or '10 minutes ago'; defaults to the branch's end.
        #[arg(long, value_name = "MOMENT")]
        at: Option<String>,
        /// Compare with the other branch, or with this one if no other is given, as of this LSN or time.
        #[arg(long, value_name = "MOMENT")]
        other_at: Option<String>,
    },
    /// Delete a branch and everything stored for it.
    Delete {
        /// Its name or id.
        branch: String,
    },
}

/// Runs the command.
pub(super) fn run(remote: &Remote<'_>, command: BranchCommand) -> anyhow::Result<()> {
    match command {
        BranchCommand::Create { name, from, at } => {
            let made = create(remote, &name, from.as_deref(), at.as_deref())?;
            let (id, from) = (text(&made, "timeline_id"), text(&made, "ancestor_timeline_id"));
            let summary = format!("branch {name} (timeline {id}) of {from} at LSN {}", text(&made, "ancestor_lsn"));
            output::finish(remote.common.json, &made, summary);
            Ok(())
        }
        BranchCommand::List => list(remote),
        BranchCommand::Diff { branch, other, at, other_at } => {
            diff::run(remote, &branch, other.as_deref(), at.as_deref(), other_at.as_deref())
        }
        BranchCommand::Delete { branch } => delete(remote, &branch),
    }
}

impl Remote<'_> {
    /// The branches of the tenant named by the arguments, or of the only tenant.
    pub(super) fn branches(&self) -> anyhow::Result<Vec<Value>> {
        let all = self.timelines()?;
        let tenants: std::collections::BTreeSet<_> = all.iter().map(|timeline| text(timeline, "tenant_id")).collect();
        if tenants.len() > 1 {
            bail!("the server has {} tenants: say with --tenant which is meant", tenants.len());
        }
        Ok(all)
    }

    /// Finds a branch by its name or id.
    pub(super) fn find_branch(&self, wanted: &str) -> anyhow::Result<Option<Value>> {
        let is_wanted = |timeline: &Value| text(timeline, "name") == wanted || text(timeline, "timeline_id") == wanted;
        Ok(self.branches()?.into_iter().find(is_wanted))
    }

    /// Finds a branch by its name or id; without one, the timeline of `--timeline`, or the only root.
    pub(super) fn branch_or_root(&self, wanted: Option<&str>) -> anyhow::Result<Value> {
        if let Some(wanted) = wanted {
            return match self.find_branch(wanted)? {
                Some(branch) => Ok(branch),
                None => bail!("there is no branch {wanted}"),
            };
        }
        if let Some(timeline) = &self.common.timeline {
            return self.branch_or_root(Some(&timeline.to_string()));
        }
        let mut all = self.branches()?;
        all.retain(|timeline| timeline["ancestor_timeline_id"].is_null());
        match all.as_slice() {
            [only] => Ok(only.clone()),
            [] => bail!("the pageserver has no timeline: follow a server first (pagectl follow)"),
            several => bail!("the server has {} clusters: say with --from or --timeline which is meant", several.len()),
        }
    }
}

/// Creates a branch.
pub(super) fn create(remote: &Remote<'_>, name: &str, from: Option<&str>, at: Option<&str>) -> anyhow::Result<Value> {
    let moment = at.map(moment::parse).transpose()?;
    let ancestor = remote.branch_or_root(from)?;
    let tenant = text(&ancestor, "tenant_id");
    let mut body = json!({ "name": name, "new_timeline_id": TimelineId::generate(),
        "ancestor_timeline_id": ancestor["timeline_id"] });
    match moment {
        Some(Moment::Lsn(lsn)) => body["ancestor_start_lsn"] = json!(lsn),
        Some(Moment::Time(time)) => body["ancestor_start_timestamp"] = json!(time),
        None => {}
    }
    remote.client.call("POST", &format!("/v1/tenant/{tenant}/timeline"), Some(&body))
}

/// Describes who writes a branch: a compute, or the server that it follows.
pub(super) fn writer(branch: &Value) -> Option<String> {
    let receiver = branch["walreceiver"].as_object()?;
    let host = receiver.get("host").and_then(Value::as_str).unwrap_or_default();
    Some(match receiver.get("writer").and_then(|writer| writer["name"].as_str()) {
        Some(compute) => format!("compute {compute}"),
        None => format!("server {host}"),
    })
}

fn list(remote: &Remote<'_>) -> anyhow::Result<()> {
    let branches = remote.branches()?;
    let name_of = |id: &Value| {
        let found = branches.iter().find(|branch| branch["timeline_id"] == *id);
        found
            .and_then(|branch| branch["name"].as_str())
            .map_or_else(|| id.as_str().unwrap_or("-").to_owned(), str::to_owned)
    };
    let row = |branch: &Value| {
        let mut row = vec![text(branch, "name"), text(branch, "timeline_id"), name_of(&branch["ancestor_timeline_id"])];
        row.extend([text(branch, "ancestor_lsn"), text(branch, "last_record_lsn")]);
        row.push(bytes(branch, "current_physical_size"));
        let nobody = if branch["is_archived"] == true { "nobody: archived" } else { "-" };
        row.push(writer(branch).unwrap_or_else(|| nobody.to_owned()));
        row
    };
    let rows: Vec<Vec<String>> = branches.iter().map(row).collect();
    let head = ["BRANCH", "TIMELINE", "OF", "AT", "LAST LSN", "SIZE", "WRITTEN BY"];
    output::finish(remote.common.json, &json!({ "branches": branches }), table(&head, &rows));
    Ok(())
}

fn delete(remote: &Remote<'_>, wanted: &str) -> anyhow::Result<()> {
    let branch = remote.branch_or_root(Some(wanted))?;
    if let Some(compute) = writer(&branch).filter(|writer| writer.starts_with("compute")) {
        bail!("{compute} writes the branch {wanted}: destroy it first");
    }
    let (tenant, timeline) = (text(&branch, "tenant_id"), text(&branch, "timeline_id"));
    let tenant: TenantShardId = tenant.parse()?;
    let answer = remote.client.call("DELETE", &format!("/v1/tenant/{tenant}/timeline/{timeline}"), None)?;
    super::timeline::tell_left_slots(remote, &answer);
    output::finish(remote.common.json, &answer, format!("branch {wanted} is deleted"));
    Ok(())
}
