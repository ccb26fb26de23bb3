//! `pagectl compute list`, `logs`.

use anyhow::Context;
use compute::lifecycle::{self, ComputeConfig, Computes, State};
use compute::supervisor::health::Health;
use serde_json::{Value, json};

use crate::output;
use crate::remote::Remote;
use crate::remote::table::{table, text};

/// Lists the computes of this machine, whatever the page server is doing.
pub(super) fn list(remote: &Remote<'_>, computes: &Computes) -> anyhow::Result<()> {
    let all = all(computes)?;
    let members = ["name", "state", "branch", "boot_lsn", "pg_version", "mode", "port"];
    let rows: Vec<Vec<String>> = all.iter().map(|one| members.map(|member| text(one, member)).to_vec()).collect();
    let head = ["COMPUTE", "STATE", "BRANCH", "STARTED AT", "PG", "MODE", "PORT"];
    let troubles = all.iter().filter(|one| !one["trouble"].is_null());
    let troubles = troubles.map(|one| format!("\n{}: {}", text(one, "name"), text(one, "trouble")));
    let summary = format!("{}{}", table(&head, &rows), troubles.collect::<String>());
    output::finish(remote.common.json, &json!({ "computes": all }), summary);
    Ok(())
}

/// What is known of each.
pub(super) fn all(computes: &Computes) -> anyhow::Result<Vec<Value>> {
    let listed = computes.list()?.into_iter();
    listed
        .map(|(name, config)| match config {
            Ok(config) => describe(computes, &config),
            Err(error) => Ok(json!({ "name": name, "state": format!("damaged: {error}") })),
        })
        .collect()
}

fn describe(computes: &Computes, config: &ComputeConfig) -> anyhow::Result<Value> {
    let layout = computes.layout(&config.name)?;
    let (state, pid) = match State::of(config, &layout) {
        State::Running(pid) => ("running", Some(pid)),
        State::Stopped => ("stopped", None),
        State::Crashed => ("crashed", None),
    };
    let trouble = match Health::of(&layout) {
        Health::Trouble(what) => Some(what),
        Health::Well | Health::Down => None,
    };
    let branch = config.branch.clone().unwrap_or_else(|| config.timeline.to_string());
    Ok(json!({ "name": config.name, "state": state, "pid": pid, "branch": branch, "tenant_id": config.tenant,
        "timeline_id": config.timeline, "boot_lsn": config.boot_lsn, "pg_version": config.pg_version,
        "mode": if config.read_only { "read-only" } else { "read-write" }, "port": config.port,
        "storage": config.storage, "trouble": trouble,
        "connstr": lifecycle::connstr(config, &layout), "dir": layout.root() }))
}

/// The end of the log.
pub(super) fn logs(computes: &Computes, name: &str, lines: usize) -> anyhow::Result<String> {
    let layout = computes.layout(name)?;
    ComputeConfig::load(&layout)?;
    let path = lifecycle::log_path(&layout);
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    Ok(all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n"))
}
