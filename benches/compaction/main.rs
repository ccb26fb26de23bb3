//! What reads, writes and space cost while a history grows, with compaction and without.
//!
//! A database of `BENCH_COMPACTION_PAGES` pages takes `BENCH_COMPACTION_MIB` of changes, as fast as they go in, while
//! one reader reads pages at the newest LSN and checks each. Layers and cells are a sixteenth of their usual size, so
//! that a history of a few GiB has the shape of one sixteen times as long; the history kept is a quarter of what is
//! written. At sixteen moments pages are read with a trace: layers searched and records applied for each. The same is
//! done with compaction turned off. Writes `compaction.json` where `BENCH_RESULTS` says; nothing if a page was wrong.

#[path = "../common/artifact.rs"]
mod artifact;
mod load;
mod spent;
#[path = "../common/zipf.rs"]
mod zipf;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use camino::Utf8Path;
use engine::config::{CompactionPolicy, PageServerConf, RetentionPolicy};
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::manager::TenantManager;
use engine::tenant::storage_layer::ImageLayerWriter;
use engine::tenant::timeline::{NewTimeline, Origin, Timeline};
use hdrhistogram::Histogram;
use metrics::METRICS;
use pageserver_api::key::Key;
use pageserver_api::models::virtual_file::IoMode;
use pageserver_api::shard::TenantShardId;
use postgres_formats::version::PgVersion;
use serde_json::{Value, json};
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use artifact::{Setting, Topology, Unit, Validity};
use load::{Load, Order, PAGE, check, key_of, page};
use spent::{Spent, observed, slowest};
use zipf::mixed;

/// As in the server.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const IMPORT_LSN: Lsn = Lsn(0x1000);
const BATCH: u64 = 500;
const SAMPLES: u64 = 16;
/// Parts in which a sample is written; how long reads take is measured in those before pages are traced, which costs
/// so much that it would be measured, too.
const SLICES: u64 = 16;
const UNTRACED: u64 = 12;
const TRACED: u64 = 300;
/// Fewer pages are traced if that takes longer: without compaction a hot page may have a million records.
const TRACE_TIME: Duration = Duration::from_secs(2);
const CHECKPOINT_DISTANCE: u64 = 16 << 20;
const FILE_BYTES: u64 = 8 << 20;
/// Pages of one layer of the import: as much as another layer.
const CELL_PAGES: u32 = (FILE_BYTES / PAGE as u64) as u32;
/// How long reads are measured when all is compacted.
const IDLE: Duration = Duration::from_secs(3);

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn context() -> RequestContext {
    RequestContext::new(TaskKind::DebugTool, DownloadBehavior::Error)
}

fn config(dir: &Utf8Path, compacts: bool, kept: u64) -> &'static PageServerConf {
    let on = CompactionPolicy {
        file_bytes: FILE_BYTES,
        job_bytes: 16 * FILE_BYTES,
        thin_after: Duration::ZERO,
        ..CompactionPolicy::ON
    };
    Box::leak(Box::new(PageServerConf {
        checkpoint_distance: CHECKPOINT_DISTANCE,
        compaction: if compacts { on } else { CompactionPolicy::OFF },
        retention: RetentionPolicy {
            pitr_interval: Duration::ZERO,
            gc_horizon: kept,
            quiet_after_attach: Duration::ZERO,
            ..RetentionPolicy::ON_REQUEST
        },
        ..PageServerConf::dummy_conf(dir.to_owned())
    }))
}

