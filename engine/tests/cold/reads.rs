//! Reads of cold layers: their results, and the requests that they make.

use std::time::{Duration, Instant};

use engine::tenant::storage_layer::ReconstructState;
use errors::StorageError;
use pageserver_api::keyspace::KeySpace;

use crate::world::{LSN, PAGE, World, check, context, key};

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn two_requests_for_a_cold_page_and_one_with_the_index_cached() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 500).await?;
    let layer = world.cold(&made).await;
    let mut asked = Vec::new();
    for page in [250, 100, 400, 100] {
        check(&layer, &made, page, page + 1).await?;
        asked.push(world.bucket.asked());
    }
    let requests: Vec<usize> = asked.iter().map(|asked| asked.requests()).collect();
    let bytes: Vec<u64> = asked.iter().map(|asked| asked.bytes()).collect();
    println!("requests for pages one after the other: {requests:?}, bytes {bytes:?}");
    assert_eq!(requests, [2, 1, 1, 0]);
    assert_eq!(asked[0].gets[0], made.identity.tail_offset..made.desc.file_size, "the tail in one piece");
    assert!(bytes[1] <= 3 * 4096 && bytes[2] <= 3 * 4096, "just the blocks needed");
    Ok(())
}

#[tokio::test]
async fn a_vectored_read_asks_for_all_at_once() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 2000).await?;
    let layer = world.cold(&made).await;
    check(&layer, &made, 0, 1).await?;
    world.bucket.asked();
    world.bucket.set_latency(Duration::from_millis(20));
    // Nearby pages share a request, distant ones are requested concurrently.
    let pages: Vec<u32> = (0..8).flat_map(|group| [100 + group * 200, 104 + group * 200]).collect();
    crate::world::check_pages(&layer, &made, &pages).await?;
    let asked = world.bucket.asked();
    println!("16 pages in 8 places: {} requests, {} at once", asked.requests(), asked.most_under_way);
    assert_eq!((asked.requests(), asked.most_under_way), (8, 8));
    Ok(())
}

#[tokio::test]
async fn random_reads_give_what_was_written() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(3, 1500).await?;
    let (cold, local) = (world.cold(&made).await, world.made_again(&made).await);
    let mut seed = 12345u64;
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 33) % below) as u32
    };
    for _ in 0..300 {
        let first = next(1500);
        let mut pages: Vec<u32> = (0..1 + next(20)).map(|_| next(1500)).chain([first]).collect();
        pages.sort_unstable();
        pages.dedup();
        crate::world::check_pages(&cold, &made, &pages).await?;
        crate::world::check_pages(&local, &made, &pages).await?;
    }
    let asked = world.bucket.asked();
    println!(
        "300 random reads: {} requests, {} MiB of {}",
        asked.requests(),
        asked.bytes() / MIB,
        made.desc.file_size / MIB
    );
    Ok(())
}

#[tokio::test]
async fn many_who_want_the_same_wait_for_one_request() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 300).await?;
    let layer = world.cold(&made).await;
    world.bucket.set_latency(Duration::from_millis(30));
    let readers = (0..24).map(|_| check(&layer, &made, 40, 44));
    futures_util::future::try_join_all(readers).await?;
    let asked = world.bucket.asked();
    println!("24 readers of the same pages: {} requests", asked.requests());
    assert_eq!(asked.requests(), 2);
    // A reader that is cancelled leaves the request to the others.
    let gone = tokio::time::timeout(Duration::from_millis(5), check(&layer, &made, 200, 202));
    let (gone, stayed) = tokio::join!(gone, check(&layer, &made, 200, 202));
    stayed?;
    assert!(gone.is_err() && world.bucket.asked().requests() == 1);
    Ok(())
}

