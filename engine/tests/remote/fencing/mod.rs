//! Two and three servers take one tenant from each other at arbitrary moments. Each request to the bucket is delayed
//! at random in both directions, so that the effects of several servers interleave arbitrarily and some replies are
//! lost.
//!
//! What must hold (P4): whatever any server reported as safe in the bucket, every later owner has; and the last
//! owner, on an empty disk, has all of it, as in the model.

mod slow_store;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::stack::{IMPORT_LSN, Model, context, import_with, new_timeline, version};
use camino_tempfile::{Utf8TempDir, tempdir};
use engine::config::{AttachOnStart, PageServerConf};
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::{NewTimeline, Timeline};
use object_store::memory::InMemory;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::value::Value;
use remote_storage::{RemoteOptions, RemoteStorage};
use slow_store::{Dice, SlowStore};
use tokio::task::{JoinHandle, JoinSet};
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

const STEPS: u64 = 30;
const RECORDS: u64 = 400;
/// Schedules that run concurrently: they mostly wait.
const AT_ONCE: usize = 50;

/// The single history that all servers receive.
struct History {
    new: NewTimeline,
    model: Model,
    records: Vec<Vec<(Key, Value)>>,
}

impl History {
    /// Continues from the model of the import.
    fn new(new: NewTimeline, mut model: Model) -> Self {
        let mut records = Vec::new();
        for number in 1..=RECORDS {
            let mut changes: Vec<(Key, Value)> = Vec::new();
            for change in [number * 5, number * 7 + 3] {
                let (key, value) = version(&model, (change as usize, (number * 31) as u32));
                if changes.iter().all(|(other, _)| *other != key) {
                    model.put(key, IMPORT_LSN + 8 * number, value.clone());
                    changes.push((key, value));
                }
            }
            records.push(changes);
        }
        Self { new, model, records }
    }

    /// Receives `count` more records. A failure counts as a broken connection.
    async fn receive(&self, timeline: &Timeline, count: u64) -> Option<()> {
        for _ in 0..count {
            let last = timeline.last_record_lsn();
            let record = self.records.get(((last.0 - IMPORT_LSN.0) / 8) as usize)?;
            let (mut batch, lsn) = (SerializedValueBatch::default(), last + 8);
            for (key, value) in record {
                batch.put_key(key, lsn, value).unwrap();
            }
            timeline.put_batch(batch, &context()).await.ok()?;
            timeline.finish_write(lsn, last);
        }
        timeline.flush(&context()).await.ok()
    }

    async fn check(&self, timeline: &Timeline, lsn: Lsn) {
        let found = timeline.get_vectored(&KeySpace::single(Key::MIN..Key::MAX), lsn, &context()).await.unwrap();
        let found: Vec<_> = found.into_iter().map(|(key, value)| (key, value.unwrap())).collect();
        let expected: Vec<_> = self.model.values(&(Key::MIN..Key::MAX), lsn).into_iter().collect();
        assert!(found == expected, "as of {lsn}: {} keys found, {} expected", found.len(), expected.len());
    }
}

/// Event counts over all schedules.
#[derive(Default)]
struct Counts {
    attached: AtomicU64,
    fenced: AtomicU64,
    crashed: AtomicU64,
    calls: AtomicU64,
    advanced: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// State shared by all servers of a schedule.
struct Shared {
    bucket: Arc<InMemory>,
    history: History,
    /// The largest LSN that any server reported as safe.
    safe: AtomicU64,
    counts: Arc<Counts>,
}

impl Shared {
    fn note_safe(&self, manager: &TenantManager) {
        let new = &self.history.new;
        let Ok(timeline) = manager.get(new.tenant_shard_id, new.timeline_id) else { return };
        let lsn = timeline.remote_consistent_lsn().map_or(0, |lsn| lsn.0);
        if self.safe.fetch_max(lsn, Ordering::Relaxed) < lsn {
            count(&self.counts.advanced);
        }
    }

    fn safe(&self) -> Lsn {
        Lsn(self.safe.load(Ordering::Relaxed))
    }

