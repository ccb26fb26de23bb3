//! `pagectl follow`: follows a running Postgres, and shows the progress of its base backup.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use super::connection::Remote;
use crate::output;
use crate::table::text;

/// Interval at which the server is asked for its progress.
const PERIOD: Duration = Duration::from_millis(250);

/// Which Postgres to follow.
#[derive(Debug, Args)]
pub(crate) struct FollowArgs {
    /// How to reach it: postgres://user@host:port or "host=... user=...". The user needs REPLICATION. Use the
    /// environment variable if this contains a password.
    #[arg(env = "PAGECTL_CONNSTR", hide_env_values = true)]
    connstr: String,
    /// Name of the replication slot to create; random if not given.
    #[arg(long)]
    slot: Option<String>,
    /// Do not wait for the base backup to complete.
    #[arg(long)]
    no_wait: bool,
}

/// Runs the command.
pub(super) fn run(remote: &Remote<'_>, args: FollowArgs) -> anyhow::Result<()> {
    let mut body = json!({ "connstr": args.connstr });
    if let Some(tenant) = remote.common.tenant {
        body["tenant_id"] = json!(tenant.tenant_id);
    }
    if let Some(timeline) = &remote.common.timeline {
        body["timeline_id"] = json!(timeline.of_new()?);
    }
    if let Some(slot) = args.slot {
        body["slot"] = json!(slot);
    }
    let begun = remote.client.call("POST", "/v1/follow", Some(&body))?;
    let (tenant, timeline) = (text(&begun, "tenant_id"), text(&begun, "timeline_id"));
    let status = match args.no_wait {
        true => Value::Null,
        false => wait(remote, &format!("/v1/tenant/{tenant}/timeline/{timeline}/follow_status"))?,
    };
    warn(&status);
    let readable = match status["consistent_lsn"].as_str() {
        Some(lsn) => format!(", readable from LSN {lsn} on"),
        None => String::new(),
    };
    let value = json!({ "tenant_id": tenant, "timeline_id": timeline, "status": status });
    output::finish(remote.common.json, &value, format!("timeline {timeline} of tenant {tenant}{readable}"));
    Ok(())
}

/// Prints the warnings that the server has reported.
fn warn(status: &Value) {
    for warning in status["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        tracing::warn!("{warning}");
    }
}

/// Waits until the base backup is complete, showing its progress.
fn wait(remote: &Remote<'_>, path: &str) -> anyhow::Result<Value> {
    let bar = output::byte_bar(0);
    loop {
        let status = remote.client.get(path)?;
        bar.set_length(status["total_bytes"].as_u64().or(status["bytes"].as_u64()).unwrap_or_default());
        bar.set_position(status["bytes"].as_u64().unwrap_or_default());
        bar.set_message(text(&status, "phase"));
        match status["phase"].as_str() {
            Some("streaming") => {
                bar.finish_and_clear();
                return Ok(status);
            }
            Some("failed") => {
                bar.finish_and_clear();
                bail!("the copy failed: {}", text(&status, "error"));
            }
            _ => env::clock::pause(PERIOD),
        }
    }
}
