//! What reads cost of a layer that was sealed where its values arrived, against one whose values are sorted by key.
//!
//! Fills an in-memory layer with interleaved changes of many pages (and with single images), writes it both ways, and
//! reads single values and whole chains of 100 records with a warm index, with direct I/O. Prints microseconds and data
//! reads per page; fails if a point read costs more than one data read.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use pageserver::config::PageServerConf;
use pageserver::context::{DownloadBehavior, RequestContext};
use pageserver::l0_flush::{L0FlushConfig, L0FlushGlobalState};
use pageserver::task_mgr::TaskKind;
use pageserver::tenant::storage_layer::{DeltaLayer, DeltaLayerWriter, InMemoryLayer, ReconstructState};
use pageserver::virtual_file;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::models::virtual_file::IoMode;
use pageserver_api::record::WalRecord;
use pageserver_api::shard::TenantShardId;
use pageserver_api::value::Value;
use tokio_util::sync::CancellationToken;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use utils::sync::gate::Gate;
use wal_decoder::serialized_batch::SerializedValueBatch;

/// Pages with a chain of changes each.
const PAGES: u32 = 4096;
const CHAIN: u32 = 100;
const RECORD_LEN: usize = 100;
/// Pages with one image each, read by the point reads.
const IMAGES: u32 = 200_000;
const READS: u32 = 2000;

fn key(block: u32) -> Key {
    Key { field2: 1663, field3: 5, field4: 16384, field6: block, ..Key::MIN }
}

fn image_key(block: u32) -> Key {
    Key { field4: 16385, ..key(block) }
}

fn change(first: bool) -> Value {
    let record = Bytes::from(vec![7; RECORD_LEN]);
    Value::WalRecord(WalRecord::Postgres { will_init: first, block_id: 0, record })
}

/// A scattered order of `0..PAGES`.
fn shuffled(i: u32) -> u32 {
    i.wrapping_mul(2_654_435_761) % PAGES
}

/// A scattered order of `0..IMAGES`: the factor has no divisor in common with it.
fn scattered_image(i: u32) -> u32 {
    (u64::from(i) * 40_507 % u64::from(IMAGES)) as u32
}

struct Layers {
    sealed: DeltaLayer,
    sorted: DeltaLayer,
    lsns: Range<Lsn>,
}

async fn put_all(layer: &InMemoryLayer, ctx: &RequestContext) -> anyhow::Result<Lsn> {
    let mut lsn = Lsn(8);
    let mut batch = SerializedValueBatch::default();
    for round in 0..CHAIN {
        for i in 0..PAGES {
            batch.put_key(&key(shuffled(i)), lsn, &change(round == 0))?;
            lsn += 8;
        }
        layer.put_batch(std::mem::take(&mut batch), ctx).await?;
    }
    let image = Value::Image(Bytes::from(vec![1; RECORD_LEN]));
    for block in 0..IMAGES {
        batch.put_key(&image_key(scattered_image(block)), lsn, &image)?;
        lsn += 8;
    }
    layer.put_batch(batch, ctx).await?;
    Ok(lsn)
}

