//! Pages of layers in a bucket: latency of single pages and batches at each cache level, scans with several read-ahead
//! settings, the first page after a start on an empty disk, and uploads.
//!
//! Runs on a directory, and on an S3 server if `BENCH_S3_ENDPOINT` and `BENCH_S3_BUCKET` are set, each with no, 4 and
//! 25 ms of latency added to each request. Every page is compared with what was stored: a wrong or missing page ends
//! the benchmark, and nothing is written. `BENCH_TIERED_QUICK=1` takes some minutes, `BENCH_TIERED_UPLOAD=1` ends
//! after the uploads, `BENCH_S3_UNSIGNED=1` does not sign their contents. Writes `tiered.json` into the directory that
//! `BENCH_RESULTS` names.

#[path = "../common/artifact.rs"]
mod artifact;
mod points;
mod processor;
mod restart;
mod scans;
mod store;
mod world;

use camino::Utf8Path;
use pageserver::virtual_file;
use pageserver_api::models::virtual_file::IoMode;
use serde_json::{Value, json};

use artifact::{Setting, Topology, Unit, Validity};
use points::Level;
use store::Place;
use world::{Shape, Uploaded, World};

/// As in the server.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The upload that is timed: a GiB.
const UPLOAD: Shape = Shape { layers: 8, pages: 16384 };

/// The amount of work.
pub struct Plan {
    shape: Shape,
    /// Reads at levels that access the bucket.
    cold_reads: usize,
    /// Reads at the others.
    warm_reads: usize,
    /// Pages of a scan without read-ahead.
    scan_pages_alone: u32,
    read_aheads: &'static [u64],
    /// Layers of the timeline for the start on an empty disk.
    layers: &'static [u32],
    latencies_ms: &'static [u64],
}

const FULL: Plan = Plan {
    shape: UPLOAD,
    cold_reads: 300,
    warm_reads: 3000,
    scan_pages_alone: 8192,
    read_aheads: &[0, 1 << 20, 4 << 20, 16 << 20],
    layers: &[100, 10_000],
    latencies_ms: &[0, 4, 25],
};

const QUICK: Plan = Plan {
    shape: Shape { layers: 2, pages: 4096 },
    cold_reads: 40,
    warm_reads: 300,
    scan_pages_alone: 1024,
    read_aheads: &[0, 1 << 20, 4 << 20],
    layers: &[10_000],
    latencies_ms: &[0, 25],
};

/// Pages that are read back from the timed upload.
const READ_BACK: u32 = 64;

async fn upload(place: &Place, prefix: &str) -> anyhow::Result<Value> {
    let world = World::make(place.open(&format!("{prefix}-upload")).await?, UPLOAD).await?;
    let opened = world.open(|_| ()).await?;
    for number in 0..READ_BACK {
        opened.read(number * (world.shape.total() / READ_BACK)).await?;
    }
    opened.close().await;
    let Uploaded { bytes, seconds, processor } = world.uploaded;
    Ok(json!({
        "bytes": bytes, "seconds": seconds, "mb_per_second": bytes as f64 / seconds / 1e6, "layers": UPLOAD.layers,
        "processor": processor, "contents_signed": matches!(place, Place::S3 { .. }) && store::signs_payload(),
    }))
}

async fn measure(place: &Place, plan: &Plan) -> anyhow::Result<Value> {
    let prefix = format!("tiered-{}", std::process::id());
    let upload = upload(place, &prefix).await?;
    println!("{}: upload {upload}", place.kind());
    if std::env::var_os("BENCH_TIERED_UPLOAD").is_some() {
        return Ok(json!({ "store": place.kind(), "shape": shape(place, plan), "upload": upload }));
    }
    let world = World::make(place.open(&prefix).await?, plan.shape).await?;
    let (mut points, mut scans, mut restarts) = (Vec::new(), Vec::new(), Vec::new());
    for latency_ms in plan.latencies_ms.iter().copied() {
        for level in Level::ALL {
            for batch in [false, true] {
                points.push(points::measure(&world, plan, level, batch, latency_ms).await?);
                println!("{}: {}", place.kind(), points.last().unwrap_or(&Value::Null));
            }
        }
        for read_ahead in plan.read_aheads {
            scans.push(scans::measure(&world, plan, *read_ahead, 101, latency_ms).await?);
            println!("{}: {}", place.kind(), scans.last().unwrap_or(&Value::Null));
        }
        scans.push(scans::measure(&world, plan, 4 << 20, 50, latency_ms).await?);
        println!("{}: {}", place.kind(), scans.last().unwrap_or(&Value::Null));
    }
    for layers in plan.layers {
        restarts.extend(restart::measure(place, &format!("{prefix}-{layers}"), *layers, plan.latencies_ms).await?);
        println!("{}: {:#?}", place.kind(), restarts.last());
    }
    Ok(json!({
        "store": place.kind(), "shape": shape(place, plan),
        "upload": upload, "points": points, "scans": scans, "restarts": restarts,
    }))
}

fn shape(place: &Place, plan: &Plan) -> Value {
    let endpoint = match place {
        Place::Directory(_) => "the file system of the benchmark".to_owned(),
        Place::S3 { .. } => {
            std::env::var("BENCH_S3_SERVER").unwrap_or_else(|_| "an S3 server".to_owned()) + ", same machine, loopback"
        }
    };
    json!({
        "endpoint": endpoint, "latencies_ms": plan.latencies_ms,
        "latency": "added to each request by a sleep in the client, in whole milliseconds, rounded up",
        "layers": plan.shape.layers, "pages_per_layer": plan.shape.pages, "page_bytes": world::PAGE,
    })
}

fn places(scratch: &Utf8Path) -> Vec<Place> {
    let mut places = vec![Place::Directory(scratch.join("bucket"))];
    if let (Ok(endpoint), Ok(bucket)) = (std::env::var("BENCH_S3_ENDPOINT"), std::env::var("BENCH_S3_BUCKET")) {
        places.push(Place::S3 { endpoint, bucket });
    }
    places
}

fn topology(scratch: &Utf8Path, places: &[Place], plan: &Plan) -> Topology {
    let kinds: Vec<&str> = places.iter().map(Place::kind).collect();
    Topology::take(Setting {
        dir: scratch.as_std_path(),
        engine: virtual_file::io_engine_for_bench().to_string(),
        io_mode: "DirectRw".to_owned(),
        allocator: "jemalloc",
        store: kinds.join(", "),
        delay_ms: plan.latencies_ms.to_vec(),
        client_on_same_cores: true,
    })
}

async fn run() -> anyhow::Result<()> {
    let plan = if std::env::var("BENCH_TIERED_QUICK").is_ok() { QUICK } else { FULL };
    let scratch = std::env::var("CARGO_TARGET_TMPDIR").unwrap_or_else(|_| "/tmp".to_owned());
    let scratch = camino_tempfile::tempdir_in(scratch)?;
    let places = places(scratch.path());
    let topology = topology(scratch.path(), &places, &plan);
    let mut results = Vec::new();
    for place in places {
        results.push(measure(&place, &plan).await?);
    }
    let pages = world::compared();
    let validity = Validity { unit: Unit::Pages, expected: pages, seen: pages, compared: pages, different: 0 };
    artifact::write("tiered", &topology, validity, results.into())?;
    Ok(())
}

fn main() -> anyhow::Result<()> {
    // The same provider that the engine would install when it opens a bucket.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let engine = virtual_file::io_engine_for_bench();
    virtual_file::init(16384, engine, IoMode::DirectRw, virtual_file::SyncMode::Sync);
    tokio::runtime::Runtime::new()?.block_on(run())
}
