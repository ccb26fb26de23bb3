//! The write path alone: how fast values get into an in-memory layer, and from there into a delta layer file.
//!
//! Eight cases in each of three I/O modes, 128 MiB of values each. Six are those of other page servers' ingest
//! benchmarks, with their ids, so that results can be compared side by side; their values are whole images. Two have
//! WAL-shaped values: changes of 100 bytes in chains, of hot and cold pages, and one image in thirty. After each case,
//! and outside of its time, 1,000 values are read back.
//!
//! `BENCH_RESULTS` names a directory for `bench_ingest.json`: CPU time per value, and the result of reading back.

// The benchmark library's macros generate public functions.
#![allow(missing_docs)]

#[path = "common/artifact.rs"]
mod artifact;
#[path = "ingest/case.rs"]
mod case;
#[path = "ingest/verify.rs"]
mod verify;

use std::env;
use std::num::NonZeroUsize;

use camino::{Utf8Path, Utf8PathBuf};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use pageserver::config::PageServerConf;
use pageserver::context::{DownloadBehavior, RequestContext};
use pageserver::l0_flush::{L0FlushConfig, L0FlushGlobalState};
use pageserver::task_mgr::TaskKind;
use pageserver::tenant::storage_layer::{InMemoryLayer, PersistentLayerDesc};
use pageserver::{page_cache, virtual_file};
use pageserver_api::shard::TenantShardId;
use tokio_util::sync::CancellationToken;
use utils::bin_ser::BeSer;
use utils::id::{TenantId, TimelineId};
use utils::sync::gate::Gate;
use wal_decoder::serialized_batch::SerializedValueBatch;

use artifact::{Setting, Topology, Unit, Validity};
use case::{Case, Contents, START, VOLUME_MIB, WriteDelta, cases};

const BATCH: usize = 16;

/// The result of an ingest.
pub struct Ingested {
    layer: InMemoryLayer,
    delta: Option<(PersistentLayerDesc, Utf8PathBuf)>,
}

async fn ingest(conf: &'static PageServerConf, case: Case, contents: &Contents) -> anyhow::Result<Ingested> {
    let timeline_id = TimelineId::generate();
    let tenant = TenantShardId::unsharded(TenantId::generate());
    tokio::fs::create_dir_all(conf.timeline_path(&tenant, &timeline_id)).await?;
    let ctx = RequestContext::new(TaskKind::DebugTool, DownloadBehavior::Error);
    let (gate, cancel) = (Gate::default(), CancellationToken::new());
    let layer = InMemoryLayer::create(conf, timeline_id, tenant, START, &gate, &cancel, &ctx).await?;

    let size_of = |i| contents.value(&case, i).serialized_size().map(|size| size as usize);
    let (image, other) = (size_of(0)?, size_of(1)?);
    let mut batch = Vec::with_capacity(BATCH);
    for i in 0..case.count() {
        let (key, lsn) = case.place(i);
        let size = if case.is_image(i) { image } else { other };
        batch.push((key.to_compact(), lsn, size, contents.value(&case, i)));
        if batch.len() == BATCH {
            let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
            layer.put_batch(SerializedValueBatch::from_values(full), &ctx).await?;
        }
    }
    if !batch.is_empty() {
        layer.put_batch(SerializedValueBatch::from_values(batch), &ctx).await?;
    }
    layer.freeze(verify::lsns(&case).end).await;
    let mut delta = None;
    if case.write_delta == WriteDelta::Yes {
        let flush = L0FlushGlobalState::new(L0FlushConfig::Direct { max_concurrency: NonZeroUsize::MIN });
        delta = layer.write_to_disk(&ctx, None, flush.inner(), &gate, cancel.clone()).await?;
        anyhow::ensure!(delta.is_some(), "a layer with values is written");
    }
    Ok(Ingested { layer, delta })
}

async fn remove(ingested: Ingested) -> anyhow::Result<()> {
    if let Some((_, path)) = ingested.delta {
        tokio::fs::remove_file(path).await?;
    }
    Ok(())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime")
}

/// The timed part.
fn run(conf: &'static PageServerConf, case: Case) {
    virtual_file::set_io_mode(case.io_mode);
    let contents = Contents::same(&case);
    let ingested = async { remove(ingest(conf, case, &contents).await?).await };
    runtime().block_on(ingested).expect("ingest");
}

/// The same with distinguishable values, which are read back.
fn check(conf: &'static PageServerConf, case: Case) -> Validity {
    virtual_file::set_io_mode(case.io_mode);
    let checked = async {
        let ctx = RequestContext::new(TaskKind::DebugTool, DownloadBehavior::Error);
        let ingested = ingest(conf, case, &Contents::Stamped(case)).await?;
        let validity = verify::read_back(&ingested, &case, &ctx).await?;
        remove(ingested).await?;
        anyhow::Ok(validity)
    };
    runtime().block_on(checked).expect("ingest and read back")
}

/// User and system time of this process so far, in seconds.
fn cpu_seconds() -> f64 {
    let usage = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = usage.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn topology(dir: &Utf8Path, engine: &impl std::fmt::Display) -> Topology {
    eprintln!("data directory: {dir}, engine: {engine}");
    Topology::take(Setting::one_process(dir.as_std_path(), engine, "Buffered, Direct, DirectRw"))
}

fn bench(c: &mut Criterion) {
    let parent: Utf8PathBuf = env::current_dir().expect("current directory").try_into().expect("UTF-8 path");
    let dir = camino_tempfile::tempdir_in(parent).expect("temporary directory");
    let conf: &'static PageServerConf = Box::leak(Box::new(PageServerConf::dummy_conf(dir.path().to_path_buf())));
    let engine = virtual_file::io_engine_for_bench();
    let topology = topology(dir.path(), &engine);
    // Without real syncs, writes through the page cache would look faster than they are.
    virtual_file::init(16384, engine, conf.virtual_file_io_mode, virtual_file::SyncMode::Sync);
    page_cache::init(conf.page_cache_size);

    let mut group = c.benchmark_group("ingest");
    group.sample_size(10);
    group.throughput(criterion::Throughput::Bytes((VOLUME_MIB * 1024 * 1024) as u64));
    let (mut validity, mut results) = (Validity::of(Unit::Values), Vec::new());
    for case in cases() {
        let (mut cpu, mut iterations) = (0.0, 0u64);
        group.bench_function(BenchmarkId::from_parameter(case.id()), |bencher| {
            bencher.iter_custom(|count| {
                let (start, before) = (std::time::Instant::now(), cpu_seconds());
                (0..count).for_each(|_| run(conf, case));
                cpu += cpu_seconds() - before;
                iterations += count;
                start.elapsed()
            })
        });
        if iterations > 0 {
            let nanoseconds = cpu * 1e9 / (iterations as f64 * f64::from(case.count()));
            println!("{:>24}CPU per value: {nanoseconds:.0} ns", "");
            validity.add(check(conf, case));
            results.push(serde_json::json!({ "id": case.id(), "cpu_ns_per_value": nanoseconds }));
        }
    }
    group.finish();
    if !results.is_empty() {
        artifact::write("bench_ingest", &topology, validity, results.into()).expect("results");
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
