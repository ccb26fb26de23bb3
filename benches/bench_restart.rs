//! What a timeline of many layers costs before it is used: opening it, its memory, and a branch off it.
//!
//! Makes a timeline of 10,000 image layers, then opens everything with `TenantManager::load` in separate processes, so
//! that memory is only what opening needs, and makes branches. Prints medians, and writes them as JSON where
//! `BENCH_RESULTS` says. Nothing is written if a page read after opening, or from a branch, is not what was stored.

#[path = "common/artifact.rs"]
mod artifact;

use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use engine::config::PageServerConf;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::manager::{NewBranch, TenantManager};
use engine::tenant::storage_layer::ImageLayerWriter;
use engine::tenant::timeline::{NewTimeline, Origin, Timeline};
use pageserver_api::key::Key;
use pageserver_api::models::virtual_file::IoMode;
use pageserver_api::shard::TenantShardId;
use postgres_formats::version::PgVersion;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use artifact::{Setting, Topology, Unit, Validity};

const LSN: Lsn = Lsn(0x1000);
const LAYERS: u32 = 10_000;
const PAGES_PER_LAYER: u32 = 4;
const BRANCHES: usize = 20;
const OPENS: usize = 5;

fn key(layer: u32, page: u32) -> Key {
    Key { field2: 1663, field3: 5, field4: 16384 + layer, field6: page, ..Key::MIN }
}

fn page(layer: u32, page: u32) -> Vec<u8> {
    let seed = layer.wrapping_mul(2_654_435_761) ^ page;
    (0..2048u32).flat_map(|word| (seed ^ word).to_le_bytes()).collect()
}

fn context() -> RequestContext {
    RequestContext::new(TaskKind::DebugTool, DownloadBehavior::Error)
}

fn config(dir: &Utf8Path) -> &'static PageServerConf {
    let engine = virtual_file::io_engine_for_bench();
    virtual_file::init(16384, engine, IoMode::DirectRw, virtual_file::SyncMode::Sync);
    Box::leak(Box::new(PageServerConf::dummy_conf(dir.to_owned())))
}

async fn make(dir: &Utf8Path, tenant: TenantShardId, layers: u32) -> anyhow::Result<()> {
    let (conf, ctx, timeline_id) = (config(dir), context(), TimelineId::generate());
    Timeline::prepare(conf, tenant, timeline_id).await?;
    let mut finished = Vec::new();
    for layer in 0..layers {
        let keys = key(layer, 0)..key(layer + 1, 0);
        let mut writer = ImageLayerWriter::create(conf, timeline_id, tenant, keys, LSN, &ctx).await?;
        for number in 0..PAGES_PER_LAYER {
            writer.put_image(key(layer, number), &page(layer, number)).await?;
        }
        finished.push(writer.finish(&ctx).await?);
    }
    let origin = Origin::of_initdb(PgVersion::V15, 7, LSN);
    let new = NewTimeline { tenant_shard_id: tenant, timeline_id, origin, prev_record_lsn: Lsn::INVALID };
    Timeline::create(conf, new, finished, &ctx).await?.shutdown().await;
    Ok(())
}

/// The measurements of one process that opens everything.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Seen {
    load_ms: f64,
    first_read_ms: f64,
    rss_mib: f64,
    branch_ms: Vec<f64>,
    validity: Validity,
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

fn rss_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}

async fn open(dir: &Utf8Path, tenant: TenantShardId, layers: u32) -> anyhow::Result<Seen> {
    let conf = config(dir);
    let began = Instant::now();
    let manager = TenantManager::load(conf).await?;
    let load_ms = ms(began);
    let timelines = manager.timelines(tenant)?;
    let timeline = timelines.first().ok_or_else(|| anyhow::anyhow!("there is no timeline"))?;
    let began = Instant::now();
    let found = timeline.get(key(layers / 2, 1), LSN, &context()).await?;
    let first_read_ms = ms(began);
    let mut validity = Validity::of(Unit::Pages);
    validity.compare(found == page(layers / 2, 1));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let rss_mib = rss_mib();
    let mut branch_ms = Vec::new();
    let mut made = Vec::new();
    for _ in 0..BRANCHES {
        let new = NewBranch { timeline_id: TimelineId::generate(), ancestor_id: timeline.timeline_id(), lsn: None };
        let began = Instant::now();
        let (branch, _) = manager.branch(tenant, new).await?;
        branch_ms.push(ms(began));
        validity.compare(branch.get(key(3, 2), LSN, &context()).await? == page(3, 2));
        made.push(new.timeline_id);
    }
    for branch in made {
        manager.delete_timeline(tenant, branch).await?;
    }
    manager.shutdown().await;
    Ok(Seen { load_ms, first_read_ms, rss_mib, branch_ms, validity })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn in_own_process(dir: &Utf8Path, tenant: TenantShardId, layers: u32) -> anyhow::Result<Seen> {
    let output = std::process::Command::new(std::env::current_exe()?)
        .env("BENCH_RESTART_OPEN", format!("{dir} {tenant} {layers}"))
        .output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn measure(layers: u32, validity: &mut Validity) -> anyhow::Result<serde_json::Value> {
    let dir = camino_tempfile::tempdir_in(std::env::var("CARGO_TARGET_TMPDIR").unwrap_or_else(|_| "/tmp".to_owned()))?;
    let tenant = TenantShardId::unsharded(TenantId::generate());
    tokio::runtime::Runtime::new()?.block_on(make(dir.path(), tenant, layers))?;
    let seen: Vec<Seen> = (0..OPENS).map(|_| in_own_process(dir.path(), tenant, layers)).collect::<Result<_, _>>()?;
    seen.iter().for_each(|seen| validity.add(seen.validity));
    let of = |what: fn(&Seen) -> f64| median(seen.iter().map(what).collect());
    let branch: Vec<f64> = seen.iter().flat_map(|seen| seen.branch_ms.iter().copied()).collect();
    let worst = branch.iter().copied().fold(0.0, f64::max);
    let result = serde_json::json!({
        "layers": layers, "opens": OPENS, "load_ms": of(|seen| seen.load_ms),
        "first_read_ms": of(|seen| seen.first_read_ms), "rss_mib": of(|seen| seen.rss_mib),
        "branches": branch.len(), "branch_ms_median": median(branch), "branch_ms_max": worst,
    });
    println!("{result:#}");
    Ok(result)
}

fn main() -> anyhow::Result<()> {
    if let Ok(order) = std::env::var("BENCH_RESTART_OPEN") {
        let words: Vec<&str> = order.split(' ').collect();
        let [dir, tenant, layers] = words[..] else { anyhow::bail!("bad order {order}") };
        let (dir, tenant, layers) = (Utf8PathBuf::from(dir), tenant.parse()?, layers.parse()?);
        let seen = tokio::runtime::Runtime::new()?.block_on(open(&dir, tenant, layers))?;
        println!("{}", serde_json::to_string(&seen)?);
        return Ok(());
    }
    let topology = Topology::take(Setting::one_process(
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")),
        virtual_file::io_engine_for_bench(),
        "DirectRw",
    ));
    let mut validity = Validity::of(Unit::Pages);
    let results = serde_json::json!([measure(100, &mut validity)?, measure(LAYERS, &mut validity)?]);
    artifact::write("restart", &topology, validity, results)?;
    Ok(())
}
