//! Pages over TCP from a server in a process of its own, asked for by 1 to 128 connections with one request in flight
//! each, and by up to 16 with sixteen; then the other requests, and ten thousand pages in flight.
//!
//! A relation of `BENCH_LOAD_PAGES` pages (131,072, 1 GiB) is an image layer on the local disk; a quarter of it may be
//! kept in memory as it is rebuilt. Pages are drawn uniformly or by Zipf's law. The client has one thread; every page
//! that it gets is compared with what was stored. The echo is what as many connections exchange with the same process
//! where it only answers as many bytes. Writes `load.json` where `BENCH_RESULTS` says; nothing if a page was wrong.

#[path = "../common/artifact.rs"]
mod artifact;
mod client;
#[path = "../common/import.rs"]
mod import;
mod server;
#[path = "../common/zipf.rs"]
mod zipf;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use artifact::{Setting, Topology, Unit, Validity};
use client::{Form, Found, Load, Target};
use server::Server;
use zipf::Zipf;

/// As in the server.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const CONNECTIONS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Connections of which each has that many requests in flight.
const DEEP: [usize; 5] = [1, 2, 4, 8, 16];
const DEPTH: usize = 16;
/// Other requests, and one connection with many pages in flight.
const FORMS: [(&str, Form<'_>, Load); 9] = [
    ("exists", Form::Exists(true), ONE),
    ("exists", Form::Exists(true), SIXTEEN),
    ("exists, missing", Form::Exists(false), ONE),
    ("exists, missing", Form::Exists(false), SIXTEEN),
    ("relation size", Form::RelationSize, ONE),
    ("relation size", Form::RelationSize, SIXTEEN),
    ("database size", Form::DatabaseSize, ONE),
    ("database size", Form::DatabaseSize, SIXTEEN),
    ("page, window of 10,000", Form::Pages(None), Load { connections: 1, depth: 10_000 }),
];
const ONE: Load = Load { connections: 1, depth: 1 };
const SIXTEEN: Load = Load { connections: 16, depth: 1 };

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Number of pages; a power of two.
fn pages() -> u32 {
    from_env("BENCH_LOAD_PAGES", 131_072).next_power_of_two() as u32
}

fn row(form: &str, order: &str, load: Load, found: &Found) -> Value {
    let us = |quantile| found.times.value_at_quantile(quantile) as f64 / 1000.0;
    let per_page = |seconds: f64| (seconds * 1e6 / found.answers.max(1) as f64 * 100.0).round() / 100.0;
    json!({
        "form": form, "order": order, "connections": load.connections, "in_flight": load.depth,
        "per_s": (found.answers as f64 / found.seconds).round(), "p50_us": us(0.5), "p95_us": us(0.95),
        "p99_us": us(0.99), "p999_us": us(0.999), "max_us": found.times.max() as f64 / 1000.0,
        "client_us": per_page(found.client_cpu), "server_us": per_page(found.server_cpu),
        "client_core": (found.client_cpu / found.seconds * 1000.0).round() / 1000.0,
        "server_rss_mib": found.server_rss_mib,
    })
}

/// Measures one load after the other, the echo first, and prints them.
async fn sweep(target: &Target, validity: &mut Validity) -> anyhow::Result<Vec<Value>> {
    let (seconds, zipf) = (Duration::from_secs(from_env("BENCH_LOAD_SECONDS", 5)), Zipf::new(target.pages));
    let strict = CONNECTIONS.map(|connections| Load { connections, depth: 1 });
    let deep = DEEP.map(|connections| Load { connections, depth: DEPTH });
    let mut rows = Vec::new();
    let mut note = |row: Value| {
        println!("{row}");
        rows.push(row);
    };
    for load in strict {
        let found = client::echo(target, load, seconds).await?;
        note(row("echo", "", load, &found));
    }
    for (order, zipf) in [("uniform", None), ("zipf 0.99", Some(&zipf))] {
        for load in strict.into_iter().chain(deep) {
            let found = client::requests(target, Form::Pages(zipf), load, seconds).await?;
            validity.add(found.validity);
            note(row("page", order, load, &found));
        }
    }
    for (name, form, load) in FORMS {
        let found = client::requests(target, form, load, seconds).await?;
        validity.add(found.validity);
        note(row(name, "", load, &found));
    }
    Ok(rows)
}

fn main() -> anyhow::Result<()> {
    if server::serves_here(pages())? {
        return Ok(());
    }
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let setting = Setting::one_process(dir, virtual_file::io_engine_for_bench(), server::MODE);
    let topology = Topology::take(Setting { allocator: "jemalloc", ..setting });
    let server = Server::start()?;
    let mut validity = Validity::of(Unit::Pages);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rows = runtime.block_on(sweep(&server.target(pages())?, &mut validity))?;
    let results = json!({ "pages": pages(), "cached_pages": server::cached(pages()), "rows": rows });
    artifact::write("load", &topology, validity, results)?;
    Ok(())
}
