//! Tests branches against a model: each timeline reads as the map of its own history, no matter what was written to
//! others, flushed or reopened.

use std::collections::BTreeMap;

use crate::stack::{Change, IMPORT_LSN, Model, config, context, import, new_timeline, put_record};
use camino_tempfile::tempdir;
use engine::config::PageServerConf;
use engine::tenant::manager::{Created, ManageError, NewBranch, TenantManager};
use engine::tenant::timeline::Timeline;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::shard::TenantShardId;
use proptest::prelude::*;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

#[derive(Clone, Debug)]
enum Step {
    /// Write a record to one of the timelines.
    Put(usize, Vec<Change>),
    /// Flush.
    Flush(usize),
    /// Create a branch at some fraction of the history.
    Branch(usize, u8),
    /// Delete, if there are no branches.
    Delete(usize),
    /// Detach from the ancestor, if nobody needs what is before the branch point.
    Detach(usize),
    /// Shut down and load again.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let change = (0..12usize, any::<u32>());
    prop_oneof![
        12 => (any::<usize>(), prop::collection::vec(change, 1..4)).prop_map(|(at, changes)| Step::Put(at, changes)),
        2 => any::<usize>().prop_map(Step::Flush),
        3 => (any::<usize>(), any::<u8>()).prop_map(|(at, share)| Step::Branch(at, share)),
        1 => any::<usize>().prop_map(Step::Delete),
        1 => any::<usize>().prop_map(Step::Detach),
        1 => Just(Step::Restart),
    ]
}

struct World {
    conf: &'static PageServerConf,
    tenant: TenantShardId,
    manager: TenantManager,
    models: BTreeMap<TimelineId, Model>,
    /// What each branch continues, and from where.
    parents: BTreeMap<TimelineId, (TimelineId, Lsn)>,
    /// Where the histories of those begin that were detached.
    begins: BTreeMap<TimelineId, Lsn>,
}

impl World {
    async fn new(conf: &'static PageServerConf) -> Self {
        let new = new_timeline();
        let (timeline, model) = import(conf, new).await.unwrap();
        let manager = TenantManager::load_idle(conf).await.unwrap();
        // The imported timeline is open here, so `load` could not open it.
        assert_eq!(manager.broken().len(), 1);
        timeline.shutdown().await;
        manager.shutdown().await;
        let manager = TenantManager::load_idle(conf).await.unwrap();
        assert!(manager.broken().is_empty());
        let models = BTreeMap::from([(new.timeline_id, model)]);
        let (parents, begins) = Default::default();
        Self { conf, tenant: new.tenant_shard_id, manager, models, parents, begins }
    }

    fn pick(&self, number: usize) -> (TimelineId, Timeline) {
        let id = *self.models.keys().nth(number % self.models.len()).unwrap();
        (id, self.manager.get(self.tenant, id).unwrap())
    }

    async fn put(&mut self, number: usize, changes: &[Change]) {
        let (id, timeline) = self.pick(number);
        let (mut batch, lsn) = (SerializedValueBatch::default(), timeline.last_record_lsn() + 8);
        put_record(self.models.get_mut(&id).unwrap(), &mut batch, lsn, changes);
        timeline.put_batch(batch, &context()).await.unwrap();
        timeline.finish_write(lsn, lsn - 8);
    }

    async fn branch(&mut self, number: usize, share: u8) {
        let (ancestor_id, ancestor) = self.pick(number);
        let begin = ancestor.min_readable_lsn();
        let length = ancestor.last_record_lsn().0 - begin.0;
        let lsn = Lsn(begin.0 + length * u64::from(share) / 255);
        let new = NewBranch { timeline_id: TimelineId::generate(), ancestor_id, lsn: Some(lsn) };
        let (_, created) = self.manager.branch(self.tenant, new).await.unwrap();
        assert_eq!(created, Created::New);
        let (_, created) = self.manager.branch(self.tenant, new).await.unwrap();
        assert_eq!(created, Created::Existed);
        let mut model = self.models[&ancestor_id].clone();
        model.truncate(lsn);
        self.models.insert(new.timeline_id, model);
        self.parents.insert(new.timeline_id, (ancestor_id, lsn));
    }

    async fn delete(&mut self, number: usize) {
        let (id, timeline) = self.pick(number);
        drop(timeline);
        let has_children = self.parents.values().any(|(parent, _)| *parent == id);
        if self.models.len() == 1 {
            return;
        }
        match self.manager.delete_timeline(self.tenant, id).await {
            Err(ManageError::Precondition(_)) => assert!(has_children),
            other => {
                other.unwrap();
                assert!(!has_children);
                self.models.remove(&id);
                self.parents.remove(&id);
                self.begins.remove(&id);
                assert!(!self.conf.timeline_path(&self.tenant, &id).exists());
            }
        }
    }