async fn make_layers(conf: &'static PageServerConf, ctx: &RequestContext) -> anyhow::Result<Layers> {
    let tenant = TenantShardId::unsharded(TenantId::generate());
    let timeline = TimelineId::generate();
    tokio::fs::create_dir_all(conf.timeline_path(&tenant, &timeline)).await?;
    let (gate, cancel) = (Gate::default(), CancellationToken::new());
    let layer = InMemoryLayer::create(conf, timeline, tenant, Lsn(8), &gate, &cancel, ctx).await?;
    let end = put_all(&layer, ctx).await?;
    layer.freeze(end).await;
    let lsns = Lsn(8)..end;

    let mut writer = DeltaLayerWriter::create(conf, timeline, tenant, Key::MIN..Key::MAX, lsns.clone(), ctx).await?;
    for (compact, lsn, will_init) in layer.versions() {
        let key = Key::from_compact(compact);
        let value =
            if key.field4 == 16384 { change(will_init) } else { Value::Image(Bytes::from(vec![1; RECORD_LEN])) };
        writer.put_value(key, lsn, &value).await?;
    }
    let (sorted_desc, sorted_path) = writer.finish(ctx).await?;

    let flush = L0FlushGlobalState::new(L0FlushConfig::Direct { max_concurrency: NonZeroUsize::MIN });
    let written = layer.write_to_disk(ctx, None, flush.inner(), &gate, cancel).await?;
    let (sealed_desc, sealed_path) = written.expect("the layer has values");
    println!("sealed {} MiB, sorted {} MiB", sealed_desc.file_size >> 20, sorted_desc.file_size >> 20);
    let sealed = DeltaLayer::open(&sealed_path, &sealed_desc, ctx).await?;
    let sorted = DeltaLayer::open(&sorted_path, &sorted_desc, ctx).await?;
    Ok(Layers { sealed, sorted, lsns })
}

/// Microseconds and data reads per page.
async fn measure(
    layer: &DeltaLayer,
    lsns: &Range<Lsn>,
    keys: impl Fn(u32) -> Key,
    ctx: &RequestContext,
) -> anyhow::Result<(f64, f64)> {
    let mut best = f64::MAX;
    let mut data_reads = 0;
    // The first round warms the index.
    for _ in 0..4 {
        data_reads = 0;
        let start = Instant::now();
        for i in 0..READS {
            let key = keys(i);
            let mut state = ReconstructState::new();
            let keyspace = KeySpace::single(key..key.next());
            layer.get_values_reconstruct_data(&keyspace, lsns.clone(), &mut state, ctx).await?;
            data_reads += state.data_reads;
            anyhow::ensure!(state.is_complete(&key), "key {key} is not there");
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(READS));
    }
    Ok((best, data_reads as f64 / f64::from(READS)))
}

async fn run(dir: &Utf8Path) -> anyhow::Result<()> {
    let conf: &'static PageServerConf = Box::leak(Box::new(PageServerConf::dummy_conf(dir.to_owned())));
    let engine = virtual_file::io_engine_for_bench();
    virtual_file::init(1024, engine, IoMode::DirectRw, virtual_file::SyncMode::Sync);
    let ctx = RequestContext::new(TaskKind::DebugTool, DownloadBehavior::Error);
    let Layers { sealed, sorted, lsns } = make_layers(conf, &ctx).await?;
    let mut results = serde_json::Map::new();
    let mut record = |name: &str, (us, reads): (f64, f64)| {
        println!("{name:<24} {us:>8.1} us/page {reads:>6.2} data reads/page");
        results.insert(name.to_owned(), serde_json::json!({ "us": us, "data_reads": reads }));
    };
    let image = |i: u32| image_key(scattered_image(i.wrapping_mul(97) % IMAGES));
    let chain = |i: u32| key(i.wrapping_mul(40_503) % PAGES);
    let point = measure(&sealed, &lsns, image, &ctx).await?;
    record("point sealed", point);
    record("point sorted", measure(&sorted, &lsns, image, &ctx).await?);
    let chain_sealed = measure(&sealed, &lsns, chain, &ctx).await?;
    let chain_sorted = measure(&sorted, &lsns, chain, &ctx).await?;
    record("chain of 100 sealed", chain_sealed);
    record("chain of 100 sorted", chain_sorted);
    println!("chain: sealed / sorted = {:.2}", chain_sealed.0 / chain_sorted.0);
    anyhow::ensure!(point.1 <= 1.0, "a point read costs {} data reads", point.1);
    anyhow::ensure!(chain_sealed.0 <= 3.0 * chain_sorted.0, "a chain costs over three times as much as when sorted");
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench_layer_read.json");
    std::fs::write(out, serde_json::Value::Object(results).to_string())?;
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
