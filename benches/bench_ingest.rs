//! The write path alone: how fast values get into an in-memory layer, and from there into a delta layer file.
//!
//! Six cases in each of three I/O modes, 128 MiB of values each. The matrix and the benchmark ids are those that other
//! page servers' ingest benchmarks use, so that results can be laid side by side.

// The macros of the benchmark library make public functions.
#![allow(missing_docs)]

use std::env;
use std::num::NonZeroUsize;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use pageserver::config::PageServerConf;
use pageserver::context::{DownloadBehavior, RequestContext};
use pageserver::l0_flush::{L0FlushConfig, L0FlushGlobalState};
use pageserver::task_mgr::TaskKind;
use pageserver::tenant::storage_layer::InMemoryLayer;
use pageserver::{page_cache, virtual_file};
use pageserver_api::key::Key;
use pageserver_api::models::virtual_file::IoMode;
use pageserver_api::shard::TenantShardId;
use pageserver_api::value::Value;
use tokio_util::sync::CancellationToken;
use utils::bin_ser::BeSer;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use utils::sync::gate::Gate;
use wal_decoder::serialized_batch::SerializedValueBatch;

const VOLUME_MIB: usize = 128;
const BATCH: usize = 16;

/// The 32-bit finalizer of MurmurHash3: a bijection, so that random keys are distinct.
fn murmur32(mut h: u32) -> u32 {
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

#[derive(Clone, Copy, Debug)]
enum KeyLayout {
    /// Ascending keys, as a bulk load writes them.
    Sequential,
    /// Distinct keys in random order.
    Random,
    /// Random keys out of few.
    RandomReuse(u32),
}

impl KeyLayout {
    fn block(self, i: u32) -> u32 {
        match self {
            KeyLayout::Sequential => i,
            KeyLayout::Random => murmur32(i),
            KeyLayout::RandomReuse(mask) => murmur32(i) & mask,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum WriteDelta {
    Yes,
    No,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    io_mode: IoMode,
    value_bytes: usize,
    key_layout: KeyLayout,
    write_delta: WriteDelta,
}

impl Case {
    /// `key_size_bytes` is the size of the values; the name is kept so that ids match other benchmarks'.
    fn id(&self) -> String {
        let Case { io_mode, value_bytes, key_layout, write_delta } = self;
        format!(
            "io_mode={io_mode:?} volume_mib={VOLUME_MIB} key_size_bytes={value_bytes} key_layout={key_layout:?} \
             write_delta={write_delta:?}"
        )
    }
}

async fn ingest(conf: &'static PageServerConf, case: Case) -> anyhow::Result<()> {
    let timeline_id = TimelineId::generate();
    let tenant = TenantShardId::unsharded(TenantId::generate());
    tokio::fs::create_dir_all(conf.timeline_path(&tenant, &timeline_id)).await?;
    let ctx = RequestContext::new(TaskKind::DebugTool, DownloadBehavior::Error);
    let (gate, cancel) = (Gate::default(), CancellationToken::new());
    let mut lsn = Lsn(1000);
    let layer = InMemoryLayer::create(conf, timeline_id, tenant, lsn, &gate, &cancel, &ctx).await?;

    let value = Value::Image(Bytes::from(vec![0; case.value_bytes]));
    let serialized = value.serialized_size()? as usize;
    let mut key = Key::from_i128(0);
    let mut batch = Vec::with_capacity(BATCH);
    for i in 0..VOLUME_MIB * 1024 * 1024 / case.value_bytes {
        lsn += case.value_bytes as u64;
        key.field6 = case.key_layout.block(i as u32);
        batch.push((key.to_compact(), lsn, serialized, value.clone()));
        if batch.len() == BATCH {
            let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
            layer.put_batch(SerializedValueBatch::from_values(full), &ctx).await?;
        }
    }
    if !batch.is_empty() {
        layer.put_batch(SerializedValueBatch::from_values(batch), &ctx).await?;
    }
    layer.freeze(lsn + 1).await;
    if case.write_delta == WriteDelta::Yes {
        let flush = L0FlushGlobalState::new(L0FlushConfig::Direct { max_concurrency: NonZeroUsize::MIN });
        let written = layer.write_to_disk(&ctx, None, flush.inner(), &gate, cancel.clone()).await?;
        let (_desc, path) = written.expect("a layer with values is written");
        tokio::fs::remove_file(path).await?;
    }
    Ok(())
}

fn run(conf: &'static PageServerConf, case: Case) {
    virtual_file::set_io_mode(case.io_mode);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    runtime.block_on(ingest(conf, case)).expect("ingest");
}

fn cases() -> Vec<Case> {
    use KeyLayout::*;
    use WriteDelta::*;
    let matrix = [
        (100, Sequential, Yes),
        (100, Random, Yes),
        (100, RandomReuse(0x3ff), Yes),
        (100, Sequential, No),
        (8192, Sequential, Yes),
        (8192, Sequential, No),
    ];
    let with_mode = |io_mode| {
        matrix.map(|(value_bytes, key_layout, write_delta)| Case { io_mode, value_bytes, key_layout, write_delta })
    };
    [IoMode::Buffered, IoMode::Direct, IoMode::DirectRw].into_iter().flat_map(with_mode).collect()
}

/// User and system time of this process so far, in seconds.
fn cpu_seconds() -> f64 {
    let usage = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = usage.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn bench(c: &mut Criterion) {
    let parent: Utf8PathBuf = env::current_dir().expect("current directory").try_into().expect("UTF-8 path");
    let dir = camino_tempfile::tempdir_in(parent).expect("temporary directory");
    let conf: &'static PageServerConf = Box::leak(Box::new(PageServerConf::dummy_conf(dir.path().to_path_buf())));
    let engine = virtual_file::io_engine_for_bench();
    // Without real syncs, writes through the page cache would look faster than they are.
    virtual_file::init(16384, engine, conf.virtual_file_io_mode, virtual_file::SyncMode::Sync);
    page_cache::init(conf.page_cache_size);
    report_setting(dir.path(), engine);

    let mut group = c.benchmark_group("ingest");
    group.sample_size(10);
    group.throughput(criterion::Throughput::Bytes((VOLUME_MIB * 1024 * 1024) as u64));
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
            let values = iterations as f64 * (VOLUME_MIB * 1024 * 1024 / case.value_bytes) as f64;
            report_cpu(&case, cpu * 1e9 / values);
        }
    }
    group.finish();
}

/// Prints the CPU time a value took (user and system, of all threads) and keeps it for the report.
fn report_cpu(case: &Case, nanoseconds: f64) {
    println!("{:>24}CPU per value: {nanoseconds:.0} ns", "");
    let line = serde_json::json!({ "id": case.id(), "cpu_ns_per_value": nanoseconds });
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench_ingest_cpu.jsonl");
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| std::io::Write::write_all(&mut file, format!("{line}\n").as_bytes()))
        .expect("keep result");
}

fn report_setting(dir: &Utf8Path, engine: impl std::fmt::Display) {
    eprintln!("data directory: {dir}, engine: {engine}");
}

criterion_group!(benches, bench);
criterion_main!(benches);