    /// Checks that a new owner has everything that was safe before it started.
    fn check_owner(&self, manager: &TenantManager, safe_before: Lsn) {
        assert_eq!(manager.broken(), []);
        let new = &self.history.new;
        if manager.timelines(new.tenant_shard_id).is_ok() {
            count(&self.counts.attached);
            let timeline = manager.get(new.tenant_shard_id, new.timeline_id).expect("it was published");
            let last = timeline.last_record_lsn();
            assert!(last >= safe_before, "the new owner has {last}, but {safe_before} was called safe");
        }
    }
}

struct Server {
    shared: Arc<Shared>,
    dir: Utf8TempDir,
    store: SlowStore,
    manager: TenantManager,
    task: Option<JoinHandle<()>>,
}

fn config(dir: &Utf8TempDir, store: &SlowStore) -> &'static PageServerConf {
    let options = RemoteOptions {
        attempt_timeout: Duration::from_millis(250),
        max_attempts: 3,
        first_pause: Duration::from_millis(5),
        ..RemoteOptions::default()
    };
    let conf = PageServerConf {
        checkpoint_distance: 1 << 20,
        attach_on_start: AttachOnStart::Local,
        remote_storage: Some(RemoteStorage::with_options(Arc::new(store.clone()), "slow:", options)),
        remote_storage_start_timeout: Duration::ZERO,
        ..PageServerConf::dummy_conf(dir.path().to_owned())
    };
    Box::leak(Box::new(conf))
}

/// Loads a manager; retries if the bucket makes the start fail.
async fn load(dir: &Utf8TempDir, store: &SlowStore) -> TenantManager {
    loop {
        match TenantManager::load_idle(config(dir, store)).await {
            Ok(manager) => return manager,
            Err(error) => assert_eq!(error.kind(), errors::ErrorKind::Retry, "{error}"),
        }
    }
}

impl Server {
    async fn start(shared: Arc<Shared>, dir: Utf8TempDir, seed: u64) -> Self {
        let store = SlowStore::new(Arc::clone(&shared.bucket), seed);
        let safe = shared.safe();
        let manager = load(&dir, &store).await;
        if manager.timelines(shared.history.new.tenant_shard_id).is_ok_and(|timelines| !timelines.is_empty()) {
            shared.check_owner(&manager, safe);
        }
        Self { shared, dir, store, manager, task: None }
    }

    fn is_busy(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.is_finished())
    }

    fn act(&mut self, what: u64, dice: &mut Dice) {
        let (manager, shared) = (self.manager.clone(), Arc::clone(&self.shared));
        let tenant = shared.history.new.tenant_shard_id;
        let records = 1 + dice.below(12);
        self.task = Some(tokio::spawn(async move {
            let fenced = manager.remote_of(tenant).map(|remote| remote.fenced().is_some());
            match (what, fenced) {
                // A server that wants the tenant takes it; a fenced one must detach it first.
                (0..4, None) => {
                    let safe = shared.safe();
                    if manager.attach_tenant(tenant).await.is_ok() {
                        shared.check_owner(&manager, safe);
                    }
                }
                (0..4, Some(true)) => {
                    count(&shared.counts.fenced);
                    manager.detach_tenant(tenant).await.unwrap();
                }
                (4, Some(false)) => drop(manager.detach_tenant(tenant).await),
                _ => {
                    let id = shared.history.new.timeline_id;
                    if let Ok(timeline) = manager.get(tenant, id) {
                        shared.history.receive(&timeline, records).await;
                    }
                }
            }
            shared.note_safe(&manager);
        }));
    }

    /// Kills the process, and optionally loses its disk.
    async fn crash(self, seed: u64, disk_too: bool) -> Self {
        count(&self.shared.counts.crashed);
        let (shared, dir) = self.kill().await;
        let dir = if disk_too { tempdir().unwrap() } else { dir };
        Self::start(shared, dir, seed).await
    }

    async fn kill(self) -> (Arc<Shared>, Utf8TempDir) {
        self.shared.note_safe(&self.manager);
        self.store.cut();
        if let Some(task) = self.task {
            // A failed assertion in the task counts.
            task.await.unwrap();
        }
        // Nothing is written any more, to disk or bucket.
        for timeline in self.manager.all_timelines() {
            timeline.shutdown().await;
        }
        self.manager.shutdown().await;
        self.shared.counts.calls.fetch_add(self.store.calls(), Ordering::Relaxed);
        (self.shared, self.dir)
    }
}

