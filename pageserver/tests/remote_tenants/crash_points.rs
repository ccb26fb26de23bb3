//! Kills the process at each request of a history that creates, writes, branches and deletes, before or after the
//! request's effect, and restarts it on the same disk or on an empty one. What was reported as safe must be there and
//! agree with the model; what was reported as deleted must stay deleted; and the history can go on from there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use camino_tempfile::{Utf8TempDir, tempdir};
use engine::tenant::manager::{NewBranch, TenantManager};
use engine::tenant::timeline::{NewTimeline, Timeline};
use futures_util::TryStreamExt;
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::task::JoinSet;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use crate::remote_support::{Fault, TestStore, test_store};
use crate::stack::{Model, context, import_with, new_timeline};
use crate::world::{UPLOAD, check, config, kill, load, once, put};

/// Number of concurrent runs.
const AT_ONCE: usize = 12;

/// What is known when the process dies.
#[derive(Default)]
struct Known {
    /// The models of trunk and branch.
    trunk: Model,
    branch: Model,
    /// The LSNs up to which they were reported as safe.
    trunk_safe: Option<Lsn>,
    branch_safe: Option<Lsn>,
    /// Durable on the local disk.
    trunk_on_disk: Option<Lsn>,
    branch_deleted: bool,
    tenant_deleted: bool,
    deleting_branch: bool,
    deleting_tenant: bool,
    finished: bool,
}

struct Run {
    store: TestStore,
    dir: Utf8TempDir,
    new: NewTimeline,
    branch: TimelineId,
    dead: Arc<AtomicBool>,
    known: Known,
    /// Its deletion was requested, but had not begun.
    branch_lives: bool,
}

