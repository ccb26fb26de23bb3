//! WAL sources: a timeline that should follow a server does, or reports why not.

use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use camino_tempfile::{Utf8TempDir, tempdir};
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::{Manifest, NewTimeline, Timeline};
use pageserver::walreceiver::{NewWriter, WalReceiverState, WalReceiverStatus, WalReceivers, Writer};

use crate::remote_support::{TestStore, test_store};
use crate::stack::{import, import_with, new_timeline};
use crate::world::{UPLOAD, config, load};

/// Nothing is listening there.
const CONNSTR: &str = "host=/nonexistent user=postgres password=s3cret";

struct World {
    store: TestStore,
    dir: Utf8TempDir,
    new: NewTimeline,
}

/// A published timeline that follows a compute; its pageserver has stopped.
async fn world() -> World {
    let (store, dir, new) = (test_store().await, tempdir().unwrap(), new_timeline());
    let manager = load(dir.path(), &store.storage).await;
    manager.create_tenant(new.tenant_shard_id).await.unwrap();
    let remote = manager.remote_of(new.tenant_shard_id);
    let (timeline, _) = import_with(manager.conf(), new, remote).await.unwrap();
    manager.add(timeline.clone()).await.unwrap();
    let receivers = WalReceivers::new(manager.clone());
    follow(&receivers, &timeline).await;
    assert!(timeline.wait_uploaded(UPLOAD).await);
    drop(timeline);
    receivers.shutdown().await;
    manager.shutdown().await;
    World { store, dir, new }
}

async fn follow(receivers: &WalReceivers, timeline: &Timeline) {
    let start_lsn = timeline.last_record_lsn();
    let writer = Writer { id: "1".to_owned(), name: "compute".to_owned(), start_lsn };
    let new = NewWriter { writer, connstr: CONNSTR.to_owned(), slot: "slot".to_owned(), replace: false };
    receivers.register_writer(timeline, new).await.unwrap();
}

impl World {
    fn timeline_dir(&self) -> Utf8PathBuf {
        let (tenant, timeline) = (self.new.tenant_shard_id, self.new.timeline_id);
        self.dir.path().join(format!("tenants/{tenant}/timelines/{timeline}"))
    }

    /// Rewrites the directory as an earlier version had it, with `wal_source` in a separate file. Returns its
    /// contents.
    async fn make_old(&self) -> String {
        let dir = self.timeline_dir();
        let manifest = Manifest::load(&dir, self.new.tenant_shard_id, self.new.timeline_id).await.unwrap();
        let told = manifest.wal_source.clone().unwrap().0;
        let mut bytes = Manifest { wal_source: None, ..manifest }.encode().unwrap();
        bytes[11] = 3;
        let end = bytes.len() - 4;
        let crc = utils::crc32c::crc32c(&bytes[..end]).to_be_bytes();
        bytes[end..].copy_from_slice(&crc);
        std::fs::write(Manifest::path(&dir), bytes).unwrap();
        std::fs::write(dir.join("wal_source"), &told).unwrap();
        told
    }

    /// The receiver's status after a start.
    async fn start(&self) -> Option<WalReceiverStatus> {
        let manager = load(self.dir.path(), &self.store.storage).await;
        let receivers = WalReceivers::new(manager.clone());
        receivers.start_all().await;
        let status = receivers.status(self.new.tenant_shard_id, self.new.timeline_id);
        let timeline = manager.get(self.new.tenant_shard_id, self.new.timeline_id).unwrap();
        assert!(timeline.wait_uploaded(UPLOAD).await);
        drop(timeline);
        receivers.shutdown().await;
        manager.shutdown().await;
        status
    }

    async fn follows(&self, case: &str) {
        let status = self.start().await.unwrap_or_else(|| panic!("{case}: it does not follow"));
        assert_eq!((status.host.as_str(), status.slot.as_str()), ("/nonexistent:5432", "slot"), "{case}");
        assert_eq!(status.writer.unwrap().name, "compute", "{case}");
        assert!(!self.timeline_dir().join("wal_source").exists(), "{case}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_in_the_manifest_which_the_bucket_has_too() {
    let mut world = world().await;
    world.follows("a restart").await;
    let path = Manifest::path(&world.timeline_dir());
    let mut bytes = std::fs::read(&path).unwrap();
    for at in (0..bytes.len()).step_by(41) {
        bytes[at] ^= 4;
        std::fs::write(&path, &bytes).unwrap();
        world.follows("a flipped bit").await;
        bytes = std::fs::read(&path).unwrap();
    }
    std::fs::remove_file(&path).unwrap();
    world.follows("a manifest removed").await;
    world.dir = tempdir().unwrap();
    world.follows("an empty disk").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_version_wrote_is_taken_over() {
    for case in ["whole", "removed", "cut", "not text"] {
        let world = world().await;
        let told = world.make_old().await;
        let path = world.timeline_dir().join("wal_source");
        match case {
            "removed" => std::fs::remove_file(&path).unwrap(),
            "cut" => std::fs::write(&path, &told[..told.len() - 3]).unwrap(),
            "not text" => std::fs::write(&path, [&[0xff; 2], told.as_bytes()].concat()).unwrap(),
            _ => {}
        }
        world.follows(case).await;
        world.follows(case).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_anywhere_is_told() {
    let (dir, new) = (tempdir().unwrap(), new_timeline());
    let conf = crate::stack::config(dir.path(), 1 << 20);
    let (timeline, _) = import(conf, new).await.unwrap();
    std::fs::write(timeline.dir().join("wal_source"), "{\"connstr\": \"s3cret").unwrap();
    timeline.shutdown().await;
    let manager = TenantManager::load_idle(conf).await.unwrap();
    let receivers = WalReceivers::new(manager.clone());
    receivers.start_all().await;
    let status = receivers.status(new.tenant_shard_id, new.timeline_id).expect("it should follow");
    assert_eq!(status.state, WalReceiverState::Failed);
    let error = status.last_error.unwrap();
    assert!(error.contains("where its WAL comes from") && !error.contains("s3cret"), "{error}");
    receivers.shutdown().await;
    manager.shutdown().await;
}

/// Wherever it comes from: a tenant that is attached later, or a timeline that could not be opened at first.
#[tokio::test(flavor = "multi_thread")]
async fn a_timeline_that_comes_later_is_followed_too() {
    let world = world().await;
    let (tenant, id) = (world.new.tenant_shard_id, world.new.timeline_id);
    let dir = tempdir().unwrap();
    let local = engine::config::AttachOnStart::Local;
    let conf =
        engine::config::PageServerConf { attach_on_start: local, ..config(dir.path(), &world.store.storage).clone() };
    let manager = TenantManager::load_idle(Box::leak(Box::new(conf))).await.unwrap();
    let receivers = WalReceivers::new(manager.clone());
    receivers.start_all().await;
    manager.attach_tenant(tenant).await.unwrap();
    let started = Instant::now();
    while receivers.status(tenant, id).is_none() {
        assert!(started.elapsed() < Duration::from_secs(30), "it is not followed");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // A stopped receiver stays stopped until it is started.
    receivers.stop(tenant, id).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(receivers.status(tenant, id).is_none());
    receivers.start_tenant(tenant).await;
    assert!(receivers.status(tenant, id).is_some());
    receivers.shutdown().await;
    manager.shutdown().await;
}
