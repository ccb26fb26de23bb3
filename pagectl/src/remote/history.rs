//! `pagectl gc` and `hold`.

use std::collections::HashMap;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use utils::lsn::Lsn;

use super::client::encoded_segment;
use super::connection::Remote;
use super::moment::{self, Moment};
use super::progress::{Progress, meanwhile};
use crate::output;
use crate::table::{bytes, table, text};

/// What is under way.
const LOOKING: &str = "looking for history that nothing keeps";
/// Seconds between two lines about that.
const TOLD_EVERY: u64 = 5;

/// What to do about history that nothing keeps.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct GcArgs {
    /// Remove it at once, instead of when the server does so by itself.
    #[arg(long)]
    now: bool,
    /// Only show what would go. That is also the default.
    #[arg(long)]
    dry_run: bool,
}

/// Operations on holds.
#[derive(Debug, Subcommand)]
pub(crate) enum HoldCommand {
    /// Keep a moment readable until the hold is deleted.
    Create {
        /// Its name: 1 to 100 printable characters.
        name: String,
        /// What to keep: an LSN (0/16B3748), a time (2026-01-31T12:30:00Z), or '10 minutes ago'; defaults to the end.
        #[arg(long, value_name = "MOMENT")]
        at: Option<String>,
    },
    /// List holds, and leases that have not ended.
    List,
    /// Delete a hold: the history that it alone has kept goes when history is removed next.
    Delete {
        /// Its name.
        name: String,
    },
}

/// Shows what goes, and what stays for what reason.
pub(super) fn gc(remote: &Remote<'_>, args: GcArgs) -> anyhow::Result<()> {
    let timelines = remote.branches()?;
    let Some(tenant) = remote.common.tenant.map(|id| id.to_string()).or_else(|| {
        let first = timelines.first()?;
        Some(text(first, "tenant_id"))
    }) else {
        bail!("the server has no timeline");
    };
    // One that asks for a dry run gets one, whatever the default becomes.
    let dry_run = args.dry_run || !args.now;
    let mut progress = Progress::new(remote.common.json, || output::spinner(LOOKING));
    let path = format!("/v1/tenant/{tenant}/gc?dry_run={dry_run}");
    let answer = meanwhile(
        || remote.client.call("POST", &path, None),
        |since| {
            if let seconds @ 1.. = since.as_secs() / TOLD_EVERY * TOLD_EVERY {
                progress.tell(0, 0, format!("{LOOKING}: {seconds} s"));
            }
        },
    );
    progress.end();
    let answer = answer?;
    let names: HashMap<String, String> = timelines
        .iter()
        .filter_map(|timeline| Some((text(timeline, "timeline_id"), timeline["name"].as_str()?.to_owned())))
        .collect();
    let reports = answer.as_array().map(Vec::as_slice).unwrap_or_default();
    let sum = |name: &str| reports.iter().filter_map(|report| report[name].as_u64()).sum::<u64>();
    let verb = if dry_run { "would go" } else { "are gone" };
    let (gone, stay) = (json!({ "n": sum("removed_bytes") }), json!({ "n": sum("kept_bytes") }));
    let (gone, stay) = (bytes(&gone, "n"), bytes(&stay, "n"));
    let mut summary = format!("{} layers ({gone}) {verb}, {} ({stay}) stay", sum("removed_layers"), sum("kept_layers"));
    if dry_run {
        summary.push_str("; to remove them at once: pagectl gc --now");
    }
    let shown = format!("{}\n\n{}\n\n{summary}", cutoffs(reports, &names), points(reports, &names));
    output::finish(remote.common.json, &json!({ "dry_run": dry_run, "timelines": answer }), shown);
    Ok(())
}

fn name_of(report: &Value, names: &HashMap<String, String>) -> String {
    let id = text(report, "timeline_id");
    names.get(&id).cloned().unwrap_or(id)
}

fn cutoffs(reports: &[Value], names: &HashMap<String, String>) -> String {
    let row = |report: &Value| {
        let mut row = vec![name_of(report, names)];
        row.extend(["old_cutoff", "cutoff", "bound_by"].map(|name| text(report, name)));
        row.extend(["removed_bytes", "kept_bytes"].map(|name| bytes(report, name)));
        row
    };
    let rows: Vec<Vec<String>> = reports.iter().map(row).collect();
    table(&["TIMELINE", "OLD CUTOFF", "CUTOFF", "BOUND BY", "GOES", "STAYS"], &rows)
}

fn points(reports: &[Value], names: &HashMap<String, String>) -> String {
    let mut rows = Vec::new();
    for report in reports {
        for point in report["points"].as_array().into_iter().flatten() {
            let named = |why: String, (id, name): (&String, &String)| why.replace(id, name);
            let why = names.iter().fold(text(point, "why"), named);
            rows.push(vec![name_of(report, names), text(point, "lsn"), why, bytes(point, "bytes")]);
        }
    }
    table(&["TIMELINE", "LSN", "KEPT FOR", "BYTES FOR IT ALONE"], &rows)
}

/// Runs `pagectl hold ...`.
pub(super) fn hold(remote: &Remote<'_>, command: HoldCommand) -> anyhow::Result<()> {
    let moment = match &command {
        HoldCommand::Create { at: Some(at), .. } => Some(moment::parse(at)?),
        _ => None,
    };
    let timeline = remote.branch_or_root(None)?;
    let path = format!("/v1/tenant/{}/timeline/{}/holds", text(&timeline, "tenant_id"), text(&timeline, "timeline_id"));
    match command {
        HoldCommand::Create { name, .. } => {
            let body = match moment {
                Some(Moment::Lsn(lsn)) => json!({ "lsn": lsn }),
                Some(Moment::Time(time)) => json!({ "timestamp": time }),
                None => json!({}),
            };
            let made = remote.client.call("PUT", &format!("{path}/{}", encoded_segment(&name)), Some(&body))?;
            let summary = format!("LSN {} stays readable until the hold {name:?} is deleted", text(&made, "lsn"));
            output::finish(remote.common.json, &made, summary);
        }
        HoldCommand::List => list(remote, &remote.client.get(&path)?),
        HoldCommand::Delete { name } => {
            let answer = remote.client.call("DELETE", &format!("{path}/{}", encoded_segment(&name)), None)?;
            output::finish(remote.common.json, &answer, format!("the hold {name:?} is deleted"));
        }
    }
    Ok(())
}

fn list(remote: &Remote<'_>, answer: &Value) {
    let of = |kind: &str| answer[kind].as_array().cloned().unwrap_or_default();
    let mut rows: Vec<(Option<Lsn>, Vec<String>)> = Vec::new();
    let mut add = |held: &Value, what: String, until: String| {
        rows.push((text(held, "lsn").parse().ok(), vec![text(held, "lsn"), what, until]));
    };
    of("holds").iter().for_each(|hold| add(hold, format!("hold {}", text(hold, "name")), "deleted".to_owned()));
    of("leases").iter().for_each(|lease| add(lease, "lease".to_owned(), text(lease, "valid_until")));
    rows.sort();
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(_, row)| row).collect();
    let summary = format!("{} holds, {} leases", of("holds").len(), of("leases").len());
    let shown = format!("{}\n{summary}", table(&["LSN", "KEPT BY", "UNTIL"], &rows));
    output::finish(remote.common.json, answer, shown);
}
