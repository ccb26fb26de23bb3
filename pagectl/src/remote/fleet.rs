//! `pagectl fleet ...`: all servers on the bucket of one of them.

use clap::Subcommand;
use serde_json::Value;

use super::connection::Remote;
use super::placing::{self, DrainArgs, FillArgs, RebalanceArgs};
use crate::output;
use crate::table::{bytes, table, text};

#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// Show all servers that share a bucket, as any of them tells: which of them owns which tenant, which are standbys,
    /// their leases, and how far each of them is.
    Status,
    /// Move all tenants that a server owns to others, standbys first. It owns nothing from then on, also after
    /// restarts, and takes nothing over by itself, until it is filled again.
    Drain(DrainArgs),
    /// Let a drained server own tenants again, and move its share to it.
    Fill(FillArgs),
    /// Move tenants so that all servers own about equally many. The plan is printed first.
    Rebalance(RebalanceArgs),
}

pub(super) fn run(remote: &Remote<'_>, command: &FleetCommand) -> anyhow::Result<()> {
    match command {
        FleetCommand::Status => status(remote),
        FleetCommand::Drain(args) => placing::drain(remote, args),
        FleetCommand::Fill(args) => placing::fill(remote, args),
        FleetCommand::Rebalance(args) => placing::rebalance(remote, args),
    }
}

fn status(remote: &Remote<'_>) -> anyhow::Result<()> {
    let fleet = remote.client.get("/v1/fleet")?;
    let shown = shown(&fleet);
    output::finish(remote.common.json, &fleet, shown);
    Ok(())
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn shown(fleet: &Value) -> String {
    let servers: Vec<_> = array(&fleet["servers"]).iter().map(server).collect();
    let tenants = array(&fleet["tenants"]);
    let roles: Vec<_> =
        tenants.iter().flat_map(|tenant| array(&tenant["roles"]).iter().map(|one| role(tenant, one))).collect();
    let mut shown = table(&["SERVER", "HOST", "CONSOLE", "OWNS", "STANDBY OF", "LEASE", "HEARD"], &servers);
    if !roles.is_empty() {
        let head = ["TENANT", "SERVER", "ROLE", "GENERATION", "TIMELINE", "LSN", "BEHIND", "TROUBLE"];
        shown = format!("{shown}\n\n{}", table(&head, &roles));
    }
    match fleet["tenants_left_out"].as_u64() {
        Some(more) if more > 0 => format!("{shown}\nand {more} more tenants"),
        _ => shown,
    }
}

fn server(server: &Value) -> Vec<String> {
    let is_this = server["is_this"] == true;
    let lease = &server["lease"];
    let renewed = match (lease["renewed_seconds_ago"].as_u64(), lease["is_overdue"] == true) {
        (Some(ago), overdue) => format!("{ago} s ago{}", if overdue { ", overdue" } else { "" }),
        (None, _) => "none".to_owned(),
    };
    let heard = match server["said_seconds_ago"].as_u64() {
        _ if is_this => "now".to_owned(),
        Some(ago) => format!("{ago} s ago"),
        None => "never".to_owned(),
    };
    let id = text(server, "id");
    let id = if is_this { format!("{id} (asked)") } else { id };
    let id = if server["drained"] == true { format!("{id} (drained)") } else { id };
    let (owns, standby_of) = (text(server, "owns"), text(server, "standby_of"));
    vec![id, text(server, "host"), text(server, "url"), owns, standby_of, renewed, heard]
}

fn role(tenant: &Value, role: &Value) -> Vec<String> {
    let said = &role["said"];
    let generation = if said["generation"].is_null() { text(tenant, "generation") } else { text(said, "generation") };
    let timelines = array(&said["timelines"]);
    // The one that is farthest behind comes first.
    let first = timelines.first().unwrap_or(&Value::Null);
    let named = if first["name"].is_null() { text(first, "timeline_id") } else { text(first, "name") };
    let more = timelines.len().saturating_sub(1) as u64 + said["timelines_left_out"].as_u64().unwrap_or(0);
    let named = if more > 0 { format!("{named} and {more} more") } else { named };
    let troubles = std::iter::once(said).chain(timelines).map(|one| &one["error"]);
    let trouble = troubles.filter_map(Value::as_str).next().unwrap_or("-").to_owned();
    let (id, server, what) = (text(tenant, "id"), text(role, "server"), text(role, "role"));
    vec![id, server, what, generation, named, text(first, "lsn"), bytes(first, "lag_bytes"), trouble]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn who_is_what_is_a_table() {
        let position = json!({"timeline_id": "t1", "name": "main", "lsn": "0/20", "lag_bytes": 2048, "error": null});
        let fleet = json!({
            "servers": [
                {"id": "a", "host": "one", "url": "http://one/", "is_this": true, "said_seconds_ago": 0, "owns": 1,
                 "standby_of": 0, "lease": {"renewed_seconds_ago": 1, "is_overdue": false}},
                {"id": "b", "host": "two", "url": null, "is_this": false, "said_seconds_ago": 4, "owns": 0,
                 "standby_of": 1, "lease": null},
            ],
            "tenants": [{"id": "t", "generation": 3, "roles": [
                {"server": "a", "role": "owner", "said": {"generation": 3, "error": null, "timelines": [position]}},
                {"server": "b", "role": "standby", "said": {"generation": 3, "error": "no journal", "timelines": []}},
                {"server": "c", "role": "former", "said": null},
            ]}],
            "tenants_left_out": 2,
        });
        let lines: Vec<String> =
            shown(&fleet).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines[1], "a (asked) one http://one/ 1 0 1 s ago now");
        assert_eq!(lines[2], "b two - 0 1 none 4 s ago");
        assert_eq!(lines[5], "t a owner 3 main 0/20 2.00 KiB -");
        assert_eq!(lines[6], "t b standby 3 - - - no journal");
        assert_eq!(lines[7], "t c former 3 - - - -");
        assert_eq!(lines[8], "and 2 more tenants");
    }
}
