//! The cost of reads from a layer that was sealed with its values in order of arrival, compared with one whose values
//! are sorted by key.
//!
//! Two layers, each written both ways and read with a warm index and direct I/O: one of long chains and single images,
//! from which points and chains of 100 records are read; and one of WAL-shaped values, as in `bench_ingest`, from
//! which ranges of 128 adjacent pages are read. Everything is read once before the clock runs, and each version
//! returned is compared with what was put there.

#[path = "common/artifact.rs"]
mod artifact;
// Only the WAL-shaped cases of it are used.
#[allow(dead_code)]
#[path = "ingest/case.rs"]
mod case;
#[path = "layer_read/layers.rs"]
mod layers;
#[path = "layer_read/values.rs"]
mod values;

use std::time::Instant;

use camino::{Utf8Path, Utf8PathBuf};
use engine::config::PageServerConf;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::storage_layer::ReconstructState;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::models::virtual_file::IoMode;
use serde_json::{Map, json};

use artifact::{Setting, Topology, Unit, Validity};
use case::{Case, KeyLayout, WriteDelta};
use layers::{Layer, Layers};
use values::{Chains, Values};

const READS: u32 = 2000;
const RANGES: u32 = 200;
const RANGE: u32 = 128;
/// Each measurement is repeated this often; the best counts.
const ROUNDS: usize = 3;

/// Microseconds and data reads per read.
async fn measure<V: Values>(
    layer: &Layer<'_, V>,
    reads: u32,
    keys: impl Fn(u32) -> KeySpace,
    validity: &mut Validity,
    ctx: &RequestContext,
) -> anyhow::Result<(f64, f64)> {
    for i in 0..reads {
        let keyspace = keys(i);
        let mut state = ReconstructState::new();
        layer.read(&keyspace, &mut state, ctx).await?;
        layer.compare(&keyspace, state, validity);
    }
    let (mut best, mut data_reads) = (f64::MAX, 0);
    for _ in 0..ROUNDS {
        data_reads = 0;
        let start = Instant::now();
        for i in 0..reads {
            let mut state = ReconstructState::new();
            layer.read(&keys(i), &mut state, ctx).await?;
            data_reads += state.data_reads;
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(reads));
    }
    Ok((best, data_reads as f64 / f64::from(reads)))
}

/// The reads of one kind of values.
struct Reads {
    name: &'static str,
    count: u32,
    keys: fn(u32) -> KeySpace,
    /// Limits for the sealed layer: the ratio of its cost to that of the sorted one, and the number of data reads.
    times: f64,
    data_reads: f64,
}

const OF_CHAINS: [Reads; 2] = [
    Reads { name: "point", count: READS, keys: Chains::point, times: f64::INFINITY, data_reads: 1.0 },
    Reads { name: "chain of 100", count: READS, keys: Chains::chain, times: 3.0, data_reads: f64::INFINITY },
];
const OF_RECORDS: [Reads; 2] = [
    Reads { name: "range of 128 hot pages", count: RANGES, keys: hot, times: f64::INFINITY, data_reads: f64::INFINITY },
    Reads {
        name: "range of 128 cold pages",
        count: RANGES,
        keys: cold,
        times: f64::INFINITY,
        data_reads: f64::INFINITY,
    },
];

fn hot(i: u32) -> KeySpace {
    range(i.wrapping_mul(40_503) % (case::HOT - RANGE))
}

fn cold(i: u32) -> KeySpace {
    range(case::HOT + i.wrapping_mul(40_503) % (case::COLD - RANGE))
}

fn range(first: u32) -> KeySpace {
    let key = |block| pageserver_api::key::Key { field6: block, ..pageserver_api::key::Key::from_i128(0) };
    KeySpace::single(key(first)..key(first + RANGE))
}

async fn both<V: Values>(
    layers: Layers<V>,
    wanted: &[Reads],
    results: &mut Map<String, serde_json::Value>,
    validity: &mut Validity,
    ctx: &RequestContext,
) -> anyhow::Result<()> {
    let Layers { values, sealed, sorted } = &layers;
    for Reads { name, count, keys, times, data_reads } in wanted {
        let sealed = measure(&Layer { values, file: sealed }, *count, keys, validity, ctx).await?;
        let sorted = measure(&Layer { values, file: sorted }, *count, keys, validity, ctx).await?;
        for (way, (us, reads)) in [("sealed", sealed), ("sorted", sorted)] {
            println!("{name} {way:<8} {us:>8.1} us {reads:>6.2} data reads");
            results.insert(format!("{name} {way}"), json!({ "us": us, "data_reads": reads }));
        }
        println!("{name}: sealed / sorted = {:.2}", sealed.0 / sorted.0);
        anyhow::ensure!(sealed.0 <= times * sorted.0, "{name}: over {times} times as much as when sorted");
        anyhow::ensure!(sealed.1 <= *data_reads, "{name}: {} data reads", sealed.1);
    }
    Ok(())
}

async fn run(dir: &Utf8Path) -> anyhow::Result<()> {
    let conf: &'static PageServerConf = Box::leak(Box::new(PageServerConf::dummy_conf(dir.to_owned())));
    let engine = virtual_file::io_engine_for_bench();
    let topology = Topology::take(Setting::one_process(dir.as_std_path(), engine, "DirectRw"));
    virtual_file::init(1024, engine, IoMode::DirectRw, virtual_file::SyncMode::Sync);
    let ctx = RequestContext::new(TaskKind::DebugTool, DownloadBehavior::Error);
    let (mut results, mut validity) = (Map::new(), Validity::of(Unit::Values));
    let chains = Layers::make(conf, Chains, &ctx).await?;
    both(chains, &OF_CHAINS, &mut results, &mut validity, &ctx).await?;
    let records = Case {
        io_mode: IoMode::DirectRw,
        value_bytes: 100,
        key_layout: KeyLayout::Records,
        write_delta: WriteDelta::Yes,
    };
    let records = Layers::make(conf, records, &ctx).await?;
    both(records, &OF_RECORDS, &mut results, &mut validity, &ctx).await?;
    artifact::write("bench_layer_read", &topology, validity, results.into())?;
    Ok(())
}

fn main() -> anyhow::Result<()> {
    if std::env::args().any(|arg| arg == "--test") {
        return Ok(());
    }
    let parent: Utf8PathBuf = std::env::current_dir()?.try_into()?;
    let dir = camino_tempfile::tempdir_in(parent)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(dir.path()))
}
