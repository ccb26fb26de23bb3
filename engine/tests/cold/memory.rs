//! However much is requested from the bucket at once, memory usage stays within the budget.

use std::collections::BTreeSet;
use std::time::Duration;

use errors::StorageError;
use futures_util::future::try_join_all;

use crate::world::{World, check, check_pages, context};

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn memory_stays_within_its_budget() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 3000).await?;
    let layer = world.cold(&made).await;
    world.limit(|conf| conf.block_cache_memory = 4 << 20);
    for page in (0..3000).step_by(7) {
        check(&layer, &made, page, page + 1).await?;
        assert!(world.blocks().memory_used() <= 4 << 20, "{} bytes", world.blocks().memory_used());
    }
    Ok(())
}

/// Together the requests want many times the memory budget, and none waits for memory that another holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_under_way_stay_within_it() -> Result<(), StorageError> {
    const BUDGET: u64 = 8 * MIB;
    let world = World::new().await;
    let mut layers = Vec::new();
    for number in 0..8 {
        let made = world.make(number, 2048).await?;
        layers.push((world.cold(&made).await, made));
    }
    world.limit(|conf| {
        // Each read also fetches neighboring blocks, and whole layers are downloaded at the same time.
        (conf.block_cache_memory, conf.prefetch_whole_after) = (BUDGET, 1);
    });
    world.bucket.set_latency(Duration::from_millis(2));
    world.bucket.asked();
    let mut readers = Vec::new();
    for reader in 0..64u32 {
        let (layer, made) = layers[reader as usize % layers.len()].clone();
        readers.push(tokio::spawn(async move {
            let pages: BTreeSet<u32> = (0..32).map(|at| (at * 61 + reader * 7) % 2048).collect();
            let pages: Vec<u32> = pages.into_iter().collect();
            match reader % 3 {
                0 => check(&layer, &made, 0, 2048).await,
                1 => check_pages(&layer, &made, &pages).await,
                _ => layer.download(&context()).await,
            }
        }));
    }
    let mut most = 0;
    while readers.iter().any(|reader| !reader.is_finished()) {
        most = most.max(world.blocks().memory_used());
        tokio::task::yield_now().await;
    }
    try_join_all(readers).await.expect("no panic").into_iter().collect::<Result<(), _>>()?;
    let asked = world.bucket.asked();
    println!(
        "{} requests for {} MiB, {} and {} KiB at once, {} KiB in memory at most",
        asked.requests(),
        asked.bytes() / MIB,
        asked.most_under_way,
        asked.most_bytes_under_way >> 10,
        most >> 10,
    );
    assert!(asked.most_bytes_under_way <= BUDGET * 6 / 10, "what is cached has its part");
    assert!(most <= BUDGET && world.blocks().memory_used() <= BUDGET);
    Ok(())
}
