//! Sequential reads of cold layers: what is read ahead, and what makes room for it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use engine::tenant::layer_map::Layer;
use errors::StorageError;
use futures_util::stream::{self, StreamExt as _};

use crate::world::{World, check, check_pages};

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn a_scan_reads_ahead() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 8192).await?;
    for step in [1, 32, 500] {
        let layer = world.cold(&made).await;
        layer.evict().await?;
        world.forget();
        world.bucket.asked();
        world.bucket.set_latency(Duration::from_millis(2));
        for first in (0..made.pages).step_by(step) {
            check(&layer, &made, first, made.pages.min(first + step as u32)).await?;
        }
        let asked = world.bucket.asked();
        let (requests, bytes) = (asked.requests() as u64, asked.bytes());
        let ratio = bytes as f64 / made.desc.file_size as f64;
        let (total, mean) = (made.desc.file_size / MIB, bytes as f64 / requests as f64 / MIB as f64);
        println!(
            "scan of {total} MiB, {step} pages at a time: {requests} requests of {mean:.2} MiB, \
             {ratio:.3} of the bytes, {} at once",
            asked.most_under_way
        );
        assert!(ratio <= 1.3 && bytes / requests >= MIB && asked.most_under_way >= 2);
    }
    Ok(())
}

/// Reads the first `pages` pages of 8 MiB layers, one layer after the other. Returns the layers and the number of
/// requests for each.
async fn scan_layers(
    world: &World,
    numbers: Range<u32>,
    pages: u32,
) -> Result<(Vec<Arc<Layer>>, Vec<usize>), StorageError> {
    let (mut layers, mut requests) = (Vec::new(), Vec::new());
    for number in numbers {
        let made = world.make(number, 1024).await?;
        let layer = world.cold(&made).await;
        world.bucket.asked();
        for first in (0..pages).step_by(32) {
            check(&layer, &made, first, first + 32).await?;
        }
        requests.push(world.bucket.asked().requests());
        layers.push(layer);
    }
    println!("requests for {pages} pages of each layer: {requests:?}");
    Ok((layers, requests))
}

#[tokio::test]
async fn a_layer_that_was_read_to_its_end_leaves_room_for_the_next() -> Result<(), StorageError> {
    let world = World::new().await;
    world.limit(|conf| conf.block_cache_memory = 24 << 20);
    env::clock::freeze_thread();
    let (_open, requests) = scan_layers(&world, 0..12, 1024).await?;
    env::clock::thaw_thread();
    assert!(requests.iter().all(|number| *number <= 8), "{requests:?}");
    Ok(())
}

#[tokio::test]
async fn a_layer_that_is_read_no_further_leaves_room_soon() -> Result<(), StorageError> {
    let world = World::new().await;
    world.limit(|conf| conf.block_cache_memory = 24 << 20);
    env::clock::freeze_thread();
    let (_open, crowded) = scan_layers(&world, 0..8, 512).await?;
    env::clock::advance_thread(Duration::from_secs(2));
    let (_, later) = scan_layers(&world, 8..9, 512).await?;
    env::clock::thaw_thread();
    assert!(later[0] <= 8, "{later:?} after {crowded:?}");
    Ok(())
}

/// As a compute scans: pieces of 1 MiB, several at once, that overtake each other. Memory suffices for all that waits
/// to be written: where it does not, blocks are not kept, and the whole fetch brings them again.
#[tokio::test]
async fn a_scan_of_a_layer_that_is_fetched_whole_fetches_it_once() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 8192).await?;
    let layer = world.cold(&made).await;
    world.limit(|conf| (conf.block_cache_memory, conf.prefetch_whole_after) = (1 << 30, 50));
    world.bucket.set_latency(Duration::from_millis(60));
    let pieces = (0..8192).step_by(128).map(|first| {
        let (layer, made) = (Arc::clone(&layer), made.clone());
        async move { check(&layer, &made, first, first + 128).await }
    });
    let mut reads = stream::iter(pieces).buffer_unordered(6);
    while let Some(read) = reads.next().await {
        read?;
    }
    while layer.is_being_fetched() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let ratio = world.bucket.asked().bytes() as f64 / made.desc.file_size as f64;
    println!("{ratio:.3} of the bytes");
    assert!(layer.is_local() && ratio <= 1.3, "{ratio:.3} of the bytes");
    Ok(())
}

/// A layer that is worth fetching whole is read in pieces of 1 MiB. Where memory does not suffice for all of them, what
/// is asked for is still fetched at once.
#[tokio::test]
async fn many_pages_of_a_layer_worth_all_of_it_are_fetched_at_once() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 8192).await?;
    let layer = world.cold(&made).await;
    world.limit(|conf| (conf.block_cache_memory, conf.prefetch_whole_after) = (24 << 20, 50));
    for first in (0..5120).step_by(128) {
        check(&layer, &made, first, first + 128).await?;
    }
    world.bucket.asked();
    world.bucket.set_latency(Duration::from_millis(60));
    let pages: Vec<u32> = (0..40).map(|number| 5200 + 70 * number).collect();
    check_pages(&layer, &made, &pages).await?;
    let asked = world.bucket.asked();
    println!("{} requests, {} at once", asked.requests(), asked.most_under_way);
    assert!(asked.most_under_way >= 20, "{} requests, only {} at once", asked.requests(), asked.most_under_way);
    Ok(())
}

#[tokio::test]
async fn scans_share_what_memory_there_is() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = [world.make(0, 4096).await?, world.make(1, 4096).await?, world.make(2, 4096).await?];
    // With the clock frozen, no scan counts as abandoned, however slow the machine is.
    env::clock::freeze_thread();
    // Without read-ahead there are 384 requests.
    for (mib, most) in [(6, 300), (9, 240), (12, 200), (64, 60)] {
        let layers = [world.cold(&made[0]).await, world.cold(&made[1]).await, world.cold(&made[2]).await];
        world.limit(|conf| (conf.block_cache_memory, conf.block_cache_disk) = (mib << 20, 0));
        world.bucket.asked();
        for first in (0..4096).step_by(32) {
            for (layer, made) in layers.iter().zip(&made) {
                check(layer, made, first, first + 32).await?;
            }
        }
        let asked = world.bucket.asked();
        let (requests, bytes) = (asked.requests(), asked.bytes());
        let ratio = bytes as f64 / made.iter().map(|made| made.desc.file_size as f64).sum::<f64>();
        println!("three scans with {mib} MiB: {requests} requests, {ratio:.3} of the bytes");
        assert!(requests <= most && ratio <= 1.05);
        world.limit(|_| ());
        for layer in layers {
            layer.download(&crate::world::context()).await?;
        }
    }
    env::clock::thaw_thread();
    Ok(())
}
