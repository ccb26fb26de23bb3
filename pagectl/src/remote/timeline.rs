//! `pagectl timeline ...`, and the choice of the timeline that a command is about.

use pageserver_api::shard::TenantShardId;
use serde_json::{Value, json};
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::connection::Remote;
use crate::output;
use crate::table::{bytes, table, text};
use crate::target::{Found, TimelineRef, choose};

impl Remote<'_> {
    /// All timelines of the tenant named by the arguments, or of all tenants.
    pub(super) fn timelines(&self) -> anyhow::Result<Vec<Value>> {
        let tenants = match self.common.tenant {
            Some(tenant) => vec![tenant.to_string()],
            None => {
                let listed = self.client.get("/v1/tenant")?;
                let own = listed.as_array().into_iter().flatten().filter(|tenant| tenant["owner"].is_null());
                own.map(|tenant| text(tenant, "id")).collect()
            }
        };
        let mut all = Vec::new();
        for tenant in tenants {
            let timelines = self.client.get(&format!("/v1/tenant/{tenant}/timeline"))?;
            all.extend(timelines.as_array().into_iter().flatten().cloned());
        }
        Ok(all)
    }

    /// The tenant and timeline named by the arguments, or the only ones of the server.
    pub(super) fn target(&self) -> anyhow::Result<(TenantShardId, TimelineId)> {
        let (tenant, timeline) = (self.common.tenant, self.common.timeline.as_ref());
        if let (Some(tenant), Some(TimelineRef::Id(timeline))) = (tenant, timeline) {
            return Ok((tenant, *timeline));
        }
        let found = self.timelines()?.iter().map(found).collect::<anyhow::Result<Vec<_>>>()?;
        let chosen = choose(found, tenant, timeline, "the server")?;
        Ok((chosen.tenant, chosen.id))
    }

    /// URL path of the timeline that the command is about.
    pub(super) fn base(&self) -> anyhow::Result<String> {
        self.target().map(|(tenant, timeline)| format!("/v1/tenant/{tenant}/timeline/{timeline}"))
    }
}

fn found(timeline: &Value) -> anyhow::Result<Found> {
    let (tenant, id) = (text(timeline, "tenant_id").parse()?, text(timeline, "timeline_id").parse()?);
    Ok(Found { tenant, id, name: timeline["name"].as_str().map(str::to_owned) })
}

/// Lists all timelines.
pub(super) fn list(remote: &Remote<'_>) -> anyhow::Result<()> {
    let timelines = remote.timelines()?;
    let rows: Vec<Vec<String>> = timelines.iter().map(row).collect();
    let head = ["TENANT", "TIMELINE", "ANCESTOR", "AT", "LAST LSN", "ON DISK", "IN BUCKET", "SIZE", "WAL"];
    output::finish(remote.common.json, &json!({ "timelines": timelines }), table(&head, &rows));
    Ok(())
}

fn row(timeline: &Value) -> Vec<String> {
    let names = [
        "tenant_id",
        "timeline_id",
        "ancestor_timeline_id",
        "ancestor_lsn",
        "last_record_lsn",
        "disk_consistent_lsn",
        "remote_consistent_lsn",
    ];
    let broken = timeline["state"]["Broken"]["reason"].as_str();
    let receiver = match timeline["is_archived"].as_bool() {
        Some(true) => "archived".to_owned(),
        _ => text(&timeline["walreceiver"], "state"),
    };
    let mut row: Vec<String> = names.iter().map(|name| text(timeline, name)).collect();
    row.push(bytes(timeline, "current_physical_size"));
    row.push(broken.map_or(receiver, |reason| format!("BROKEN: {reason}")));
    row
}

/// Shows a timeline.
pub(super) fn info(remote: &Remote<'_>) -> anyhow::Result<()> {
    let info = remote.client.get(&remote.base()?)?;
    let mut lines = Vec::new();
    for (name, value) in info.as_object().into_iter().flatten() {
        match value.as_object() {
            None => lines.push(format!("{name:22} {}", text(&info, name))),
            Some(members) => {
                lines.push(format!("{name}:"));
                lines.extend(members.iter().map(|(member, value)| format!("  {member:20} {}", inner(value))));
            }
        }
    }
    output::finish(remote.common.json, &info, lines.join("\n"));
    Ok(())
}

/// A member's value on one line.
fn inner(value: &Value) -> String {
    match value {
        Value::Object(members) => {
            let parts = members.keys().map(|name| format!("{name} {}", text(value, name)));
            parts.collect::<Vec<_>>().join(", ")
        }
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Creates a branch.
pub(super) fn branch(
    remote: &Remote<'_>,
    at_lsn: Option<Lsn>,
    at_time: Option<String>,
    id: Option<TimelineId>,
) -> anyhow::Result<()> {
    let (tenant, ancestor) = remote.target()?;
    let id = id.unwrap_or_else(TimelineId::generate);
    let mut body = json!({ "new_timeline_id": id, "ancestor_timeline_id": ancestor });
    if let Some(lsn) = at_lsn {
        body["ancestor_start_lsn"] = json!(lsn);
    }
    if let Some(moment) = at_time {
        body["ancestor_start_timestamp"] = json!(moment);
    }
    let made = remote.client.call("POST", &format!("/v1/tenant/{tenant}/timeline"), Some(&body))?;
    let summary = format!("timeline {id} branches off {ancestor} at LSN {}", text(&made, "ancestor_lsn"));
    output::finish(remote.common.json, &made, summary);
    Ok(())
}

/// Archives a timeline, or takes it back into service.
pub(super) fn archive(remote: &Remote<'_>, wanted: Option<&str>, archived: bool) -> anyhow::Result<()> {
    let (tenant, timeline) = match wanted {
        None => remote.target()?,
        Some(wanted) => {
            let Found { tenant, id, .. } = found(&remote.branch_or_root(Some(wanted))?)?;
            (tenant, id)
        }
    };
    let body = json!({ "state": if archived { "Archived" } else { "Unarchived" } });
    let path = format!("/v1/tenant/{tenant}/timeline/{timeline}/archival_config");
    let answer = remote.client.call("PUT", &path, Some(&body))?;
    for left in answer["left_slots"].as_array().into_iter().flatten().filter(|_| !remote.common.json) {
        let (host, slot) = (text(left, "host"), text(left, "slot"));
        output::line(format_args!(
            "{host} goes on to keep WAL for it. If it stays archived: SELECT pg_drop_replication_slot('{slot}')"
        ));
    }
    let summary = match archived {
        true => format!("timeline {timeline} is archived: only its end is kept"),
        false => format!("timeline {timeline} is in service again, with the history that is left"),
    };
    output::finish(remote.common.json, &answer, summary);
    Ok(())
}

/// Deletes a timeline.
pub(super) fn delete(remote: &Remote<'_>) -> anyhow::Result<()> {
    let (tenant, timeline) = remote.target()?;
    let answer = remote.client.call("DELETE", &format!("/v1/tenant/{tenant}/timeline/{timeline}"), None)?;
    tell_left_slots(remote, &answer);
    output::finish(remote.common.json, &answer, format!("timeline {timeline} is deleted"));
    Ok(())
}

/// Prints which slots to drop, because their servers retain WAL for them.
pub(super) fn tell_left_slots(remote: &Remote<'_>, answer: &Value) {
    for left in answer["left_slots"].as_array().into_iter().flatten().filter(|_| !remote.common.json) {
        let (host, slot) = (text(left, "host"), text(left, "slot"));
        output::line(format_args!(
            "{host} goes on to keep WAL. If nobody else uses it: SELECT pg_drop_replication_slot('{slot}')"
        ));
    }
}