async fn import(conf: &'static PageServerConf, pages: u32) -> anyhow::Result<(TenantManager, Timeline)> {
    let (ctx, manager) = (context(), TenantManager::load(conf).await?);
    let tenant_shard_id = TenantShardId::unsharded(TenantId::generate());
    let timeline_id = TimelineId::generate();
    Timeline::prepare(conf, tenant_shard_id, timeline_id).await?;
    let mut layers = Vec::new();
    for first in (0..pages).step_by(CELL_PAGES as usize) {
        let end = pages.min(first + CELL_PAGES);
        let start = if first == 0 { Key::MIN } else { key_of(first) };
        let keys = start..if end == pages { Key::MAX } else { key_of(end) };
        let mut writer = ImageLayerWriter::create(conf, timeline_id, tenant_shard_id, keys, IMPORT_LSN, &ctx).await?;
        for block in first..end {
            writer.put_image(key_of(block), &page(block, IMPORT_LSN)).await?;
        }
        layers.push(writer.finish(&ctx).await?);
    }
    let origin = Origin::of_initdb(PgVersion::V15, 7, IMPORT_LSN);
    let new = NewTimeline { tenant_shard_id, timeline_id, origin, prev_record_lsn: Lsn::INVALID };
    let timeline = Timeline::create(conf, new, layers, &ctx).await?;
    manager.add(timeline.clone()).await?;
    Ok((manager, timeline))
}

/// What writer and reader share.
struct Shared {
    timeline: Timeline,
    load: parking_lot::RwLock<Load>,
    /// Pages appended so far.
    appended: AtomicU32,
    ends: AtomicBool,
}

/// What the reader has seen since it was last asked.
struct Reads {
    micros: Histogram<u64>,
    spent: Vec<Spent>,
    validity: Validity,
}

fn no_reads() -> Reads {
    let micros = Histogram::new_with_bounds(1, 60_000_000, 3).expect("valid bounds");
    Reads { micros, spent: Vec::new(), validity: Validity::of(Unit::Pages) }
}

/// Whether a page as read is one that could be read then: whole, and not older than what was complete before.
fn is_right(block: u32, found: &[u8], before: Lsn, asked: Lsn) -> bool {
    check(block, found).is_some_and(|changed| before <= changed && changed <= asked)
}

/// As a page request: pages that were rebuilt a short time ago are in memory.
async fn read(shared: Arc<Shared>, reads: Arc<parking_lot::Mutex<Reads>>) -> anyhow::Result<()> {
    let ctx = RequestContext::new(TaskKind::PageRequestHandler, DownloadBehavior::Error);
    let mut number = 1 << 40;
    while !shared.ends.load(Ordering::Relaxed) {
        number += 1;
        let (block, before) = {
            let load = shared.load.read();
            let block = load.page_to_read(mixed(number), shared.appended.load(Ordering::Acquire));
            (block, load.last(block))
        };
        let lsn = shared.timeline.last_record_lsn();
        let (found, spent) = observed(shared.timeline.get(key_of(block), lsn, &ctx)).await;
        let right = is_right(block, &found?, before, lsn);
        let mut reads = reads.lock();
        reads.micros.saturating_record(spent.took.as_micros() as u64);
        reads.spent.push(spent);
        reads.validity.compare(right);
    }
    Ok(())
}

/// What the server's background tasks do: layers become durable and are compacted, history goes.
async fn tend(shared: Arc<Shared>) -> anyhow::Result<()> {
    let mut rounds = 0u32;
    while !shared.ends.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(250)).await;
        shared.timeline.tend().await?;
        rounds += 1;
        if rounds.is_multiple_of(8) {
            Timeline::collect_garbage(std::slice::from_ref(&shared.timeline), false).await?;
        }
    }
    Ok(())
}

/// The writer, and what it has measured since the last sample.
struct Writer {
    shared: Arc<Shared>,
    lsn: Lsn,
    number: u64,
    bytes: u64,
    pauses: Histogram<u64>,
    /// Bytes per second, if not as fast as they go in, since then.
    rate: Option<f64>,
    began: Instant,
}

