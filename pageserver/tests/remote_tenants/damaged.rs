//! Starts and takeovers where the tenant's own objects have been damaged.

use std::sync::Arc;
use std::time::Duration;

use camino_tempfile::{Utf8TempDir, tempdir};
use engine::tenant::manager::TenantManager;
use engine::tenant::scrub::{self, Options, Report, Subject};
use engine::tenant::timeline::{NewTimeline, Timeline};
use errors::ErrorKind;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use utils::lsn::Lsn;

use crate::remote_support::{TestStore, test_store};
use crate::stack::{Model, context, import_with, new_timeline};
use crate::world::{UPLOAD, check, config, kill, load, put};

/// Object stores have timestamps in whole seconds.
const LATER: Duration = Duration::from_millis(2100);

struct World {
    store: TestStore,
    dir: Utf8TempDir,
    new: NewTimeline,
    model: Model,
    last: Lsn,
}

/// A timeline of several layers, published by a server that no longer exists.
async fn world() -> World {
    let (store, dir, new) = (test_store().await, tempdir().unwrap(), new_timeline());
    let manager = load(dir.path(), &store.storage).await;
    manager.create_tenant(new.tenant_shard_id).await.unwrap();
    let remote = manager.remote_of(new.tenant_shard_id);
    let (timeline, model) = import_with(manager.conf(), new, remote).await.unwrap();
    manager.add(timeline.clone()).await.unwrap();
    let mut world = World { store, dir, new, model, last: Lsn::INVALID };
    for _ in 0..3 {
        world.grow(&timeline).await;
    }
    drop(timeline);
    manager.shutdown().await;
    world
}

impl World {
    /// Adds one layer and publishes it.
    async fn grow(&mut self, timeline: &Timeline) {
        put(timeline, &mut self.model, 10).await;
        timeline.flush(&context()).await.unwrap();
        assert!(timeline.wait_uploaded(UPLOAD).await);
        self.last = timeline.last_record_lsn();
    }

    fn path(&self, name: &str) -> Path {
        Path::from(format!("tenants/{}/{name}", self.new.tenant_shard_id))
    }

    fn index_part(&self, generation: u32) -> Path {
        self.path(&format!("timelines/{}/index_part-{generation:08x}", self.new.timeline_id))
    }

    fn generation(&self, number: u32) -> Path {
        self.path(&format!("generations/{number:08x}"))
    }

    async fn put(&self, path: &Path, bytes: &[u8]) {
        self.store.truth.put(path, PutPayload::from(bytes.to_vec())).await.unwrap();
    }

    async fn get(&self, path: &Path) -> Vec<u8> {
        self.store.truth.get(path).await.unwrap().bytes().await.unwrap().to_vec()
    }

    async fn damage(&self, path: &Path) {
        let mut bytes = self.get(path).await;
        bytes[100] ^= 1;
        self.put(path, &bytes).await;
    }

    /// A start on this disk or on an empty one; some timelines may be broken.
    async fn start(&mut self, empty: bool) -> TenantManager {
        if empty {
            self.dir = tempdir().unwrap();
        }
        TenantManager::load_idle(config(self.dir.path(), &self.store.storage)).await.unwrap()
    }

    async fn all_is_there(&self, manager: &TenantManager) {
        assert_eq!(manager.broken(), []);
        let timeline = manager.get(self.new.tenant_shard_id, self.new.timeline_id).unwrap();
        assert_eq!(timeline.last_record_lsn(), self.last);
        check(&timeline, &self.model, self.last).await;
        assert!(timeline.wait_uploaded(UPLOAD).await);
    }

    /// Scrubs as the server does.
    async fn scrub(&self, manager: &TenantManager) -> Report {
        let tenant = self.new.tenant_shard_id;
        let subject = Subject {
            conf: manager.conf(),
            tenant,
            open: manager.timelines(tenant).unwrap(),
            generation: manager.remote_of(tenant).map(|remote| remote.generation()),
            exclusive: false,
        };
        let options = Options { repair_bucket: true, ..Options::default() };
        scrub::scrub(&subject, options, &Arc::default()).await.unwrap()
    }