#[tokio::test]
async fn each_reader_counts_the_time_that_it_waited() -> Result<(), StorageError> {
    const LATENCY: Duration = Duration::from_millis(200);
    let world = World::new().await;
    let made = world.make(0, 300).await?;
    let layer = world.cold(&made).await;
    world.bucket.set_latency(LATENCY);
    let read = async |at: u32| {
        let (began, mut state) = (Instant::now(), ReconstructState::new());
        let keys = KeySpace::single(key(0, at)..key(0, at + 1));
        layer.collect(&keys, LSN..LSN + 1, &mut state, &context()).await?;
        Ok::<_, StorageError>((state.costs, began.elapsed()))
    };
    // One of them opens the layer, which both wait for; then each fetches its own page.
    let (one, other) = futures_util::try_join!(read(40), read(250))?;
    let requests = [one.0.requests, other.0.requests];
    assert_eq!(requests.iter().sum::<u64>(), 3, "{requests:?}");
    for (costs, took) in [one, other] {
        let counted = costs.fetching + costs.waiting;
        assert!(counted >= 2 * LATENCY && counted <= took, "{counted:?} of {took:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_restart_keeps_what_local_disk_has() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 1000).await?;
    let layer = world.cold(&made).await;
    check(&layer, &made, 100, 130).await?;
    settle(&layer).await;
    let kept = layer.local_bytes();
    drop(layer);
    world.bucket.asked();
    world.forget();
    let layer = world.cold(&made).await;
    check(&layer, &made, 100, 130).await?;
    println!("{kept} bytes on local disk; requests after a restart: {}", world.bucket.asked().requests());
    assert_eq!(world.bucket.asked().requests(), 0);
    assert!((30 * PAGE as u64..made.desc.file_size / 2).contains(&kept));
    assert_eq!(layer.evict().await?, kept);
    assert_eq!(layer.local_bytes(), 0);
    Ok(())
}

#[tokio::test]
async fn damage_of_what_local_disk_has_is_mended() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 200).await?;
    world.forget();
    for round in 0..20u64 {
        let layer = world.cold(&made).await;
        world.forget();
        check(&layer, &made, 0, 200).await?;
        settle(&layer).await;
        let bytes = std::fs::read(layer.partial_path()).expect("it is there");
        let bytes: Vec<u8> = match round % 4 {
            0 => bytes.iter().map(|byte| byte ^ 1).collect(),
            1 => bytes[..bytes.len() / 2].to_vec(),
            2 => vec![0; bytes.len()],
            _ => bytes.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at % 50_000 == 77)).collect(),
        };
        std::fs::write(layer.partial_path(), bytes).expect("written");
        world.forget();
        check(&layer, &made, 0, 200).await?;
        drop(layer);
        let layer = world.cold(&made).await;
        check(&layer, &made, 0, 200).await?;
        layer.evict().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_damaged_object_is_named_and_never_served() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 200).await?;
    let mut seen = 0;
    for block in (1..made.desc.file_size / 4096).step_by(13).chain([made.desc.file_size / 4096 - 1]) {
        let offset = block * 4096 + block % 4096;
        world.bucket.damage(made.object.path.as_path(), offset).await;
        let layer = world.cold(&made).await;
        layer.evict().await?;
        world.forget();
        world.bucket.asked();
        let error = check(&layer, &made, 0, 200).await.expect_err("damaged");
        let StorageError::Corrupt { path, offset: named, .. } = &error else { panic!("{error}") };
        assert_eq!((path.as_str(), *named), (format!("memory://bucket/{}", made.object.path).as_str(), block * 4096));
        let asked = world.bucket.asked();
        let is_twice = |range| asked.gets.iter().filter(|other| *other == range).count() == 2;
        assert!(asked.gets.iter().any(is_twice), "asked once more: {asked:?}");
        assert!(layer.download(&context()).await.is_err() && layer.verify_remote().await.is_err());
        assert!(!layer.is_local());
        world.bucket.damage(made.object.path.as_path(), offset).await;
        check(&layer, &made, 0, 200).await?;
        layer.evict().await?;
        seen += 1;
    }
    println!("{seen} damaged blocks, all named, none served");
    Ok(())
}

#[tokio::test]
async fn what_is_read_a_lot_is_fetched_as_a_whole() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 1000).await?;
    let layer = world.cold(&made).await;
    world.limit(|conf| conf.prefetch_whole_after = 30);
    for page in (0..300).step_by(3) {
        check(&layer, &made, page * 3, page * 3 + 3).await?;
        if layer.is_local() {
            break;
        }
    }
    while layer.is_being_fetched() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let asked = world.bucket.asked();
    println!("{} requests, {:.3} of the bytes", asked.requests(), asked.bytes() as f64 / made.desc.file_size as f64);
    assert!(layer.is_local() && asked.bytes() <= made.desc.file_size * 14 / 10);
    check(&layer, &made, 0, 1000).await?;
    assert_eq!(layer.verify_local().await?.values, 1000);
    Ok(())
}

#[tokio::test]
async fn many_small_requests_are_a_reason_to_fetch_all() -> Result<(), StorageError> {
    let world = World::new().await;
    let made = world.make(0, 8192).await?;
    let layer = world.cold(&made).await;
    world.limit(|conf| conf.prefetch_whole_after = 50);
    let mut read = 0;
    while !layer.is_being_fetched() && !layer.is_local() && read < 2000 {
        let page = read * 5471 % 8192;
        check(&layer, &made, page, page + 1).await?;
        read += 1;
    }
    // The number of further reads during the download would depend on the disk.
    while layer.is_being_fetched() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(layer.is_local());
    let asked = world.bucket.asked();
    let ratio = asked.bytes() as f64 / made.desc.file_size as f64;
    println!("here after {read} pages, {} requests in all, {ratio:.3} of the bytes", asked.requests());
    assert!((150..1000).contains(&read) && ratio <= 1.1);
    check(&layer, &made, 0, 8192).await?;
    assert_eq!(world.bucket.asked().requests(), 0);
    Ok(())
}

/// Waits until the blocks read have been written to local disk.
async fn settle(layer: &engine::tenant::layer_map::Layer) {
    let mut last = 0;
    for _ in 0..1000 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = layer.local_bytes();
        if now == last && now > 0 {
            return;
        }
        last = now;
    }
}