impl Writer {
    async fn write(&mut self, bytes: u64, ctx: &RequestContext) -> anyhow::Result<()> {
        let end = self.bytes + bytes;
        while self.bytes < end {
            let (mut batch, mut changed) = (SerializedValueBatch::default(), Vec::new());
            {
                let mut load = self.shared.load.write();
                let count = if load.order == Order::Append { BATCH / 50 } else { BATCH };
                for _ in 0..count {
                    let lsn = self.lsn + 8;
                    let change = load.change(self.number, lsn);
                    batch.put_key(&change.key, lsn, &change.value)?;
                    // As much WAL as Postgres would have written, with the record's header.
                    self.lsn = Lsn((lsn.0 + change.len + 24).next_multiple_of(8));
                    (self.number, self.bytes) = (self.number + 1, self.bytes + change.len);
                    changed.push((change.block, lsn));
                }
            }
            if let Some(rate) = self.rate {
                let at = self.began + Duration::from_secs_f64(self.bytes as f64 / rate);
                tokio::time::sleep_until(at.into()).await;
            }
            let began = Instant::now();
            self.shared.timeline.put_batch(batch, ctx).await?;
            self.shared.timeline.finish_write(self.lsn, self.lsn - 8);
            self.pauses.saturating_record(began.elapsed().as_micros() as u64);
            let load = self.shared.load.read();
            changed.into_iter().for_each(|(block, lsn)| load.note_written(block, lsn));
            if load.order == Order::Append {
                self.shared.appended.store(self.number as u32, Ordering::Release);
            }
        }
        Ok(())
    }
}

fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}

fn percentile(values: &mut [usize], percent: usize) -> usize {
    values.sort_unstable();
    values.get((values.len() * percent).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0)
}

/// What pages cost that were read: layers searched, records applied.
fn costs() -> [Vec<(u64, u64)>; 2] {
    [METRICS.layers_per_read_global.counts(), METRICS.deltas_per_read_global.counts()]
}

/// The smallest bound of a bucket such that 99 of 100 pages read since `before` are within.
fn p99_since(before: &[(u64, u64)], now: &[(u64, u64)]) -> u64 {
    let since: Vec<(u64, u64)> = before.iter().zip(now).map(|(old, new)| (new.0, new.1 - old.1)).collect();
    let all: u64 = since.iter().map(|(_, count)| count).sum();
    let mut within = 0;
    let reached = since.into_iter().find(|(_, count)| {
        within += count;
        within * 100 >= all * 99
    });
    reached.map_or(0, |(bound, _)| bound)
}

/// Reads pages with a trace, past the cache of rebuilt pages: layers searched and records applied, p50 and p99 of each.
async fn traced(shared: Arc<Shared>, sample: u64) -> anyhow::Result<(Value, Validity)> {
    let (mut searched, mut applied) = (Vec::new(), Vec::new());
    let (ctx, mut validity) = (context(), Validity::of(Unit::Pages));
    let began = Instant::now();
    for number in 0..TRACED {
        if began.elapsed() > TRACE_TIME {
            break;
        }
        let chance = mixed((sample << 32) | number);
        let (block, before) = {
            let load = shared.load.read();
            let block = load.page_to_read(chance, shared.appended.load(Ordering::Acquire));
            (block, load.last(block))
        };
        let lsn = shared.timeline.last_record_lsn();
        let trace = shared.timeline.explain(key_of(block), lsn, &ctx).await?;
        validity.compare(trace.value.is_ok_and(|found| is_right(block, &found, before, lsn)));
        searched.push(trace.visits.iter().filter(|visit| visit.searched).count());
        applied.push(trace.records);
    }
    let depth = json!({
        "searched_p50": percentile(&mut searched, 50), "searched_p99": percentile(&mut searched, 99),
        "records_p50": percentile(&mut applied, 50), "records_p99": percentile(&mut applied, 99),
    });
    Ok((depth, validity))
}

/// Bytes of everything that is stored, replaced layers that are still there included.
fn stored(timeline: &Timeline) -> u64 {
    let info = timeline.info();
    info.layer_bytes + info.replaced_bytes
}

