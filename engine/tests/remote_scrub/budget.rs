//! A local disk much smaller than what is stored: reads stay correct, the budget holds, and intake is slowed or
//! refused only while the bucket does not accept new data; hot layers are resident again after a restart.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use camino::Utf8Path;
use camino_tempfile::Utf8TempDir;
use engine::config::PageServerConf;
use engine::disk_budget::Level;
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::{NewTimeline, Timeline};
use errors::{ErrorKind, StorageError};
use metrics::METRICS;
use pageserver_api::key::{Key, slru_block_key};
use pageserver_api::reltag::SlruKind;
use pageserver_api::value::Value;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::remote_support::{TestStore, fast, test_store_with};
use crate::stack::{self, IMPORT_LSN};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 24 * MIB;
/// Size of an in-memory layer: the amount by which a measurement may lag.
const LAYER: u64 = MIB;
const UPLOAD: Duration = Duration::from_secs(30);
const KEYS: u32 = 64;

struct World {
    dir: Utf8TempDir,
    store: TestStore,
    manager: TenantManager,
    new: NewTimeline,
    /// Number of records so far: record `n` has changed key `n % KEYS`.
    records: u64,
}

fn config(workdir: &Utf8Path, store: &TestStore) -> &'static PageServerConf {
    let conf = PageServerConf {
        checkpoint_distance: LAYER,
        disk_budget_bytes: BUDGET,
        block_cache_disk: 4 * MIB,
        prefetch_whole_after: 101,
        remote_storage: Some(store.storage.clone()),
        ..PageServerConf::dummy_conf(workdir.to_owned())
    };
    Box::leak(Box::new(conf))
}

fn key(record: u64) -> Key {
    slru_block_key(SlruKind::MultiXactMembers, 7, (record % u64::from(KEYS)) as u32)
}

fn lsn(record: u64) -> Lsn {
    IMPORT_LSN + 8 * (record + 1)
}

/// The incompressible page of a record.
fn page(record: u64) -> Bytes {
    let mut word = record.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    };
    (0..1024).flat_map(|_| next().to_le_bytes()).collect()
}

impl World {
    async fn new() -> Self {
        let (dir, new) = (camino_tempfile::tempdir().unwrap(), stack::new_timeline());
        let store = test_store_with(fast()).await;
        let conf = config(dir.path(), &store);
        let manager = TenantManager::load(conf).await.unwrap();
        manager.create_tenant(new.tenant_shard_id).await.unwrap();
        let (timeline, _) = stack::import_with(conf, new, manager.remote_of(new.tenant_shard_id)).await.unwrap();
        manager.add(timeline).await.unwrap();
        Self { dir, store, manager, new, records: 0 }
    }

    fn timeline(&self) -> Timeline {
        self.manager.get(self.new.tenant_shard_id, self.new.timeline_id).unwrap()
    }

    /// Puts one record with a page.
    async fn put(&mut self, timeline: &Timeline) -> Result<(), StorageError> {
        let (record, mut batch) = (self.records, SerializedValueBatch::default());
        batch.put_key(&key(record), lsn(record), &Value::Image(page(record))).expect("serializable");
        timeline.put_batch(batch, &stack::context()).await?;
        timeline.finish_write(lsn(record), lsn(record) - 8);
        self.records += 1;
        Ok(())
    }

    /// Bytes of layers, partial layers, and ephemeral files.
    ///
    /// A walk while files come and go counts files that never existed at the same time, the more the longer it takes.
    /// So a walk counts only if the next one finds the same; if none does, the smallest sum counts.
    fn on_disk(&self) -> u64 {
        let mut before = self.files();
        let mut least = before.values().sum();
        for _ in 0..20 {
            let files = self.files();
            let sum = files.values().sum();
            if files == before {
                return sum;
            }
            least = u64::min(least, sum);
            before = files;
        }
        least
    }

    fn files(&self) -> BTreeMap<OsString, u64> {
        use std::os::unix::fs::MetadataExt;
        let dir = self.manager.conf().timeline_path(&self.new.tenant_shard_id, &self.new.timeline_id);
        let allocated = |entry: std::fs::DirEntry| Some((entry.file_name(), entry.metadata().ok()?.blocks() * 512));
        std::fs::read_dir(dir).unwrap().filter_map(Result::ok).filter_map(allocated).collect()
    }
}

/// Reads earlier records, wherever they are by now, until stopped. Returns the number of reads, all of them correct.
async fn read_on(timeline: Timeline, number: u64, stop: Arc<AtomicBool>) -> u64 {
    let (mut at, mut reads) = (number * 7919, 0);
    while !stop.load(Ordering::Relaxed) {
        let records = (timeline.last_record_lsn().0 - IMPORT_LSN.0) / 8;
        if records > 0 {
            check(&timeline, at % records).await;
            reads += 1;
        }
        at = at.wrapping_mul(31).wrapping_add(7);
        tokio::task::yield_now().await;
    }
    reads
}