impl Run {
    /// All requests from number `fatal` on fail; that one takes effect or not.
    async fn new(fatal: u64, with_effect: bool) -> (Self, Arc<AtomicU64>) {
        let mut store = test_store().await;
        (store.storage, store.faults) = store.another(once());
        let (dead, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (dies, counted) = (Arc::clone(&dead), Arc::clone(&calls));
        store.faults.set_plan(move |op, _, _| {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            if number < fatal {
                return None;
            }
            dies.store(true, Ordering::SeqCst);
            let lost = with_effect && number == fatal && Fault::ErrorAfter.applies(op);
            Some(if lost { Fault::ErrorAfter } else { Fault::ErrorBefore })
        });
        let (dir, new, branch) = (tempdir().unwrap(), new_timeline(), TimelineId::generate());
        (Self { store, dir, new, branch, dead, known: Known::default(), branch_lives: false }, calls)
    }

    fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Waits for an upload, or for the process's death.
    async fn uploaded(&self, timeline: &Timeline) -> Option<()> {
        while !timeline.wait_uploaded(Duration::from_millis(20)).await {
            if self.is_dead() {
                return None;
            }
        }
        Some(())
    }

    /// Runs the history; ends early when the process dies.
    async fn live(&mut self, manager: &TenantManager) -> Option<()> {
        let (tenant, id) = (self.new.tenant_shard_id, self.new.timeline_id);
        manager.create_tenant(tenant).await.ok()?;
        let (trunk, model) = import_with(manager.conf(), self.new, manager.remote_of(tenant)).await.unwrap();
        self.known.trunk = model;
        manager.add(trunk.clone()).await.ok()?;
        self.uploaded(&trunk).await?;
        for _ in 0..2 {
            put(&trunk, &mut self.known.trunk, 5).await;
            trunk.flush(&context()).await.ok()?;
            self.uploaded(&trunk).await?;
        }
        let new = NewBranch { timeline_id: self.branch, ancestor_id: id, lsn: None };
        let (branch, _) = manager.branch(tenant, new).await.ok()?;
        self.known.branch = self.known.trunk.clone();
        put(&branch, &mut self.known.branch, 4).await;
        branch.flush(&context()).await.ok()?;
        self.uploaded(&branch).await?;
        drop(branch);
        self.known.deleting_branch = true;
        manager.delete_timeline(tenant, self.branch).await.ok()?;
        self.known.branch_deleted = true;
        put(&trunk, &mut self.known.trunk, 5).await;
        trunk.flush(&context()).await.ok()?;
        self.uploaded(&trunk).await?;
        self.note_safe(manager);
        self.known.deleting_tenant = true;
        manager.delete_tenant(tenant).await.ok()?;
        self.known.tenant_deleted = true;
        self.known.finished = true;
        Some(())
    }

    fn note_safe(&mut self, manager: &TenantManager) {
        let get = |id| manager.get(self.new.tenant_shard_id, id);
        if let Ok(trunk) = get(self.new.timeline_id) {
            self.known.trunk_safe = trunk.remote_consistent_lsn();
            self.known.trunk_on_disk = Some(trunk.disk_consistent_lsn());
        }
        if let Ok(branch) = get(self.branch) {
            self.known.branch_safe = branch.remote_consistent_lsn();
        }
    }

    /// Checks what must be there again, and continues.
    async fn check_after(&mut self, manager: &TenantManager, empty: bool) {
        let tenant = self.new.tenant_shard_id;
        let known = &mut self.known;
        let there = manager.timelines(tenant).is_ok();
        assert!(!(known.tenant_deleted && there), "the tenant was deleted");
        if known.deleting_tenant && !there {
            return;
        }
        let trunk = manager.get(tenant, self.new.timeline_id).ok();
        let expected = if empty { known.trunk_safe } else { known.trunk_safe.max(known.trunk_on_disk) };
        let found = trunk.as_ref().map(Timeline::last_record_lsn);
        assert!(found >= expected, "{found:?} is there, {expected:?} should be");
        let branch = manager.get(tenant, self.branch).ok();
        assert!(!(known.branch_deleted && branch.is_some()), "the branch was deleted");
        self.branch_lives = branch.is_some();
        let of_branch = branch.as_ref().map(Timeline::last_record_lsn);
        assert!(known.deleting_branch || of_branch >= known.branch_safe);
        if let Some(branch) = branch {
            let lsn = branch.last_record_lsn();
            if trunk.as_ref().is_some_and(|trunk| trunk.last_record_lsn() >= branch.origin().import_lsn) {
                check(&branch, &known.branch, lsn).await;
            }
        }
        let Some(trunk) = trunk else { return };
        check(&trunk, &known.trunk, trunk.last_record_lsn()).await;
        known.trunk.truncate(trunk.last_record_lsn());
        put(&trunk, &mut known.trunk, 3).await;
        trunk.flush(&context()).await.unwrap();
        assert!(trunk.wait_uploaded(UPLOAD).await);
        (known.trunk_safe, known.trunk_on_disk) = (trunk.remote_consistent_lsn(), None);
        assert_eq!(known.trunk_safe, Some(trunk.last_record_lsn()));
    }

    /// Objects below a prefix of the tenant.
    async fn objects(&self, below: &str) -> Vec<String> {
        let prefix = Path::from(format!("tenants/{}/{below}", self.new.tenant_shard_id));
        let found: Vec<_> = self.store.truth.list(Some(&prefix)).try_collect().await.unwrap();
        found.iter().filter_map(|meta| meta.location.filename().map(str::to_owned)).collect()
    }
}

/// Returns whether the history was completed, and the number of requests.
async fn die_at(fatal: u64, with_effect: bool, empty: bool) -> (bool, u64) {
    let (mut run, calls) = Run::new(fatal, with_effect).await;
    let Ok(manager) = TenantManager::load_idle(config(run.dir.path(), &run.store.storage)).await else {
        assert!(fatal < 5, "a start asks for little");
        return (false, 0);
    };
    let ended = run.live(&manager).await;
    assert!(ended.is_some() || run.is_dead(), "request {fatal}: it ended without having died");
    run.note_safe(&manager);
    kill(manager).await;
    let total = calls.load(Ordering::SeqCst);
    let (healthy, _) = run.store.another(crate::remote_support::fast());
    for empty in [empty, false, true] {
        if empty {
            run.dir = tempdir().unwrap();
            run.known.trunk_on_disk = None;
        }
        let manager = load(run.dir.path(), &healthy).await;
        run.check_after(&manager, empty).await;
        manager.shutdown().await;
    }
    if run.known.deleting_branch && !run.branch_lives {
        let left = run.objects(&format!("timelines/{}", run.branch)).await;
        assert!(left.is_empty() || left.iter().all(|name| name.starts_with("index_part")), "{left:?}");
    }
    if run.known.tenant_deleted {
        assert_eq!(run.objects("timelines").await, [""; 0]);
    }
    (run.known.finished, total)
}

#[tokio::test(flavor = "multi_thread")]
async fn death_at_every_request() {
    let (finished, total) = die_at(u64::MAX, false, false).await;
    assert!(finished);
    let (mut running, mut runs) = (JoinSet::new(), 0);
    let cases = (0..=total)
        .flat_map(|fatal| [(fatal, false, false), (fatal, false, true), (fatal, true, false), (fatal, true, true)]);
    for (fatal, with_effect, empty) in cases {
        if running.len() >= AT_ONCE {
            running.join_next().await.unwrap().unwrap();
        }
        runs += 1;
        running.spawn(async move {
            let case = format!("request {fatal}, with its effect: {with_effect}, empty disk: {empty}");
            match tokio::spawn(die_at(fatal, with_effect, empty)).await {
                Ok(_) => {}
                Err(error) => panic!("{case}: {error}"),
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
    println!("{runs} deaths at {total} requests: nothing that was called safe is lost");
    assert!(runs > 100);
}
