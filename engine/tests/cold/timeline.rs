//! A cold timeline: how many sequential round trips to the bucket a read waits for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use camino_tempfile::tempdir;
use engine::config::{CompactionPolicy, PageServerConf};
use engine::tenant::manager::TenantManager;
use engine::tenant::storage_layer::ImageLayerWriter;
use engine::tenant::timeline::{NewTimeline, Origin, Timeline};
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::shard::TenantShardId;
use pageserver_api::value::Value;
use postgres_formats::version::PgVersion;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::store::Bucket;
use crate::world::{LSN, World, context, key, page};

/// Much longer than a busy machine takes for the work between two requests.
const LATENCY: Duration = Duration::from_secs(1);
const LAYERS: u32 = 12;
const PAGES: u32 = 40;

fn new_timeline() -> NewTimeline {
    let origin = Origin::of_initdb(PgVersion::V15, 7, LSN);
    NewTimeline {
        tenant_shard_id: TenantShardId::unsharded(TenantId::generate()),
        timeline_id: TimelineId::generate(),
        origin,
        prev_record_lsn: Lsn::INVALID,
    }
}

/// Writes an image layer with all pages, and above it L0 layers, each with new images of every fourth page.
async fn fill(conf: &'static PageServerConf, new: NewTimeline, pages: u32) -> anyhow::Result<Lsn> {
    fill_with(conf, new, pages, LAYERS, |layer| (layer % 4..pages).step_by(4).collect()).await
}

/// The same with `layers` L0 layers, each with new images of those pages that `written` says.
async fn fill_with(
    conf: &'static PageServerConf,
    new: NewTimeline,
    pages: u32,
    layers: u32,
    written: impl Fn(u32) -> Vec<u32>,
) -> anyhow::Result<Lsn> {
    let ctx = context();
    let (tenant, id) = (new.tenant_shard_id, new.timeline_id);
    let manager = TenantManager::load_idle(conf).await?;
    manager.create_tenant(tenant).await?;
    Timeline::prepare(conf, tenant, id).await?;
    let mut writer = ImageLayerWriter::create(conf, id, tenant, Key::MIN..Key::MAX, LSN, &ctx).await?;
    for at in 0..pages {
        writer.put_image(key(0, at), &page(0, at)).await?;
    }
    let images = vec![writer.finish(&ctx).await?];
    let timeline = Timeline::create_with(conf, new, images, manager.remote_of(tenant), &ctx).await?;
    manager.add(timeline.clone()).await?;
    let mut lsn = LSN;
    for layer in 1..=layers {
        let mut batch = SerializedValueBatch::default();
        let prev = lsn;
        lsn += 16;
        for at in written(layer) {
            batch.put_key(&key(0, at), lsn, &Value::Image(Bytes::from(page(layer, at))))?;
        }
        timeline.put_batch(batch, &ctx).await?;
        timeline.finish_write(lsn, prev);
        timeline.flush(&ctx).await?;
    }
    anyhow::ensure!(timeline.wait_uploaded(Duration::from_secs(60)).await, "not uploaded");
    drop(timeline);
    manager.shutdown().await;
    Ok(lsn)
}

/// The layer that has the newest version of a page.
fn newest(at: u32) -> u32 {
    (1..=LAYERS).rev().find(|layer| (at + 4 - layer % 4).is_multiple_of(4) && at >= layer % 4).unwrap_or(0)
}