    /// Whether a read of the branch at its branch point goes through `to` to what is below `lsn`.
    fn reaches_below(&self, branch: TimelineId, (to, lsn): (TimelineId, Lsn)) -> bool {
        let (mut at, point) = self.parents[&branch];
        while at != to {
            match self.parents.get(&at) {
                Some((parent, begin)) if point <= *begin => at = *parent,
                _ => return false,
            }
        }
        point < lsn
    }

    async fn detach(&mut self, number: usize) {
        let (id, _) = self.pick(number);
        let detached = self.manager.detach_timeline(self.tenant, id).await;
        let Some((_, lsn)) = self.parents.get(&id).copied() else {
            assert_eq!(detached.is_ok(), self.begins.contains_key(&id), "{detached:?}");
            return;
        };
        let needed = self.parents.keys().any(|branch| *branch != id && self.reaches_below(*branch, (id, lsn)));
        match detached {
            Err(ManageError::Precondition(reason)) => assert!(needed && reason.contains("branches off"), "{reason}"),
            other => {
                other.unwrap();
                assert!(!needed, "somebody needs what is below {lsn}");
                self.parents.remove(&id);
                self.begins.insert(id, lsn);
            }
        }
    }

    async fn restart(&mut self) {
        self.manager.shutdown().await;
        self.manager = TenantManager::load_idle(self.conf).await.unwrap();
        assert!(self.manager.broken().is_empty(), "{:?}", self.manager.broken());
    }

    async fn check(&self) {
        let all = KeySpace::single(Key::MIN..Key::MAX);
        for (id, model) in &self.models {
            let timeline = self.manager.get(self.tenant, *id).unwrap();
            let last = timeline.last_record_lsn();
            let begin = timeline.min_readable_lsn();
            assert!(self.begins.get(id).is_none_or(|lsn| *lsn == begin));
            if begin > IMPORT_LSN {
                assert!(timeline.check_readable(begin - 1).is_err());
                assert!(timeline.get_vectored(&all, begin - 1, &context()).await.is_err());
            }
            for lsn in [begin, Lsn((begin.0 + last.0) / 2), last] {
                let found = timeline.get_vectored(&all, lsn, &context()).await.unwrap();
                let found: BTreeMap<_, _> = found.into_iter().map(|(key, value)| (key, value.unwrap())).collect();
                assert!(found == model.values(&(Key::MIN..Key::MAX), lsn), "timeline {id} at {lsn}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn branches_read_as_their_own_history(steps in prop::collection::vec(step(), 10..60)) {
        let dir = tempdir().unwrap();
        // Small layers: a few puts fill one.
        let conf = config(dir.path(), 8 << 10);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new(conf).await;
            for step in &steps {
                match step {
                    Step::Put(at, changes) => world.put(*at, changes).await,
                    Step::Flush(at) => world.pick(*at).1.flush(&context()).await.unwrap(),
                    Step::Branch(at, share) => world.branch(*at, *share).await,
                    Step::Delete(at) => world.delete(*at).await,
                    Step::Detach(at) => world.detach(*at).await,
                    Step::Restart => world.restart().await,
                }
            }
            world.check().await;
            world.restart().await;
            world.check().await;
            world.manager.shutdown().await;
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_branches_are_refused() {
    let dir = tempdir().unwrap();
    let conf = config(dir.path(), 1 << 20);
    let mut world = World::new(conf).await;
    world.put(0, &[(1, 1)]).await;
    let (ancestor_id, ancestor) = world.pick(0);
    let last = ancestor.last_record_lsn();
    let at = |lsn| NewBranch { timeline_id: TimelineId::generate(), ancestor_id, lsn: Some(lsn) };
    for lsn in [IMPORT_LSN - 1, Lsn(0), last + 1] {
        let refused = world.manager.branch(world.tenant, at(lsn)).await;
        assert!(matches!(refused, Err(ManageError::NotAcceptable(_))), "{refused:?}");
    }
    let unknown = NewBranch { ancestor_id: TimelineId::generate(), ..at(last) };
    assert!(matches!(world.manager.branch(world.tenant, unknown).await, Err(ManageError::NotFound(_))));
    let itself = NewBranch { timeline_id: ancestor_id, ..at(last) };
    assert!(matches!(world.manager.branch(world.tenant, itself).await, Err(ManageError::Conflict(_))));
    let branch = at(last);
    world.manager.branch(world.tenant, branch).await.unwrap();
    let elsewhere = NewBranch { lsn: Some(IMPORT_LSN), ..branch };
    assert!(matches!(world.manager.branch(world.tenant, elsewhere).await, Err(ManageError::Conflict(_))));
    world.manager.delete_tenant(world.tenant).await.unwrap();
    assert!(!conf.tenant_path(&world.tenant).exists());
    world.manager.delete_tenant(world.tenant).await.unwrap();
    assert!(matches!(world.manager.timelines(world.tenant), Err(ManageError::NotFound(_))));
}
