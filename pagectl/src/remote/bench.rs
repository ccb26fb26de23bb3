//! `pagectl bench`: asks a running page service for random pages of one relation, and measures.

mod asking;

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use hdrhistogram::Histogram;
use pageserver_api::reltag::RelTag;
use serde_json::{Value, json};
use utils::lsn::Lsn;

use self::asking::{Load, Target};
use super::connection::Remote;
use crate::output;
use crate::table::text;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// The relation whose pages are asked for: TABLESPACE/DATABASE/RELATION, with _fsm, _vm or _init for another fork.
    /// In Postgres `SELECT pg_relation_filepath('mytable')` shows the last two; 1663 is the default tablespace.
    #[arg(long)]
    rel: RelTag,
    /// Connections.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Requests that each connection has in flight.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    in_flight: u16,
    /// Of 100 requests, those that ask for the relation's size instead of a page.
    #[arg(long, default_value_t = 0, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    sizes: u8,
    /// How long to measure, after a warm-up of a second.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Duration,
    /// Ask for pages as of this LSN; by default as of the end of history, which may move meanwhile.
    #[arg(long)]
    lsn: Option<Lsn>,
    /// Page service of the server.
    #[arg(
        long,
        env = "PAGECTL_PAGE_SERVICE",
        default_value = "host=127.0.0.1 port=64000 user=bench",
        value_name = "CONNSTR"
    )]
    page_service: String,
}

/// Runs the command.
pub(super) fn run(remote: &Remote<'_>, args: &BenchArgs) -> anyhow::Result<()> {
    let (tenant, timeline) = remote.target()?;
    let last: Lsn = text(&remote.client.get(&remote.base()?)?, "last_record_lsn").parse()?;
    if let Some(lsn) = args.lsn.filter(|lsn| *lsn > last) {
        bail!("LSN {lsn} is beyond the end of history, which is {last}: the server would wait for it");
    }
    let load = Load {
        connections: args.connections.into(),
        in_flight: args.in_flight.into(),
        sizes: args.sizes,
        time: args.time,
    };
    let target = Target::new(&args.page_service, remote.token.as_deref(), (tenant.tenant_id, timeline), args.rel);
    // One thread: the server is what is measured, and its cores are left to it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let times = runtime.block_on(async { target?.at(args.lsn, last).await?.measure(load).await })?;
    let found = figures(&times, load);
    let summary = format!(
        "{} answers/s to {} connections with {} in flight each; us: {} median, {} p99, {} at most",
        text(&found, "per_s"),
        load.connections,
        load.in_flight,
        text(&found, "p50_us"),
        text(&found, "p99_us"),
        text(&found, "max_us")
    );
    output::finish(remote.common.json, &found, summary);
    Ok(())
}

/// What is told of answers that took `times`, in nanoseconds.
fn figures(times: &Histogram<u64>, load: Load) -> Value {
    let us = |quantile| times.value_at_quantile(quantile) / 1000;
    json!({
        "connections": load.connections, "in_flight": load.in_flight, "sizes_percent": load.sizes,
        "seconds": load.time.as_secs_f64(), "answers": times.len(),
        "per_s": (times.len() as f64 / load.time.as_secs_f64()).round() as u64,
        "p50_us": us(0.5), "p95_us": us(0.95), "p99_us": us(0.99), "p999_us": us(0.999), "max_us": times.max() / 1000,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_per_second_and_in_microseconds() {
        let mut times = Histogram::new(3).unwrap();
        for took in 1..=1000_u64 {
            times.record(took * 1_000_000).unwrap();
        }
        let load = Load { connections: 2, in_flight: 3, sizes: 10, time: Duration::from_secs(4) };
        let found = figures(&times, load);
        assert_eq!((found["answers"].as_u64(), found["per_s"].as_u64()), (Some(1000), Some(250)));
        let near = |name: &str, expected: u64| found[name].as_u64().unwrap().abs_diff(expected) * 1000 <= expected;
        assert!(near("p50_us", 500_000) && near("p99_us", 990_000) && near("max_us", 1_000_000), "{found}");
    }
}