    /// Checks that the timeline does not open for a reason that contains `reason`, that a scrub repairs it, and that
    /// everything is there then, permanently.
    async fn is_broken_and_mended(&mut self, manager: TenantManager, reason: &str) {
        let broken = manager.broken();
        assert!(
            broken.len() == 1 && broken[0].2.contains(reason) && broken[0].2.contains("pagectl scrub"),
            "{broken:?}"
        );
        let report = self.scrub(&manager).await;
        assert_eq!((report.findings.len(), report.fixed()), (1, 1), "{report:?}");
        assert_eq!(manager.reopen(self.new.tenant_shard_id).await.unwrap(), 1);
        self.all_is_there(&manager).await;
        assert!(self.scrub(&manager).await.findings.is_empty());
        let timeline = manager.get(self.new.tenant_shard_id, self.new.timeline_id).unwrap();
        self.grow(&timeline).await;
        drop(timeline);
        manager.shutdown().await;
        for empty in [false, true] {
            let manager = self.start(empty).await;
            self.all_is_there(&manager).await;
            manager.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_index_part_takes_down_nothing_whose_manifest_is_whole() {
    let mut world = world().await;
    for (round, what) in ["damaged", "removed", "damaged", "removed"].into_iter().enumerate() {
        let path = world.index_part(round as u32 + 1);
        match what {
            "damaged" => world.damage(&path).await,
            _ => world.store.truth.delete(&path).await.unwrap(),
        }
        let manager = world.start(false).await;
        world.all_is_there(&manager).await;
        kill(manager).await;
    }
    let manager = world.start(true).await;
    world.all_is_there(&manager).await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn some_layers_may_be_in_the_bucket_only() {
    let mut world = world().await;
    let manager = world.start(false).await;
    for layer in manager.all_timelines()[0].layer_files().iter().step_by(2) {
        layer.evict().await.unwrap();
    }
    manager.shutdown().await;
    world.damage(&world.index_part(2)).await;
    let manager = world.start(false).await;
    world.all_is_there(&manager).await;
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_an_empty_disk_a_lost_index_part_is_told_and_written_anew() {
    for what in ["damaged", "removed"] {
        let mut world = world().await;
        let path = world.index_part(1);
        match what {
            "damaged" => world.damage(&path).await,
            _ => world.store.truth.delete(&path).await.unwrap(),
        }
        let manager = world.start(true).await;
        world.is_broken_and_mended(manager, if what == "damaged" { "checksum" } else { "is gone" }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_index_part_is_not_taken_for_the_truth() {
    let mut world = world().await;
    let manager = world.start(false).await;
    let timeline = manager.get(world.new.tenant_shard_id, world.new.timeline_id).unwrap();
    assert!(timeline.wait_uploaded(UPLOAD).await);
    let older = world.get(&world.index_part(2)).await;
    world.grow(&timeline).await;
    world.grow(&timeline).await;
    drop(timeline);
    manager.shutdown().await;
    tokio::time::sleep(LATER).await;
    world.put(&world.index_part(2), &older).await;
    // A server whose disk is intact knows better.
    let manager = world.start(false).await;
    world.all_is_there(&manager).await;
    manager.shutdown().await;
    tokio::time::sleep(LATER).await;
    let (current, mut timeline) = (world.get(&world.index_part(3)).await, None);
    world.put(&world.index_part(3), &current).await;
    let manager = world.start(false).await;
    world.grow(timeline.insert(manager.get(world.new.tenant_shard_id, world.new.timeline_id).unwrap())).await;
    drop(timeline);
    let older = world.get(&world.index_part(4)).await;
    let open = manager.get(world.new.tenant_shard_id, world.new.timeline_id).unwrap();
    world.grow(&open).await;
    drop(open);
    manager.shutdown().await;
    tokio::time::sleep(LATER).await;
    world.put(&world.index_part(4), &older).await;
    let manager = world.start(true).await;
    world.is_broken_and_mended(manager, "somebody has put back").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_chain_is_mended_by_an_explicit_takeover_only() {
    for (restarts, what) in [(0, "removed"), (0, "{}"), (2, "removed"), (2, "{}")] {
        let mut world = world().await;
        let (tenant, id) = (world.new.tenant_shard_id, world.new.timeline_id);
        let mut holder = world.start(false).await;
        for _ in 0..restarts {
            world.all_is_there(&holder).await;
            holder.shutdown().await;
            holder = world.start(false).await;
        }
        world.all_is_there(&holder).await;
        // The generation of a server that is still running.
        let held = holder.remote_of(tenant).unwrap();
        let path = world.generation(held.generation());
        match what {
            "removed" => world.store.truth.delete(&path).await.unwrap(),
            damage => world.put(&path, damage.as_bytes()).await,
        }
        let own_dir = world.dir;
        world.dir = tempdir().unwrap();
        for _ in 0..2 {
            let manager = world.start(false).await;
            let error = manager.get(tenant, id).unwrap_err().to_string();
            assert!(error.contains("AttachedSingle"), "{what}: {error}");
            for refused in [
                manager.attach_tenant(tenant).await,
                manager.delete_tenant(tenant).await,
                manager.detach_tenant(tenant).await,
            ] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains("AttachedSingle"), "{what}: {error}");
            }
            assert!(held.check().await.is_ok(), "{what}: nobody has taken it");
            manager.shutdown().await;
        }
        let manager = world.start(false).await;
        manager.take_tenant_over(tenant).await.unwrap();
        world.all_is_there(&manager).await;
        assert!(manager.remote_of(tenant).unwrap().generation() > held.generation());
        assert_eq!(held.check().await.unwrap_err().kind(), ErrorKind::Fenced);
        assert!(world.scrub(&manager).await.findings.is_empty(), "{what}");
        kill(holder).await;
        manager.shutdown().await;
        drop(own_dir);
    }
}