async fn check(timeline: &Timeline, record: u64) {
    let found = timeline.get(key(record), lsn(record), &stack::context()).await;
    assert!(
        found.unwrap_or_else(|error| panic!("record {record}: {error}")) == page(record),
        "record {record} differs"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_times_the_budget_goes_through_it() {
    let mut world = World::new().await;
    let timeline = world.timeline();
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> =
        (0..4).map(|number| tokio::spawn(read_on(timeline.clone(), number, Arc::clone(&stop)))).collect();
    let (evicted, refused) = (METRICS.evicted_bytes.get(), METRICS.intake_refused.get());
    let slowed = METRICS.intake_slowed_seconds.get();
    let (mut most, mut put) = (0, 0);
    while put < 5 * BUDGET {
        world.put(&timeline).await.expect("slowed at most");
        put += 8192;
        if world.records.is_multiple_of(16) {
            most = most.max(world.on_disk());
        }
    }
    timeline.flush(&stack::context()).await.unwrap();
    assert!(timeline.wait_uploaded(UPLOAD).await);
    stop.store(true, Ordering::Relaxed);
    let mut reads = 0;
    for reader in readers {
        reads += reader.await.expect("no wrong page");
    }
    for record in (0..world.records).step_by(37) {
        check(&timeline, record).await;
    }
    let (evicted, refused) = (METRICS.evicted_bytes.get() - evicted, METRICS.intake_refused.get() - refused);
    println!(
        "{} MiB through a budget of {} MiB: {:.1} MiB on disk at most, {} MiB evicted, {reads} reads meanwhile, \
         0 wrong, slowed for {:.1} s, {refused} refused",
        put / MIB,
        BUDGET / MIB,
        most as f64 / MIB as f64,
        evicted / MIB,
        METRICS.intake_slowed_seconds.get() - slowed,
    );
    assert!(most <= BUDGET + 2 * LAYER, "{most} bytes on disk");
    assert!(evicted > 3 * BUDGET && refused == 0);
    world.manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_bucket_intake_ends_and_goes_on_when_it_is_back() {
    let mut world = World::new().await;
    let timeline = world.timeline();
    for _ in 0..256 {
        world.put(&timeline).await.expect("taken in");
    }
    world.store.faults.set_gone(true);
    let started = Instant::now();
    let error = loop {
        match world.put(&timeline).await {
            Ok(()) => assert!(world.records * 8192 < 2 * BUDGET, "no end of it"),
            Err(error) => break error,
        }
    };
    println!("refused after {} MiB and {:?}: {error}", world.records * 8192 / MIB, started.elapsed());
    assert_eq!(error.kind(), ErrorKind::Retry);
    let text = error.to_string();
    assert!(text.contains("disk_budget") && text.contains("test://bucket"), "{text}");
    assert_eq!(world.manager.conf().disk_budget.level(), Level::Refuse);
    let full = world.on_disk();
    assert!(full <= BUDGET + 2 * LAYER, "{full} bytes on disk");
    // Everything that was taken in is there.
    for record in (0..world.records).rev().step_by(31) {
        check(&timeline, record).await;
    }
    world.store.faults.set_gone(false);
    let back = Instant::now();
    let taken = world.records;
    while world.put(&timeline).await.is_err() {
        assert!(back.elapsed() < Duration::from_secs(60), "it does not go on");
    }
    println!("goes on {:?} after the bucket is back", back.elapsed());
    for _ in 0..512 {
        world.put(&timeline).await.expect("taken in");
    }
    assert_eq!(world.records, taken + 513);
    timeline.flush(&stack::context()).await.unwrap();
    assert!(timeline.wait_uploaded(UPLOAD).await);
    for record in (0..world.records).step_by(29) {
        check(&timeline, record).await;
    }
    world.manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_hot_is_here_again() {
    let mut world = World::new().await;
    let timeline = world.timeline();
    for _ in 0..1024 {
        world.put(&timeline).await.expect("taken in");
    }
    timeline.flush(&stack::context()).await.unwrap();
    assert!(timeline.wait_uploaded(UPLOAD).await);
    // The keeper knows the layers by now, so reads from here on count.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let hot = lsn(300);
    for _ in 0..50 {
        check(&timeline, 300).await;
    }
    drop(timeline);
    world.manager.shutdown().await;
    // On an empty disk the list comes from the bucket.
    world.dir = camino_tempfile::tempdir().unwrap();
    world.manager = TenantManager::load(config(world.dir.path(), &world.store)).await.unwrap();
    let layers = world.timeline().layer_files();
    let is_hot = |range: &std::ops::Range<Lsn>| range.contains(&hot);
    let hot: Vec<_> = layers.iter().filter(|layer| layer.desc().is_delta && is_hot(&layer.desc().lsn_range)).collect();
    assert_eq!(hot.len(), 1);
    let started = Instant::now();
    while !hot[0].is_local() {
        assert!(started.elapsed() < Duration::from_secs(10), "the hot layer stays in the bucket");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let cold = layers.iter().filter(|layer| !layer.is_local()).count();
    println!("the hot layer is here after {:?}, {cold} of {} stay cold", started.elapsed(), layers.len());
    assert!(cold > 0, "nothing was to be fetched but what was hot");
    world.manager.shutdown().await;
}
