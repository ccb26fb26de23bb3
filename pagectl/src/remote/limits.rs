//! `pagectl history`: how much history a timeline keeps.

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::connection::Remote;
use crate::output;
use crate::table::{bytes, table, text};

/// Operations on a timeline's window of history.
#[derive(Debug, Subcommand)]
pub(crate) enum HistoryCommand {
    /// Show how much history a timeline keeps, and how far it goes back.
    Show,
    /// Change how much history a timeline keeps. A shorter window counts from the next removal of history on; a longer
    /// one keeps more from now on, and brings nothing back that is gone.
    Set(SetArgs),
}

/// How much is to be kept. What is not given stays as it is.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// Keep what arrived within this time, such as 7d; `default`: as the server's pitr_interval says.
    #[arg(long, value_name = "DURATION")]
    keep: Option<String>,
    /// Keep so many bytes of WAL up to the end, however old, such as 1GiB; `default`: as the server's gc_horizon says.
    #[arg(long, value_name = "BYTES")]
    horizon: Option<String>,
    /// Keep no more than so many bytes of WAL, such as 10GiB; 0: no limit; `default`: as the server's
    /// history_max_bytes says.
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<String>,
    /// Whatever is not given is as the server's settings say.
    #[arg(long)]
    default: bool,
}

/// Units of sizes, the longest names first.
const UNITS: [(&str, u32); 9] =
    [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("K", 10), ("M", 20), ("G", 30), ("T", 40), ("B", 0)];

/// Runs `pagectl history ...`.
pub(super) fn run(remote: &Remote<'_>, command: HistoryCommand) -> anyhow::Result<()> {
    let body = match &command {
        HistoryCommand::Show => None,
        HistoryCommand::Set(args) => Some(body(args)?),
    };
    let path = format!("{}/history", remote.base()?);
    let answer = match &body {
        None => remote.client.get(&path)?,
        Some(body) => remote.client.call("PUT", &path, Some(body))?,
    };
    output::finish(remote.common.json, &answer, shown(&answer));
    Ok(())
}

fn body(args: &SetArgs) -> anyhow::Result<Value> {
    let mut body = json!({});
    if args.default {
        body = json!({ "pitr_interval": null, "gc_horizon": null, "history_max_bytes": null });
    }
    if let Some(keep) = &args.keep {
        body["pitr_interval"] = if keep == "default" { Value::Null } else { json!(keep) };
    }
    for (flag, name, given) in
        [("--horizon", "gc_horizon", &args.horizon), ("--max-bytes", "history_max_bytes", &args.max_bytes)]
    {
        match given.as_deref() {
            None => {}
            Some("default") => body[name] = Value::Null,
            Some(size) => body[name] = json!(parse_size(size).with_context(|| flag)?),
        }
    }
    if body.as_object().is_none_or(serde_json::Map::is_empty) {
        bail!("say what to change: --keep, --horizon, --max-bytes or --default");
    }
    Ok(body)
}

/// A number of bytes, or of KiB, MiB, GiB or TiB.
pub(super) fn parse_size(text: &str) -> anyhow::Result<u64> {
    let (digits, shift) =
        UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?.trim_end(), *shift))).unwrap_or((text, 0));
    let number: u64 = digits.parse().with_context(|| format!("{text:?} is no size such as 1GiB"))?;
    let Some(bytes) = number.checked_mul(1 << shift) else { bail!("{text:?} is too large") };
    Ok(bytes)
}

fn shown(answer: &Value) -> String {
    let row = |what: &str, name: &str, value: String| {
        let from = if answer["own"][name].is_null() { "server" } else { "timeline" };
        vec![what.to_owned(), value, from.to_owned()]
    };
    let largest = match answer["history_max_bytes"].as_u64() {
        Some(0) => "no limit".to_owned(),
        _ => bytes(answer, "history_max_bytes"),
    };
    let rows = [
        row("what arrived within (pitr_interval)", "pitr_interval", text(answer, "pitr_interval")),
        row("at least (gc_horizon)", "gc_horizon", bytes(answer, "gc_horizon")),
        row("at most (history_max_bytes)", "history_max_bytes", largest),
    ];
    let mut summary = format!("every moment from LSN {} on is readable", text(answer, "min_readable_lsn"));
    if let Some(time) = answer["min_readable_time"].as_str() {
        summary.push_str(&format!(" ({time})"));
    }
    let (next, bound_by) = (text(answer, "next_gc_cutoff_lsn"), text(answer, "bound_by"));
    let next = format!("the next removal of history goes up to LSN {next}, bound by: {bound_by}");
    format!("{}\n\n{next}\n{summary}", table(&["KEPT", "", "AS SET FOR"], &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in
            [("0", 0), ("65536", 65536), ("7B", 7), ("64MiB", 64 << 20), ("1 GiB", 1 << 30), ("2T", 2 << 40)]
        {
            assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
        }
        for bad in ["", "GiB", "-1", "1.5GiB", "1 parsec", "99999999999GiB"] {
            let error = format!("{:#}", parse_size(bad).unwrap_err());
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
    }

    fn args(keep: Option<&str>, horizon: Option<&str>, default: bool) -> SetArgs {
        let [keep, horizon] = [keep, horizon].map(|text| text.map(str::to_owned));
        SetArgs { keep, horizon, max_bytes: None, default }
    }

    #[test]
    fn only_what_is_given_is_changed() {
        assert_eq!(body(&args(Some("7d"), None, false)).unwrap(), json!({ "pitr_interval": "7d" }));
        let back = body(&args(Some("default"), Some("1KiB"), false)).unwrap();
        assert_eq!(back, json!({ "pitr_interval": null, "gc_horizon": 1024 }));
        let all = body(&args(None, Some("1KiB"), true)).unwrap();
        assert_eq!(all, json!({ "pitr_interval": null, "gc_horizon": 1024, "history_max_bytes": null }));
        assert!(body(&args(None, None, false)).is_err());
    }

    #[test]
    fn it_is_said_whose_limits_hold() {
        let answer = json!({ "pitr_interval": "7days", "gc_horizon": 1 << 20, "history_max_bytes": 0,
            "own": { "pitr_interval": "7days", "gc_horizon": null, "history_max_bytes": null },
            "min_readable_lsn": "0/10", "min_readable_time": null, "next_gc_cutoff_lsn": "0/20", "bound_by": "it" });
        let said = shown(&answer);
        assert!(said.contains("7days     timeline") && said.contains("1.00 MiB  server"), "{said}");
        assert!(said.contains("no limit") && said.ends_with("from LSN 0/10 on is readable"), "{said}");
    }
}
