//! Eviction, download, healing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use errors::{ErrorKind, StorageError};
use metrics::METRICS;

use crate::world::{World, check, context};

#[tokio::test]
async fn what_the_bucket_lacks_is_not_evicted() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 20).await?;
    let dir = world.timeline_dir();
    let layer = engine::tenant::layer_map::Layer::new(&world.conf.resources, &dir, made.desc.clone(), 1, made.identity);
    assert_eq!(layer.evict().await.expect_err("refused").kind(), ErrorKind::Invalid);
    assert!(layer.is_local() && layer.local_bytes() == made.desc.file_size);
    Ok(())
}

#[tokio::test]
async fn evicted_and_fetched_again() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 300).await?;
    let layer = world.local(&made);
    check(&layer, &made, 0, 300).await?;
    assert_eq!(world.bucket.asked().requests(), 0);
    assert_eq!(layer.evict().await?, made.desc.file_size);
    assert!(!layer.is_local() && !layer.path().exists());
    check(&layer, &made, 7, 9).await?;
    let cold = world.bucket.asked();
    assert_eq!(cold.requests(), 2, "the tail and the blocks: {cold:?}");
    layer.download(&context()).await?;
    assert!(layer.is_local() && layer.local_bytes() == made.desc.file_size && !layer.partial_path().exists());
    assert_eq!(layer.verify_local().await?.values, 300);
    assert_eq!(layer.verify_remote().await?, made.desc.file_size / 4096);
    world.bucket.asked();
    check(&layer, &made, 0, 300).await?;
    assert_eq!(world.bucket.asked().requests(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_readers_meanwhile() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 400).await?;
    let layer = world.local(&made);
    let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let readers: Vec<_> = (0..8u32)
        .map(|reader| {
            let (layer, made, stop, reads) = (Arc::clone(&layer), made.clone(), Arc::clone(&stop), Arc::clone(&reads));
            tokio::spawn(async move {
                let mut first = reader * 17;
                while !stop.load(Ordering::Relaxed) {
                    check(&layer, &made, first % 390, first % 390 + 1 + first % 9).await?;
                    reads.fetch_add(1, Ordering::Relaxed);
                    first = first.wrapping_mul(31) + 7;
                    tokio::task::yield_now().await;
                }
                Ok::<(), StorageError>(())
            })
        })
        .collect();
    let (mut evictions, mut damages) = (0, 0);
    let healed = METRICS.layers_healed.get();
    for round in 0..60u32 {
        layer.download(&context()).await?;
        match round % 4 {
            0 | 1 => evictions += u32::from(layer.evict().await? > 0),
            2 => {
                std::fs::remove_file(layer.path()).expect("there");
                evictions += u32::from(layer.evict().await? > 0);
            }
            _ => {
                damage_file(&layer, u64::from(round) * 4096 * 7);
                damages += 1;
            }
        }
        // How much is read in a given time depends on the machine.
        let enough = reads.load(Ordering::Relaxed) + 100;
        while reads.load(Ordering::Relaxed) < enough && !readers.iter().all(tokio::task::JoinHandle::is_finished) {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.expect("no panic")?;
    }
    let healed = METRICS.layers_healed.get() - healed;
    println!("{} reads, {evictions} evictions, {damages} damages, {healed} healed", reads.load(Ordering::Relaxed));
    assert!(evictions >= 30 && healed > 0);
    Ok(())
}

fn damage_file(layer: &engine::tenant::layer_map::Layer, offset: u64) {
    use std::os::unix::fs::FileExt;
    if let Ok(file) = std::fs::OpenOptions::new().write(true).open(layer.path()) {
        file.write_all_at(&[0x5A; 512], offset % layer.desc().file_size).expect("written");
    }
}
