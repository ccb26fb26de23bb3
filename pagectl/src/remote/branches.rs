//! Branches by name: looking them up, creating them, and who writes them.

use anyhow::bail;
use serde_json::{Map, Value, json};
use utils::id::TimelineId;

use super::connection::Remote;
use super::moment::{self, Moment};
use crate::table::text;

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

/// Creates a branch, of which `noted` is noted.
pub(super) fn create(
    remote: &Remote<'_>,
    name: &str,
    from: Option<&str>,
    at: Option<&str>,
    noted: Map<String, Value>,
) -> anyhow::Result<Value> {
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
    for (member, value) in noted {
        body[member] = value;
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
