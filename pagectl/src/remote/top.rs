//! `pagectl top`: what a server does, over and over.

mod figures;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use env::clock;
use serde_json::{Value, json};
use utils::lsn::Lsn;

use self::figures::{Rates, Sample};
use super::branches;
use super::connection::Remote;
use crate::output;
use crate::table::{bytes, table, text};

/// How long until the first figures are shown, so that nobody looks at an empty screen.
const FIRST: Duration = Duration::from_millis(500);
/// Clears a terminal's screen and begins at its top.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Time from one look to the next.
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = interval)]
    interval: Duration,
    /// End after so many looks; by default go on until interrupted, or look once if the output is no terminal.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if interval < Duration::from_millis(100) {
        return Err("less than 100ms would be a load of its own".to_owned());
    }
    Ok(interval)
}

/// Runs the command. What cannot be asked for is shown instead of figures, and asked for again, unless it is the first.
pub(super) fn run(remote: &Remote<'_>, args: &TopArgs) -> anyhow::Result<()> {
    let terminal = std::io::stdout().is_terminal() && !remote.common.json;
    let count = args.count.unwrap_or(if terminal { u64::MAX } else { 1 });
    let mut before = look(remote)?;
    let mut wait = FIRST.min(args.interval);
    for _ in 0..count {
        clock::pause(wait);
        wait = args.interval;
        let shown = match look(remote) {
            Ok(now) => {
                let rates = now.since(&before);
                let shown = if remote.common.json { told(&now, &rates).to_string() } else { page(&now, &rates) };
                before = now;
                shown
            }
            Err(error) if terminal => format!("{error:#}\nasked again in {:?}", args.interval),
            Err(error) => return Err(error),
        };
        show(&shown, terminal);
    }
    Ok(())
}

fn look(remote: &Remote<'_>) -> anyhow::Result<Sample> {
    let metrics = remote.client.bytes("GET", "/metrics", None)?;
    let (status, timelines) = (remote.client.get("/v1/status")?, remote.timelines()?);
    Ok(Sample::new(&String::from_utf8_lossy(&metrics), status, timelines))
}

fn show(text: &str, terminal: bool) {
    if !terminal {
        return output::line(text);
    }
    // If the reader has gone away, that is not an error.
    let _ = writeln!(std::io::stdout().lock(), "{CLEAR}{text}");
    let _ = std::io::stdout().lock().flush();
}

/// The figures as JSON.
fn told(now: &Sample, rates: &Rates) -> Value {
    let timelines: Vec<Value> = now
        .timelines
        .iter()
        .map(|timeline| {
            json!({
                "tenant_id": timeline["tenant_id"], "timeline_id": timeline["timeline_id"], "name": timeline["name"],
                "last_record_lsn": timeline["last_record_lsn"], "wal_bytes_per_s": rates.wal_of(timeline),
                "layers": timeline["layer_count"], "bytes": timeline["current_physical_size"],
                "upload_bytes": timeline["upload_bytes"],
            })
        })
        .collect();
    json!({ "status": now.status, "rates": rates.to_json(), "timelines": timelines })
}

/// The figures as people read them.
fn page(now: &Sample, rates: &Rates) -> String {
    let head = ["BRANCH", "TENANT", "WRITER", "LAST LSN", "WAL/s", "NOT ON DISK", "NOT IN BUCKET", "LAYERS", "SIZE"];
    let mut timelines = now.timelines.clone();
    // Those that are written come first, the others by name.
    timelines.sort_by_key(|timeline| (std::cmp::Reverse(rates.wal_of(timeline)), name(timeline)));
    let rows: Vec<Vec<String>> = timelines.iter().map(|timeline| row(timeline, rates)).collect();
    format!("{}\n\n{}", rates.summary(now), table(&head, &rows))
}

fn row(timeline: &Value, rates: &Rates) -> Vec<String> {
    let behind = |name: &str| {
        let lsn = |name: &str| timeline[name].as_str().and_then(|lsn| lsn.parse::<Lsn>().ok());
        let behind = lsn("last_record_lsn").zip(lsn(name)).map(|(last, there)| last.0.saturating_sub(there.0));
        behind.map_or_else(|| "-".to_owned(), figures::size)
    };
    vec![
        name(timeline),
        text(timeline, "tenant_id").chars().take(8).collect(),
        branches::writer(timeline).unwrap_or_else(|| "-".to_owned()),
        text(timeline, "last_record_lsn"),
        figures::size(rates.wal_of(timeline)),
        behind("disk_consistent_lsn"),
        behind("remote_consistent_lsn"),
        text(timeline, "layer_count"),
        bytes(timeline, "current_physical_size"),
    ]
}

/// The name of a branch, or the beginning of its id.
fn name(timeline: &Value) -> String {
    match timeline["name"].as_str() {
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => text(timeline, "timeline_id").chars().take(8).collect(),
    }
}
