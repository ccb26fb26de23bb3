//! Single pages and batches in random order, at each cache level.

use serde_json::{Value, json};

use crate::Plan;
use crate::world::{Draw, Opened, World};

/// Pages of a batch.
const BATCH: usize = 32;

/// The most passes over all pages to bring them onto the local disk.
const PASSES_MAX: usize = 20;

/// Distinct pages that are read from memory.
const HOT_PAGES: u32 = 1024;

/// What is cached before each read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Level {
    /// The index part only.
    None,
    /// Indexes of layers.
    Index,
    /// Everything, on local disk.
    Disk,
    /// Everything, in memory.
    Memory,
}

impl Level {
    /// From the coldest to the warmest.
    pub const ALL: [Level; 4] = [Level::None, Level::Index, Level::Disk, Level::Memory];

    fn name(self) -> &'static str {
        match self {
            Level::None => "none",
            Level::Index => "index",
            Level::Disk => "data on disk",
            Level::Memory => "data in memory",
        }
    }
}

/// The value below which a share of the sorted reads stays, in milliseconds.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let at = ((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// Measures a level, with single pages or batches.
pub async fn measure(world: &World, plan: &Plan, level: Level, batch: bool, latency_ms: u64) -> anyhow::Result<Value> {
    let disk = if level == Level::Disk { 4 << 30 } else { 0 };
    let opened = world.open(|conf| conf.block_cache_disk = disk).await?;
    let conf = opened.conf();
    let per_read = if batch { BATCH } else { 1 };
    let count = if level == Level::None || level == Level::Index { plan.cold_reads } else { plan.warm_reads };
    let mut draw = Draw::new(42);
    // The pages must fit the cache.
    let distinct = if level == Level::Memory { world.shape.total().min(HOT_PAGES) } else { world.shape.total() };
    let spread = world.shape.total() / distinct;
    let wanted: Vec<Vec<u32>> =
        (0..count).map(|_| (0..per_read).map(|_| draw.next(distinct) * spread).collect()).collect();
    prepare(&opened, world, level, &wanted).await?;
    world.store.set_latency(std::time::Duration::from_millis(latency_ms));
    let (mut times, mut gets, mut bytes) = (Vec::new(), 0, 0);
    for pages in &wanted {
        match level {
            Level::None => opened.forget_all().await?,
            Level::Index | Level::Disk => opened.forget_memory(),
            Level::Memory => {}
        }
        world.store.asked();
        times.push(if batch { opened.read_all(pages).await? } else { opened.read(pages[0]).await? });
        let asked = world.store.asked();
        (gets, bytes) = (gets + asked.gets, bytes + asked.bytes);
    }
    world.store.set_latency(std::time::Duration::ZERO);
    opened.close().await;
    times.sort_by(f64::total_cmp);
    let pages = (count * per_read) as f64;
    Ok(json!({
        "level": level.name(), "latency_ms": latency_ms, "pages_per_read": per_read, "reads": count,
        "p50_ms": percentile(&times, 0.50), "p95_ms": percentile(&times, 0.95), "p99_ms": percentile(&times, 0.99),
        "gets_per_read": gets as f64 / count as f64, "gets_per_page": gets as f64 / pages,
        "bytes_per_page": bytes as f64 / pages,
        "cache_memory_bytes": conf.block_cache_memory, "cache_disk_bytes": conf.block_cache_disk,
    }))
}

/// Fills the caches as the level requires.
async fn prepare(opened: &Opened, world: &World, level: Level, wanted: &[Vec<u32>]) -> anyhow::Result<()> {
    match level {
        // At a start layers are opened ahead, beside the first read: requests that none of the others makes.
        Level::None => drop(opened.read(0).await?),
        Level::Index => {
            for layer in 0..world.shape.layers {
                for number in (0..world.shape.pages).step_by(64) {
                    opened.read(layer * world.shape.pages + number).await?;
                }
            }
        }
        Level::Memory => read_each(opened, wanted).await?,
        Level::Disk => return until_on_disk(opened, world, wanted).await,
    }
    opened.settle().await;
    Ok(())
}

async fn read_each(opened: &Opened, wanted: &[Vec<u32>]) -> anyhow::Result<()> {
    for pages in wanted {
        opened.read_all(pages).await?;
    }
    Ok(())
}

/// Reads everything until nothing is requested from the bucket: blocks that arrive faster than the disk takes them are
/// not kept.
async fn until_on_disk(opened: &Opened, world: &World, wanted: &[Vec<u32>]) -> anyhow::Result<()> {
    for _ in 0..PASSES_MAX {
        opened.settle().await;
        opened.forget_memory();
        read_each(opened, wanted).await?;
        if world.store.asked().gets == 0 {
            return Ok(());
        }
    }
    anyhow::bail!("after {PASSES_MAX} passes there still are pages that local disk has not: nothing to measure")
}
