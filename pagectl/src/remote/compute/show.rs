//! `pagectl compute list` and `logs`.

use std::time::Duration;

use compute::lifecycle::{self, ComputeConfig, Computes, Options, State, Trouble};
use serde_json::{Value, json};

use super::control::path;
use super::lag;
use crate::output;
use crate::remote::connection::Remote;
use crate::table::{table, text};

/// Time limit for the page server to say why it is not following.
const ANSWER: Duration = Duration::from_secs(3);

/// Lists the computes of this machine, even if the page server does not respond.
pub(super) fn list(remote: &Remote<'_>, computes: &Computes) -> anyhow::Result<()> {
    let all = all(remote, computes)?;
    let members = ["name", "state", "branch", "boot_lsn", "pg_version", "mode", "port", "told"];
    let row = |one: &Value| members.map(|it| if it == "mode" { mode(one) } else { text(one, it) }).to_vec();
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let head = ["COMPUTE", "STATE", "BRANCH", "STARTED AT", "PG", "MODE", "PORT", "OPTIONS"];
    let troubles = all.iter().filter(|one| !one["trouble"].is_null());
    let troubles = troubles.map(|one| format!("\n{}: {}", text(one, "name"), text(one, "trouble")));
    let summary = format!("{}{}", table(&head, &rows), troubles.collect::<String>());
    output::finish(remote.common.json, &json!({ "computes": all }), summary);
    Ok(())
}

/// Whether it writes, reads or follows whom, and how far that has sent what it has not replayed.
fn mode(one: &Value) -> String {
    match (one["primary"].as_str(), one["lag_bytes"].as_u64()) {
        (Some(primary), Some(lag)) => format!("replica of {primary}, {lag} bytes behind"),
        (Some(primary), None) => format!("replica of {primary}"),
        _ => text(one, "mode"),
    }
}

/// Describes each compute. They are queried concurrently, because one that hangs takes seconds.
pub(super) fn all(remote: &Remote<'_>, computes: &Computes) -> anyhow::Result<Vec<Value>> {
    let listed = computes.list()?;
    std::thread::scope(|scope| {
        let describe = |(name, config): &(String, lifecycle::Result<ComputeConfig>)| match config {
            Ok(config) => describe(remote, computes, config),
            Err(error) => Ok(json!({ "name": name, "state": format!("damaged: {error}") })),
        };
        let asked: Vec<_> = listed.iter().map(|one| scope.spawn(move || describe(one))).collect();
        let failed = |_| Err(anyhow::anyhow!("a compute could not be described"));
        asked.into_iter().map(|one| one.join().unwrap_or_else(failed)).collect()
    })
}

/// Message that the page server does not take a compute's WAL, with the reason it gives.
pub(super) fn not_followed(remote: &Remote<'_>, config: &ComputeConfig) -> String {
    let status = remote.client.within(ANSWER).get(&path(config)).map(|info| info["walreceiver"].clone());
    let reason = match status {
        Err(error) => format!("{error:#}"),
        Ok(status) if status["writer"]["id"] != config.id.as_str() => {
            "this compute is not the one that it takes WAL from".to_owned()
        }
        Ok(status) => match status["last_error"].as_str() {
            Some(error) => error.to_owned(),
            None => format!("it is {}", text(&status, "state")),
        },
    };
    format!("the page server does not take its WAL: {reason}")
}

/// The options as command-line arguments.
fn told(options: &Options) -> String {
    let quoted = |text: &str| match text.contains([' ', '\'', '*', '=']) {
        true => format!("'{}'", text.replace('\'', "'\\''")),
        false => text.to_owned(),
    };
    let mut told: Vec<String> = Vec::new();
    if options.wait_for_pageserver {
        told.push("--wait-for-pageserver".to_owned());
    }
    told.extend(options.quorum.map(|quorum| format!("--quorum {quorum}")));
    if !options.listen.is_empty() {
        told.push(format!("--listen {}", quoted(&options.listen)));
    }
    if !options.listen_users.is_empty() {
        told.push(format!("--listen-users {}", quoted(&options.listen_users.join(","))));
    }
    told.extend(options.ahead_mib.map(|mib| format!("--read-ahead {mib}")));
    if options.sleeps {
        told.push("--sleeps".to_owned());
    }
    told.extend(options.settings.iter().map(|setting| format!("--set {}", quoted(setting))));
    // It may contain a password.
    told.extend(options.connstr.iter().map(|_| "--connstr ...".to_owned()));
    told.join(" ")
}

/// The options as JSON, without `connstr`, which may contain a password.
pub(super) fn options(options: &Options) -> Value {
    let Options { listen, listen_users, wait_for_pageserver, until_durable, settings, connstr, sleeps, .. } = options;
    json!({ "listen": listen, "listen_users": listen_users, "wait_for_pageserver": wait_for_pageserver,
        "followers": options.followers, "quorum": options.quorum,
        "read_ahead": options.ahead_mib,
        "until_durable": *wait_for_pageserver && *until_durable,
        "settings": settings, "sleeps": sleeps, "has_connstr": connstr.is_some() })
}

fn describe(remote: &Remote<'_>, computes: &Computes, config: &ComputeConfig) -> anyhow::Result<Value> {
    let layout = computes.layout(&config.name)?;
    let (state, pid) = match State::of(config, &layout) {
        State::Running(pid) => ("running", Some(pid)),
        State::Stopped => ("stopped", None),
        State::Crashed => ("crashed", None),
    };
    let trouble = Trouble::of(config, &layout).map(|trouble| match trouble {
        Trouble::Here(what) => what,
        Trouble::NotFollowed => not_followed(remote, config),
    });
    let (behind, trouble) = match (&config.replica, trouble) {
        (Some(_), None) if pid.is_some() => lag::of(computes, config, &layout),
        (_, trouble) => (None, trouble),
    };
    let branch = config.branch.clone().unwrap_or_else(|| config.timeline.to_string());
    Ok(json!({ "name": config.name, "state": state, "pid": pid, "branch": branch, "tenant_id": config.tenant,
        "timeline_id": config.timeline, "boot_lsn": config.boot_lsn, "pg_version": config.pg_version,
        "mode": if config.read_only { "read-only" } else { "read-write" }, "port": config.port,
        "role": role(config), "primary": config.replica.as_ref().map(|of| &of.primary), "lag_bytes": behind,
        "storage": config.storage, "trouble": trouble, "options": options(&config.options),
        "told": told(&config.options),
        "connstr": lifecycle::connstr(config, &layout), "dir": layout.root() }))
}

/// What it is to others of its branch.
fn role(config: &ComputeConfig) -> &'static str {
    match (&config.replica, config.read_only) {
        (Some(_), _) => "replica",
        (None, true) => "reader",
        (None, false) => "primary",
    }
}

/// The end of the log.
pub(super) fn logs(computes: &Computes, name: &str, lines: usize) -> anyhow::Result<String> {
    let layout = computes.layout(name)?;
    ComputeConfig::load(&layout)?;
    let text = lifecycle::log(&layout)?;
    let all: Vec<&str> = text.lines().collect();
    Ok(all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n"))
}
