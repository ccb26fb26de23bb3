//! A timeline in a bucket, made of distinguishable pages, opened on an empty disk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use camino::Utf8Path;
use camino_tempfile::Utf8TempDir;
use engine::config::PageServerConf;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::manager::TenantManager;
use engine::tenant::storage_layer::ImageLayerWriter;
use engine::tenant::timeline::{NewTimeline, Origin, Timeline};
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::shard::TenantShardId;
use postgres_formats::version::PgVersion;
use serde_json::Value;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use crate::processor::Ticks;
use crate::store::Slow;

/// The LSN of all pages.
pub const LSN: Lsn = Lsn(0x1000);
/// Bytes of a page.
pub const PAGE: u64 = 8192;
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(1800);

/// Pages that were compared with what was stored.
static COMPARED: AtomicU64 = AtomicU64::new(0);

/// How many pages were compared so far; none was different, because that would end the benchmark.
pub fn compared() -> u64 {
    COMPARED.load(Ordering::Relaxed)
}

/// How the pages are spread over layers.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of layers.
    pub layers: u32,
    /// Pages per layer.
    pub pages: u32,
}

impl Shape {
    /// Number of pages.
    pub fn total(&self) -> u32 {
        self.layers * self.pages
    }

    /// The key of page `number` of the timeline.
    pub fn key(&self, number: u32) -> Key {
        Key { field2: 1663, field3: 5, field4: 16384 + number / self.pages, field6: number % self.pages, ..Key::MIN }
    }
}

/// The contents of page `number`: incompressible, so that bytes can be accounted for.
pub fn page(number: u32) -> Vec<u8> {
    let mut word = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    };
    (0..PAGE / 8).flat_map(|_| next().to_le_bytes()).collect()
}

fn context() -> RequestContext {
    RequestContext::new(TaskKind::PageRequestHandler, DownloadBehavior::Download)
}

/// A timeline stored in a bucket.
pub struct World {
    pub store: Slow,
    pub shape: Shape,
    tenant: TenantShardId,
    timeline: TimelineId,
    /// How fast it was uploaded.
    pub uploaded: Uploaded,
}

/// How fast layers were uploaded.
pub struct Uploaded {
    /// Bytes of the layers.
    pub bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// The processor time spent on it.
    pub processor: Value,
}

/// The same timeline, opened on an empty disk.
pub struct Opened {
    _dir: Utf8TempDir,
    manager: TenantManager,
    pub timeline: Timeline,
    shape: Shape,
    store: Slow,
}

/// A configuration with caches of its own, whose limits `change` may change.
fn config(dir: &Utf8Path, store: &Slow, change: impl FnOnce(&mut PageServerConf)) -> &'static PageServerConf {
    let mut conf = PageServerConf {
        remote_storage: Some(store.storage()),
        prefetch_whole_after: 101,
        ..PageServerConf::dummy_conf(dir.to_owned())
    };
    // Rebuilt pages would distort the measurement.
    conf.resources.pages.set_keep_rebuilt(false);
    conf.page_cache_size = 65536;
    change(&mut conf);
    Box::leak(Box::new(conf))
}

fn scratch() -> anyhow::Result<Utf8TempDir> {
    Ok(camino_tempfile::tempdir_in(std::env::var("CARGO_TARGET_TMPDIR").unwrap_or_else(|_| "/tmp".to_owned()))?)
}

