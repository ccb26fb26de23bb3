//! All pages in order, with several read-ahead settings.

use engine::config::PageServerConf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Plan;
use crate::world::{PAGE, World};

/// Pages requested at once, as by a prefetching compute.
const BATCH: u32 = 32;

/// Measures one scan. Without read-ahead it ends early, because each batch takes a full round trip.
pub async fn measure(
    world: &World,
    plan: &Plan,
    read_ahead: u64,
    whole: u64,
    latency_ms: u64,
) -> anyhow::Result<Value> {
    let limits = |conf: &mut PageServerConf| {
        conf.read_ahead_max = read_ahead;
        conf.prefetch_whole_after = whole;
        conf.block_cache_disk = 8 << 30;
    };
    let opened = world.open(limits).await?;
    let conf = opened.conf();
    let total = if read_ahead == 0 { world.shape.total().min(plan.scan_pages_alone) } else { world.shape.total() };
    world.store.asked();
    world.store.set_latency(Duration::from_millis(latency_ms));
    let began = Instant::now();
    let mut first_batch_ms = None;
    for first in (0..total).step_by(BATCH as usize) {
        let numbers: Vec<u32> = (first..total.min(first + BATCH)).collect();
        let took = opened.read_all(&numbers).await?;
        first_batch_ms.get_or_insert(took);
    }
    let seconds = began.elapsed().as_secs_f64();
    let asked = world.store.asked();
    let late = late(world).await;
    world.store.set_latency(Duration::ZERO);
    let local = opened.local_bytes();
    opened.close().await;
    let (gets, bytes, wanted) = (asked.gets + late.0, asked.bytes + late.1, u64::from(total) * PAGE);
    Ok(json!({
        "read_ahead_max": read_ahead, "prefetch_whole_after": whole, "latency_ms": latency_ms,
        "bytes": wanted, "seconds": seconds, "mib_per_second": wanted as f64 / seconds / f64::from(1 << 20),
        "gets": gets, "bytes_fetched": bytes, "bytes_ratio": bytes as f64 / wanted as f64,
        "mean_get_bytes": bytes as f64 / gets as f64, "first_batch_ms": first_batch_ms, "local_bytes_after": local,
        "cache_memory_bytes": conf.block_cache_memory, "cache_disk_bytes": conf.block_cache_disk,
    }))
}

/// Requests that are still in flight when the last page has been read; they count, too.
async fn late(world: &World) -> (u64, u64) {
    let (mut gets, mut bytes) = (0, 0);
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let asked = world.store.asked();
        if asked.requests == 0 {
            return (gets, bytes);
        }
        (gets, bytes) = (gets + asked.gets, bytes + asked.bytes);
    }
}