#[tokio::test]
async fn all_layers_on_the_way_are_opened_at_once() -> anyhow::Result<()> {
    let world = World::new().await;
    world.forget();
    world.conf.resources.pages.set_keep_rebuilt(false);
    let (bucket, new) = (Bucket::default(), new_timeline());
    let config = |dir: &camino::Utf8Path| -> &'static PageServerConf {
        let conf =
            PageServerConf { remote_storage: Some(bucket.storage()), ..PageServerConf::dummy_conf(dir.to_owned()) };
        Box::leak(Box::new(conf))
    };
    let dir = tempdir()?;
    let lsn = fill(config(dir.path()), new, PAGES).await?;
    drop(dir);
    let empty = tempdir()?;
    let manager = TenantManager::load_idle(config(empty.path())).await?;
    let timeline = Arc::new(manager.get(new.tenant_shard_id, new.timeline_id)?);
    assert!(timeline.layer_files().iter().all(|layer| !layer.is_local()));
    bucket.set_latency(LATENCY);
    // As of its LSN, the oldest layer has the pages; as of the newest LSN, the read passes through all layers.
    for (what, at_lsn, expected) in [("newest", lsn, None), ("oldest", LSN, Some(0))] {
        world.forget();
        for layer in timeline.layer_files() {
            layer.evict().await?;
        }
        bucket.asked();
        let began = Instant::now();
        let keys = KeySpace::single(key(0, 0)..key(0, PAGES));
        let found = timeline.get_vectored(&keys, at_lsn, &context()).await?;
        let took = began.elapsed();
        for at in 0..PAGES {
            let layer = expected.unwrap_or_else(|| newest(at));
            assert!(*found[&key(0, at)].as_ref().expect("readable") == page(layer, at), "page {at} of layer {layer}");
        }
        let asked = bucket.asked();
        let trips = took.as_millis() / LATENCY.as_millis();
        println!("{what}: {} requests, {} at once, {trips} waits: {took:?}", asked.requests(), asked.most_under_way);
        assert!(trips <= 2, "{took:?} for {asked:?}");
    }
    manager.shutdown().await;
    Ok(())
}

/// However many layers there are, a read waits for a few rounds of requests for all of them, not for each.
#[tokio::test]
async fn many_layers_on_the_way_are_opened_in_few_rounds() -> anyhow::Result<()> {
    const MANY: u32 = 100;
    const LATENCY: Duration = Duration::from_millis(200);
    let (bucket, new) = (Bucket::default(), new_timeline());
    let config = |dir: &camino::Utf8Path| -> &'static PageServerConf {
        let conf = PageServerConf {
            remote_storage: Some(bucket.storage()),
            open_ahead_max: 0,
            ..PageServerConf::dummy_conf(dir.to_owned())
        };
        conf.configure_caches();
        Box::leak(Box::new(conf))
    };
    let dir = tempdir()?;
    // None of them has a page that is read.
    let lsn = fill_with(config(dir.path()), new, PAGES, MANY, |layer| vec![PAGES + layer]).await?;
    drop(dir);
    let empty = tempdir()?;
    let manager = TenantManager::load_idle(config(empty.path())).await?;
    let timeline = manager.get(new.tenant_shard_id, new.timeline_id)?;
    bucket.set_latency(LATENCY);
    let began = Instant::now();
    let found = timeline.get_vectored(&KeySpace::single(key(0, 0)..key(0, PAGES)), lsn, &context()).await?;
    let (took, asked) = (began.elapsed(), bucket.asked());
    for at in 0..PAGES {
        assert!(*found[&key(0, at)].as_ref().expect("readable") == page(0, at), "page {at}");
    }
    println!("{} requests, {} at once: {took:?}", asked.requests(), asked.most_under_way);
    assert!(asked.requests() as u32 > MANY && took < 25 * LATENCY, "{took:?} for {} requests", asked.requests());
    manager.shutdown().await;
    Ok(())
}