impl World {
    /// Makes the layers on disk, and waits until the bucket has them.
    pub async fn make(store: Slow, shape: Shape) -> anyhow::Result<Self> {
        let (dir, ctx) = (scratch()?, context());
        let conf = config(dir.path(), &store, |_| ());
        let (tenant, timeline_id) = (TenantShardId::unsharded(TenantId::generate()), TimelineId::generate());
        let manager = TenantManager::load_idle(conf).await?;
        manager.create_tenant(tenant).await?;
        Timeline::prepare(conf, tenant, timeline_id).await?;
        let mut finished = Vec::new();
        for layer in 0..shape.layers {
            let first = layer * shape.pages;
            let keys = shape.key(first)..shape.key(first + shape.pages);
            let mut writer = ImageLayerWriter::create(conf, timeline_id, tenant, keys, LSN, &ctx).await?;
            for number in first..first + shape.pages {
                writer.put_image(shape.key(number), &page(number)).await?;
            }
            finished.push(writer.finish(&ctx).await?);
        }
        let bytes = finished.iter().map(|(desc, _)| desc.file_size).sum();
        let origin = Origin::of_initdb(PgVersion::V15, 7, LSN);
        let new = NewTimeline { tenant_shard_id: tenant, timeline_id, origin, prev_record_lsn: Lsn::INVALID };
        let (began, before) = (Instant::now(), Ticks::now());
        let remote = manager.remote_of(tenant);
        let timeline = Timeline::create_with(conf, new, finished, remote, &ctx).await?;
        manager.add(timeline.clone()).await?;
        ensure!(timeline.wait_uploaded(UPLOAD_TIMEOUT).await, "the upload does not end");
        let seconds = began.elapsed().as_secs_f64();
        let uploaded = Uploaded { bytes, seconds, processor: before.spent(bytes, seconds) };
        drop(timeline);
        manager.shutdown().await;
        Ok(Self { store, shape, tenant, timeline: timeline_id, uploaded })
    }

    /// Opens it on an empty disk, with nothing cached and limits that `change` may change.
    pub async fn open(&self, change: impl FnOnce(&mut PageServerConf)) -> anyhow::Result<Opened> {
        let dir = scratch()?;
        let manager = TenantManager::load_idle(config(dir.path(), &self.store, change)).await?;
        let timeline = manager.get(self.tenant, self.timeline)?;
        Ok(Opened { _dir: dir, manager, timeline, shape: self.shape, store: self.store.clone() })
    }
}

impl Opened {
    /// Reads one page; fails if it is not the one that was stored. Returns the milliseconds that it took.
    pub async fn read(&self, number: u32) -> anyhow::Result<f64> {
        let began = Instant::now();
        let found = self.timeline.get(self.shape.key(number), LSN, &context()).await?;
        let took = began.elapsed().as_secs_f64() * 1000.0;
        ensure!(found == page(number), "page {number} is not the one that was stored: the run does not count");
        COMPARED.fetch_add(1, Ordering::Relaxed);
        Ok(took)
    }

    /// Reads several pages at once, like [`Opened::read`].
    pub async fn read_all(&self, numbers: &[u32]) -> anyhow::Result<f64> {
        let keys = numbers.iter().map(|number| self.shape.key(*number)..self.shape.key(*number).next()).collect();
        let began = Instant::now();
        let found = self.timeline.get_vectored(&KeySpace::from_ranges(keys), LSN, &context()).await?;
        let took = began.elapsed().as_secs_f64() * 1000.0;
        for number in numbers {
            let found = found.get(&self.shape.key(*number)).and_then(|found| found.as_ref().ok());
            ensure!(
                found.is_some_and(|found| *found == page(*number)),
                "page {number} is missing or not the one that was stored: the run does not count"
            );
            COMPARED.fetch_add(1, Ordering::Relaxed);
        }
        Ok(took)
    }

    /// The configuration that it was opened with.
    pub fn conf(&self) -> &'static PageServerConf {
        self.manager.conf()
    }

    /// Clears everything cached of any layer, including its index.
    pub async fn forget_all(&self) -> anyhow::Result<()> {
        for layer in self.timeline.layer_files() {
            layer.evict().await?;
        }
        self.conf().resources.blocks.clear_memory();
        self.settle().await;
        Ok(())
    }

    /// Clears the data cached in memory.
    pub fn forget_memory(&self) {
        self.conf().resources.blocks.clear_memory();
    }

    /// Bytes on local disk.
    pub fn local_bytes(&self) -> u64 {
        self.timeline.layer_files().iter().map(|layer| layer.local_bytes()).sum()
    }

    /// Waits until abandoned requests have ended, and resets their counts.
    pub async fn settle(&self) {
        loop {
            tokio::time::sleep(Duration::from_millis(40)).await;
            if self.store.asked().requests == 0 {
                return;
            }
        }
    }

    /// Closes everything.
    pub async fn close(self) {
        let Self { manager, timeline, .. } = self;
        drop(timeline);
        manager.shutdown().await;
    }
}

/// A pseudorandom sequence, the same in each run.
pub struct Draw(u64);

impl Draw {
    /// Begins a sequence.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number, below `below`.
    pub fn next(&mut self, below: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(below)) as u32
    }
}
