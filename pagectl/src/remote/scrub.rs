//! `pagectl scrub --running`: the server verifies its own storage.

use std::time::Duration;

use anyhow::bail;
use serde_json::Value;

use super::connection::Remote;
use crate::output;
use crate::scrub::{ScrubArgs, finish};

/// Interval at which the server is asked for its progress.
const PERIOD: Duration = Duration::from_millis(500);

/// Runs the command.
pub(super) fn run(remote: &Remote<'_>, args: &ScrubArgs) -> anyhow::Result<()> {
    let tenants: Vec<String> = match remote.common.tenant {
        Some(tenant) => vec![tenant.to_string()],
        None => {
            let listed = remote.client.get("/v1/tenant")?;
            let own = listed.as_array().into_iter().flatten().filter(|tenant| tenant["owner"].is_null());
            own.filter_map(|it| it["id"].as_str().map(str::to_owned)).collect()
        }
    };
    let reports: Vec<Value> =
        tenants.iter().map(|tenant| one(remote, tenant, args)).collect::<anyhow::Result<Vec<Value>>>()?;
    finish(remote.common.json, &reports)
}

fn one(remote: &Remote<'_>, tenant: &str, args: &ScrubArgs) -> anyhow::Result<Value> {
    let path = format!("/v1/tenant/{tenant}/scrub");
    let query =
        format!("?repair={}&repair_bucket={}&delete_orphans={}", args.repair, args.repair_bucket, args.delete_orphans);
    let mut status = remote.client.call("POST", &format!("{path}{query}"), None)?;
    let bar = output::byte_bar(0);
    while status["state"] == "Running" {
        bar.set_length(status["planned_bytes"].as_u64().unwrap_or(0));
        bar.set_position(status["bytes"].as_u64().unwrap_or(0));
        env::clock::pause(PERIOD);
        status = remote.client.get(&path)?;
    }
    bar.finish_and_clear();
    match status["error"].as_str() {
        Some(error) => bail!("tenant {tenant} cannot be scrubbed: {error}"),
        None => Ok(status["report"].take()),
    }
}