/// The newest images of all pages and the history that is kept: what has to be stored.
fn needed(writer: &Writer, pages: u32, kept: u64) -> f64 {
    let pages = u64::from(pages) + u64::from(writer.shared.appended.load(Ordering::Relaxed));
    let history = kept as f64 / (writer.lsn - IMPORT_LSN.0).0 as f64;
    (pages * PAGE as u64) as f64 + writer.bytes as f64 * history.min(1.0)
}

async fn run(order: Order, compacts: bool, validity: &mut Validity) -> anyhow::Result<Value> {
    let pages = u32::try_from(from_env("BENCH_COMPACTION_PAGES", 65_536))?.next_power_of_two();
    let total = from_env("BENCH_COMPACTION_MIB", 1024) << 20;
    let kept = total / 4;
    let dir = camino_tempfile::tempdir_in(std::env::var("CARGO_TARGET_TMPDIR").unwrap_or_else(|_| "/tmp".to_owned()))?;
    let (manager, timeline) = import(config(dir.path(), compacts, kept), pages).await?;
    let base = stored(&timeline);
    let more = if order == Order::Append { (total / PAGE as u64) as u32 + 1024 } else { 0 };
    let load = parking_lot::RwLock::new(Load::new(order, pages, more, IMPORT_LSN));
    let shared = Arc::new(Shared { timeline, load, appended: AtomicU32::new(0), ends: AtomicBool::new(false) });
    let reads = Arc::new(parking_lot::Mutex::new(no_reads()));
    let reader = tokio::spawn(read(Arc::clone(&shared), Arc::clone(&reads)));
    let tender = tokio::spawn(tend(Arc::clone(&shared)));
    let pauses = Histogram::new_with_bounds(1, 60_000_000, 3)?;
    let rate = Some(from_env("BENCH_COMPACTION_RATE", 0)).filter(|rate| *rate > 0).map(|rate| (rate << 20) as f64);
    let mut writer = Writer {
        shared: Arc::clone(&shared),
        lsn: IMPORT_LSN,
        number: 0,
        bytes: 0,
        pauses,
        rate,
        began: Instant::now(),
    };
    let (ctx, started) = (context(), Instant::now());
    let (mut samples, mut ingest, mut most_l0) = (Vec::new(), Duration::ZERO, 0);
    for sample in 0..SAMPLES {
        let (began, [searched, applied]) = (Instant::now(), costs());
        let (mut seen, mut depth) = (no_reads(), None);
        for slice in 0..SLICES {
            if slice == UNTRACED {
                seen = std::mem::replace(&mut *reads.lock(), no_reads());
                // Beside the writer: jobs get no time of their own for it.
                depth = Some(tokio::spawn(traced(Arc::clone(&shared), sample)));
            }
            writer.write(total / SAMPLES / SLICES, &ctx).await?;
            most_l0 = most_l0.max(shared.timeline.info().l0_layers);
        }
        let took = began.elapsed();
        ingest += took;
        let [searched_now, applied_now] = costs();
        let (depth, checked) = depth.context("nothing was traced")?.await??;
        validity.add(checked);
        validity.add(seen.validity);
        validity.add(std::mem::replace(&mut *reads.lock(), no_reads()).validity);
        // What was not written meanwhile is not caught up with.
        writer.began += began.elapsed() - took;
        let info = shared.timeline.info();
        let space = stored(&shared.timeline) as f64 / needed(&writer, pages, kept);
        samples.push(json!({
            "written_mib": writer.bytes >> 20, "mib_per_s": (total / SAMPLES) as f64 / (1 << 20) as f64
                / took.as_secs_f64(),
            "read_p50_us": seen.micros.value_at_quantile(0.5), "read_p99_us": seen.micros.value_at_quantile(0.99),
            "reads": seen.micros.len(), "slowest_reads": slowest(&mut seen.spent),
            "read_searched_p99": p99_since(&searched, &searched_now),
            "read_records_p99": p99_since(&applied, &applied_now), "depth": depth,
            "l0": info.l0_layers, "height": shared.timeline.height(),
            "layers": info.layers, "stored_mib": stored(&shared.timeline) >> 20, "space": space, "rss_mib": rss_mib(),
        }));
    }
    let seen_of = |reads: &parking_lot::Mutex<Reads>, validity: &mut Validity| {
        let mut seen = std::mem::replace(&mut *reads.lock(), no_reads());
        validity.add(seen.validity);
        (seen.micros.value_at_quantile(0.99), slowest(&mut seen.spent))
    };
    seen_of(&reads, validity);
    let began = Instant::now();
    if compacts {
        shared.timeline.compact().await?;
    }
    let (settled, (settling_p99, settling_slowest)) = (began.elapsed(), seen_of(&reads, validity));
    tokio::time::sleep(IDLE).await;
    let (idle_p99, idle_slowest) = seen_of(&reads, validity);
    shared.ends.store(true, Ordering::Relaxed);
    reader.await??;
    tender.await??;
    validity.add(reads.lock().validity);
    let done = shared.timeline.info().compaction;
    let jobs =
        done.sort.bytes_out + done.merge.bytes_out + done.image.bytes_out + done.fold.bytes_out + done.trim.bytes_out;
    let result = json!({
        "order": order.name(), "compaction": compacts, "pages": pages, "written_mib": writer.bytes >> 20,
        "kept_mib": kept >> 20, "import_mib": base >> 20, "rate_mib_per_s": writer.rate.map(|rate| rate as u64 >> 20),
        "ingest_mib_per_s": writer.bytes as f64 / (1 << 20) as f64 / ingest.as_secs_f64(),
        "pause_p99_us": writer.pauses.value_at_quantile(0.99), "pause_max_us": writer.pauses.max(),
        "most_l0": most_l0, "settled_s": settled.as_secs_f64(),
        "settling_read_p99_us": settling_p99, "idle_read_p99_us": idle_p99,
        "settling_slowest_reads": settling_slowest, "idle_slowest_reads": idle_slowest,
        "seconds": started.elapsed().as_secs_f64(),
        "jobs": { "sort": done.sort, "merge": done.merge, "image": done.image,
            "fold": done.fold, "trim": done.trim },
        "job_bytes_per_byte": jobs as f64 / writer.bytes as f64,
        "stored_mib": stored(&shared.timeline) >> 20, "samples": samples,
    });
    drop(writer);
    drop(shared);
    let began = Instant::now();
    manager.shutdown().await;
    println!(
        "{} compaction {compacts}: {} s, closed in {:?}",
        order.name(),
        started.elapsed().as_secs(),
        began.elapsed()
    );
    Ok(result)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let engine = virtual_file::io_engine_for_bench();
    virtual_file::init(16384, engine, IoMode::DirectRw, virtual_file::SyncMode::Sync);
    let niceness = i32::try_from(from_env("BENCH_COMPACTION_NICENESS", CompactionPolicy::NICENESS as u64))?;
    // As in the server.
    let _aside = env::aside::Aside::start(2, niceness)?;
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let setting = Setting { allocator: "jemalloc", ..Setting::one_process(dir, engine, "DirectRw") };
    let topology = Topology::take(setting);
    let only = std::env::var("BENCH_COMPACTION_ONLY").ok();
    let (mut validity, mut results) = (Validity::of(Unit::Pages), Vec::new());
    for order in Order::ALL.into_iter().filter(|order| only.as_ref().is_none_or(|only| order.name().contains(only))) {
        let both = [true, false].into_iter().filter(|on| *on || std::env::var("BENCH_COMPACTION_ON").is_err());
        for compacts in both {
            results.push(run(order, compacts, &mut validity).await?);
        }
    }
    artifact::write("compaction", &topology, validity, results.into())?;
    Ok(())
}