/// A read of one layer has the others opened, and small ones fetched whole, so that reads of these need no request.
#[tokio::test]
async fn the_first_cold_read_has_the_other_layers_opened() -> anyhow::Result<()> {
    let (bucket, new) = (Bucket::default(), new_timeline());
    let config = |dir: &camino::Utf8Path, open_ahead_max: u64| -> &'static PageServerConf {
        let conf = PageServerConf {
            remote_storage: Some(bucket.storage()),
            prefetch_whole_after: 101,
            open_ahead_max,
            ..PageServerConf::dummy_conf(dir.to_owned())
        };
        conf.configure_caches();
        Box::leak(Box::new(conf))
    };
    let dir = tempdir()?;
    let lsn = fill(config(dir.path(), 0), new, PAGES).await?;
    drop(dir);
    for (open_ahead_max, opened) in [(0, false), (4 << 20, true)] {
        let empty = tempdir()?;
        let manager = TenantManager::load_idle(config(empty.path(), open_ahead_max)).await?;
        let timeline = manager.get(new.tenant_shard_id, new.timeline_id)?;
        bucket.asked();
        // Only the oldest layer reaches down to there.
        assert!(timeline.get(key(0, 1), LSN, &context()).await? == page(0, 1));
        let mut requests = bucket.asked().requests();
        for _ in 0..if opened { 1000 } else { 20 } {
            if requests > LAYERS as usize {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            requests += bucket.asked().requests();
        }
        assert_eq!(requests > LAYERS as usize, opened, "{requests} requests");
        let found = timeline.get_vectored(&KeySpace::single(key(0, 0)..key(0, PAGES)), lsn, &context()).await?;
        for at in 0..PAGES {
            assert!(*found[&key(0, at)].as_ref().expect("readable") == page(newest(at), at), "page {at}");
        }
        let asked = bucket.asked();
        assert_eq!(asked.requests() == 0, opened, "{asked:?}");
        manager.shutdown().await;
    }
    Ok(())
}

/// The memory for blocks is less than a few reads that a job has begun and the walk of indexes beside them want.
#[tokio::test]
async fn images_of_a_cold_timeline_are_made_with_little_memory() -> anyhow::Result<()> {
    const MANY: u32 = 1500;
    let (bucket, new) = (Bucket::default(), new_timeline());
    let config = |dir: &camino::Utf8Path, image_percent: u64| -> &'static PageServerConf {
        let conf = PageServerConf {
            remote_storage: Some(bucket.storage()),
            block_cache_memory: 1 << 20,
            block_cache_disk: 0,
            page_cache_size: 8,
            prefetch_whole_after: 101,
            compaction: CompactionPolicy {
                file_bytes: 1 << 20,
                memory: 2 << 20,
                image_percent,
                ..CompactionPolicy::ON
            },
            ..PageServerConf::dummy_conf(dir.to_owned())
        };
        conf.configure_caches();
        Box::leak(Box::new(conf))
    };
    let dir = tempdir()?;
    let sorts = config(dir.path(), 100_000);
    let lsn = fill(sorts, new, MANY).await?;
    let manager = TenantManager::load_idle(sorts).await?;
    let timeline = manager.get(new.tenant_shard_id, new.timeline_id)?;
    let done = timeline.compact().await?;
    assert!(done.sort.jobs > 0 && done.image.jobs == 0, "{done:?}");
    anyhow::ensure!(timeline.wait_uploaded(Duration::from_secs(60)).await, "not uploaded");
    drop(timeline);
    manager.shutdown().await;

    let empty = tempdir()?;
    let manager = TenantManager::load_idle(config(empty.path(), 1)).await?;
    let timeline = manager.get(new.tenant_shard_id, new.timeline_id)?;
    assert!(timeline.layer_files().iter().all(|layer| !layer.is_local()));
    bucket.set_latency(Duration::from_millis(1));
    let made = tokio::time::timeout(Duration::from_secs(100), timeline.compact()).await;
    let done = made.expect("the job waits for its own reads")?;
    assert!(done.image.jobs > 0, "{done:?}");
    bucket.set_latency(Duration::ZERO);
    let found = timeline.get_vectored(&KeySpace::single(key(0, 0)..key(0, MANY)), lsn, &context()).await?;
    for at in 0..MANY {
        assert!(*found[&key(0, at)].as_ref().expect("readable") == page(newest(at), at), "page {at}");
    }
    manager.shutdown().await;
    Ok(())
}