async fn schedule(servers: u64, seed: u64, counts: &Arc<Counts>) {
    let _told = TellSeed(seed);
    let mut dice = Dice::new(seed);
    let bucket = Arc::new(InMemory::new());
    let new = new_timeline();
    let (dir, store) = (tempdir().unwrap(), SlowStore::new(Arc::clone(&bucket), seed));
    let manager = load(&dir, &store).await;
    while manager.create_tenant(new.tenant_shard_id).await.is_err() {}
    let remote = manager.remote_of(new.tenant_shard_id);
    let (timeline, model) = import_with(manager.conf(), new, remote).await.unwrap();
    manager.add(timeline.clone()).await.unwrap();
    assert!(timeline.wait_uploaded(Duration::from_secs(600)).await);
    drop(timeline);
    let history = History::new(new, model);
    let shared = Arc::new(Shared { bucket, history, safe: AtomicU64::new(0), counts: Arc::clone(counts) });
    shared.note_safe(&manager);
    let mut all = vec![Server { shared: Arc::clone(&shared), dir, store, manager, task: None }];
    for number in 1..servers {
        all.push(Server::start(Arc::clone(&shared), tempdir().unwrap(), seed ^ (number << 32)).await);
    }
    for step in 0..STEPS {
        let number = dice.below(servers) as usize;
        let what = dice.below(14);
        if what == 13 {
            let server = all.remove(number);
            all.insert(number, server.crash(seed ^ (step << 40), dice.below(2) == 0).await);
        } else if !all[number].is_busy() {
            all[number].act(what, &mut dice);
        }
        let pause = [0, 1, 10, 60][dice.below(4) as usize];
        tokio::time::sleep(Duration::from_millis(pause)).await;
        all.iter().for_each(|server| shared.note_safe(&server.manager));
    }
    for server in all {
        server.kill().await;
    }
    last_owner(&shared, seed).await;
}

/// Prints the seed if its schedule fails.
struct TellSeed(u64);

impl Drop for TellSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {}", self.0);
        }
    }
}

/// Attaches the tenant on an empty disk, and reads everything.
async fn last_owner(shared: &Shared, seed: u64) {
    let (dir, store) = (tempdir().unwrap(), SlowStore::new(Arc::clone(&shared.bucket), !seed));
    let manager = load(&dir, &store).await;
    let new = &shared.history.new;
    while let Err(error) = manager.attach_tenant(new.tenant_shard_id).await {
        println!("{error}");
    }
    shared.check_owner(&manager, shared.safe());
    let timeline = manager.get(new.tenant_shard_id, new.timeline_id).unwrap();
    let last = timeline.last_record_lsn();
    for lsn in [IMPORT_LSN, IMPORT_LSN + (last.0 - IMPORT_LSN.0) / 16 * 8, last] {
        shared.history.check(&timeline, lsn).await;
    }
    drop(timeline);
    manager.shutdown().await;
}

fn schedules(default: u64) -> u64 {
    std::env::var("FENCING_SCHEDULES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

async fn run(servers: u64, first_seed: u64) {
    let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR).with_test_writer().try_init();
    let (counts, number) = (Arc::new(Counts::default()), schedules(150));
    let seeds: Vec<u64> = match std::env::var("FENCING_SEED").ok().and_then(|text| text.parse().ok()) {
        Some(seed) => vec![seed],
        None => (first_seed..first_seed + number).collect(),
    };
    for seeds in seeds.chunks(AT_ONCE) {
        let mut running = JoinSet::new();
        for seed in seeds.iter().copied() {
            let counts = Arc::clone(&counts);
            running.spawn(async move { (seed, schedule(servers, seed, &counts).await) });
        }
        while let Some(ended) = running.join_next().await {
            ended.unwrap();
        }
    }
    let [attached, fenced, crashed, calls, advanced] =
        [&counts.attached, &counts.fenced, &counts.crashed, &counts.calls, &counts.advanced]
            .map(|counter| counter.load(Ordering::Relaxed));
    println!(
        "{servers} servers: {number} schedules, {calls} requests, {attached} attachments, {fenced} servers that let go \
         after they were fenced, {crashed} crashes, {advanced} advances of what is safe: P4 held"
    );
    if seeds.len() >= 100 {
        assert!(attached > number && fenced > number / 4 && crashed > number && advanced > number);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_cannot_hurt_each_other() {
    run(2, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_servers_cannot_hurt_each_other() {
    run(3, 100_001).await;
}
