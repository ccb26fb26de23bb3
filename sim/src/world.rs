//! Two servers, one bucket, one tenant with its branches, and those who use and operate them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use camino::Utf8Path;
use engine::tenant::manager::{ManageError, NewBranch, TenantManager};
use engine::tenant::timeline::{NewTimeline, Origin as Beginning, Timeline};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use postgres_formats::version::PgVersion;
use pq_proto::client::simulated::Listening;
use simulated::model::{IMPORT_LSN, Model};
use simulated::platter::Survival;
use simulated::random::Random;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use crate::origin::Origin;
use crate::plan::Setting;
use crate::postgres::{BEGINS, CREATED, Postgres, cluster};
use crate::reader::{Kept, Promise, Promises, Subject};
use crate::server::{PATIENCE, Server, context};
use crate::story::{Story, tell, violation};
use crate::wal::{SEGMENT, SYSTEM, VERSION};
use crate::walsender::listen;
use crate::weather::Weather;

/// A timeline that was made.
#[derive(Clone)]
pub struct Known {
    /// Where its WAL comes from.
    pub origin: Origin,
    /// Where it is written down that it exists.
    pub kept: Kept,
    /// Moments of it that have to be kept.
    pub promises: Promises,
    /// The least that was ever said to be kept of it, in bytes of WAL.
    pub gc_horizon: u64,
    /// Its deletion has failed, and will be tried again: until then nothing of it is uploaded.
    is_doomed: bool,
    /// What each server has said of it that must still be so after a restart.
    said: [Said; 2],
}

/// What a server says of a timeline, which never becomes less on the same disk.
#[derive(Clone, Copy, Default)]
struct Said {
    /// So far it is on the disk.
    durable: Lsn,
    /// Below this nobody can read it. What was only said, and not written down, may come back with a restart.
    cutoff: Lsn,
    /// The open timeline that said so.
    instance: u64,
}

impl Known {
    fn new(origin: Origin, kept: Kept, setting: &Setting) -> Self {
        let (promises, said) = Default::default();
        Self { origin, kept, promises, gc_horizon: setting.gc_horizon, is_doomed: false, said }
    }
}

/// See the module's documentation.
pub struct World {
    /// What is the same for the whole run.
    pub setting: Setting,
    /// What happens.
    pub story: Story,
    /// The servers.
    pub servers: [Server; 2],
    /// The one that is to have the tenant.
    pub owner: usize,
    /// Whether an operator has yet to tell it so.
    is_to_attach: bool,
    /// Its name, for readers.
    pub owner_name: Arc<Mutex<&'static str>>,
    /// The tenant.
    pub tenant: TenantShardId,
    /// The first timeline.
    pub root: TimelineId,
    /// All timelines that are there, or may be.
    pub known: BTreeMap<TimelineId, Known>,
    /// Those that were deleted.
    pub deleted: Vec<TimelineId>,
    /// What fails.
    pub weather: Weather,
    /// Whether no clock is ever set.
    pub clocks_agree: bool,
    /// The Postgres of each timeline, if there is one.
    hosts: BTreeMap<TimelineId, Listening>,
    /// Nothing goes wrong on the way to them any more.
    pub is_calm: Arc<AtomicBool>,
}

impl World {
    /// Two servers, the first with a tenant with one timeline, whose creation is in the bucket.
    pub async fn begin(setting: Setting, story: &Story, root: &Utf8Path, clocks_agree: bool) -> anyhow::Result<Self> {
        let bucket: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let servers = ["first", "second"].map(|name| Server::new(name, root.join(name), &bucket, &setting, story));
        let tenant = TenantShardId::unsharded(TenantId::generate());
        let first = TimelineId::generate();
        let mut world = Self {
            setting,
            story: story.clone(),
            owner_name: Arc::new(Mutex::new(servers[0].name)),
            servers,
            owner: 0,
            is_to_attach: false,
            tenant,
            root: first,
            known: BTreeMap::new(),
            deleted: Vec::new(),
            weather: Weather::default(),
            clocks_agree,
            hosts: BTreeMap::new(),
            is_calm: Arc::default(),
        };
        for server in &mut world.servers {
            anyhow::ensure!(server.start().await, "{} does not start", server.name);
        }
        let manager = world.owner().manager().context("it has started, and is gone")?;
        let making = make_first(manager, tenant, first, setting.is_postgres);
        let made = world.owner().run("creation of a tenant", PATIENCE, making).await;
        anyhow::ensure!(made.transpose()?.unwrap_or(false), "no timeline was made");
        let (begins, postgres) = match setting.is_postgres {
            true => (BEGINS, Some(Postgres::new(BEGINS, CREATED))),
            false => (IMPORT_LSN, None),
        };
        let origin = Origin::new(first, begins, Model::default(), Vec::new(), postgres);
        world.know(origin, Kept::InBucket);
        world.settle_in().await;
        Ok(world)
    }

    fn know(&mut self, origin: Origin, kept: Kept) {
        if self.setting.is_postgres {
            self.hosts.insert(origin.id, listen(&origin, &self.is_calm));
        }
        self.known.insert(origin.id, Known::new(origin, kept, &self.setting));
    }

    /// The server that is to have the tenant.
    pub fn owner(&self) -> &Server {
        &self.servers[self.owner]
    }

    /// The owner's timeline `id`.
    pub fn timeline(&self, id: TimelineId) -> Option<Timeline> {
        self.owner().timeline(self.tenant, id)
    }

    /// One of the timelines that nobody wants to be deleted.
    pub fn any(&self, random: &mut Random) -> (TimelineId, Known) {
        let all: Vec<_> = self.known.iter().filter(|(_, known)| !known.is_doomed).collect();
        let (id, known) = all[random.below(all.len() as u64) as usize];
        (*id, known.clone())
    }

    /// What a reader of a timeline of the server with this number has to know.
    pub fn subject(&self, known: &Known, server: usize) -> Subject {
        Subject {
            origin: known.origin.clone(),
            promises: Arc::clone(&known.promises),
            setting: self.setting,
            gc_horizon: known.gc_horizon,
            weather: self.weather.clone(),
            story: self.story.clone(),
            server: self.servers[server].name,
            owner: Arc::clone(&self.owner_name),
            clocks_agree: self.clocks_agree,
        }
    }

    /// From now on this server is to have the tenant. What only the former owner's disk has may be lost.
    pub fn set_owner(&mut self, owner: usize) {
        self.owner = owner;
        self.is_to_attach = true;
        // Of two disks and the bucket the newest counts, which may be older than what one of them had.
        self.forget_said(0);
        self.forget_said(1);
        *self.owner_name.lock() = self.servers[owner].name;
        self.forget_disk();
    }

    /// Nothing that this server has said has to be so any more.
    pub fn forget_said(&mut self, server: usize) {
        self.known.values_mut().for_each(|known| known.said[server] = Said::default());
    }

    /// Notes what the owner says, which must not become less.
    pub fn note_said(&mut self) {
        let (owner, tenant) = (self.owner, self.tenant);
        let Some(manager) = self.servers[owner].manager() else { return };
        for (id, known) in &mut self.known {
            let Ok(timeline) = manager.get(tenant, *id) else { continue };
            let (durable, cutoff) = (timeline.disk_consistent_lsn(), timeline.window().cutoff);
            let now = Said { durable, cutoff, instance: timeline.instance() };
            let before = known.said[owner];
            if now.durable < before.durable {
                violation!(self.story, "{id} was on the disk up to {}, and is to {}", before.durable, now.durable);
            }
            if now.cutoff < before.cutoff && now.instance == before.instance {
                violation!(self.story, "the cutoff of {id} was {}, and is {}", before.cutoff, now.cutoff);
            }
            known.said[owner] = now;
        }
    }

    /// What only the owner's disk had may be lost.
    pub fn forget_disk(&mut self) {
        for known in self.known.values_mut() {
            known.kept = if known.kept == Kept::OnDisk { Kept::Perhaps } else { known.kept };
            for promise in known.promises.lock().iter_mut().filter(|promise| promise.kept == Kept::OnDisk) {
                promise.kept = Kept::Perhaps;
            }
        }
    }

    /// Waits until the owner has the tenant with all its timelines, however often it has to try, and checks that
    /// nothing is missing that was promised.
    pub async fn settle_in(&mut self) {
        let began = env::clock::now();
        loop {
            let missing = match self.try_settle_in().await {
                Ok(()) => break,
                Err(missing) => missing,
            };
            let since = self.weather.ends().map_or(began, |end| end.max(began));
            if env::clock::now().saturating_duration_since(since) > PATIENCE {
                violation!(self.story, "{} does not have everything: {missing}", self.owner().name);
                return;
            }
            env::clock::sleep(Duration::from_secs(5)).await;
        }
        self.check_promises();
        self.note_said();
        for (number, server) in self.servers.iter_mut().enumerate() {
            // A server that was told once from where to receive WAL knows it.
            if self.setting.is_postgres && number != self.owner {
                continue;
            }
            for known in self.known.values() {
                server.feed(self.tenant, &known.origin);
            }
        }
    }

    async fn try_settle_in(&mut self) -> Result<(), String> {
        let (tenant, owner) = (self.tenant, self.owner);
        for server in self.servers.iter_mut().filter(|server| server.is_dying()) {
            server.kill(Survival::Torn(env::random::u64())).await;
        }
        if !self.servers[owner].is_alive() && !self.servers[owner].start().await {
            return Err("it does not start".to_owned());
        }
        let manager = self.servers[owner].manager().ok_or("it has ended")?;
        let wanted: Vec<TimelineId> =
            self.known.iter().filter(|(_, known)| known.kept != Kept::Perhaps).map(|(id, _)| *id).collect();
        // One that was fenced, or was told to take the tenant back, does not know by itself that it is to have it.
        let is_lost = manager.remote_of(tenant).is_none_or(|remote| remote.fenced().is_some());
        if is_lost || std::mem::take(&mut self.is_to_attach) {
            let (manager, attach) = (manager.clone(), "attachment of a tenant");
            let attached =
                self.servers[owner].run(attach, PATIENCE, async move { manager.attach_tenant(tenant).await });
            match attached.await {
                Some(Ok(())) => tell!(self.story, "{} has attached the tenant", self.owner().name),
                other => {
                    self.is_to_attach = true;
                    return Err(format!("not attached: {other:?}"));
                }
            }
        }
        let there = |id: &TimelineId| manager.get(tenant, *id).is_ok();
        if manager.broken().is_empty() && wanted.iter().all(there) {
            return Ok(());
        }
        let again = manager.clone();
        let looked = self.servers[owner].run("another look", PATIENCE, async move {
            let reopened = again.reopen(tenant).await?;
            Ok::<_, ManageError>(reopened + again.look_again(tenant).await?)
        });
        let looked = looked.await;
        if manager.broken().is_empty() && wanted.iter().all(there) {
            return Ok(());
        }
        let missing: Vec<String> = wanted.iter().filter(|id| !there(id)).map(ToString::to_string).collect();
        Err(format!("{missing:?}; could not be opened: {:?}; last look: {looked:?}", manager.broken()))
    }

    /// What was promised is there; what may have been lost, and was, is forgotten.
    fn check_promises(&mut self) {
        let Some(manager) = self.owner().manager() else { return };
        let lost: Vec<TimelineId> = self
            .known
            .iter()
            .filter(|(id, known)| known.kept == Kept::Perhaps && manager.get(self.tenant, **id).is_err())
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            tell!(self.story, "timeline {id}, which nobody was promised, is not there");
            self.known.remove(&id);
        }
        for id in self.deleted.iter().filter(|id| manager.get(self.tenant, **id).is_ok()) {
            violation!(self.story, "timeline {id} was deleted, and is there again");
        }
        for (id, known) in &self.known {
            let Ok(timeline) = manager.get(self.tenant, *id) else { continue };
            let (last, promised) = (timeline.last_record_lsn(), known.origin.acknowledged());
            if last < promised {
                violation!(self.story, "timeline {id} ends at {last}, but everything to {promised} was acknowledged");
            }
            self.check_holds(&timeline, &known.promises);
        }
    }

    fn check_holds(&self, timeline: &Timeline, promises: &Promises) {
        let id = timeline.timeline_id();
        let holds = timeline.holds();
        let is_there = |promise: &Promise| holds.iter().any(|hold| hold.lsn == promise.lsn);
        let now = env::clock::now();
        promises.lock().retain(|promise| {
            let has_ended = promise.until.is_some_and(|until| until <= now);
            if is_there(promise) || has_ended && promise.name.is_none() {
                return !has_ended;
            }
            if promise.kept != Kept::Perhaps {
                violation!(self.story, "timeline {id} has lost a hold or lease: {promise:?}");
            }
            false
        });
    }

    /// Makes a branch of `ancestor` at `lsn`.
    pub async fn branch(&mut self, ancestor: TimelineId, lsn: Lsn) {
        let (tenant, id) = (self.tenant, TimelineId::generate());
        let (Some(manager), Some(known)) = (self.owner().manager(), self.known.get(&ancestor)) else { return };
        let origin = known.origin.branch(id, lsn);
        self.know(origin, Kept::Perhaps);
        let new = NewBranch { timeline_id: id, ancestor_id: ancestor, lsn: Some(lsn) };
        let made = self.owner().run("branch", PATIENCE, async move {
            let (branch, _) = manager.branch(tenant, new).await?;
            Ok::<_, ManageError>(branch.wait_uploaded(Duration::from_secs(60)).await)
        });
        let kept = match made.await {
            Some(Ok(true)) => Kept::InBucket,
            Some(Ok(false)) => Kept::OnDisk,
            Some(Err(error)) => {
                tell!(self.story, "no branch {id} of {ancestor} at {lsn}: {error}");
                Kept::Perhaps
            }
            None => Kept::Perhaps,
        };
        tell!(self.story, "branch {id} of {ancestor} at {lsn}: {kept:?}");
        if let Some(known) = self.known.get_mut(&id) {
            known.kept = kept;
        }
    }

    /// Deletes what should be gone already.
    pub async fn delete_again(&mut self) {
        let doomed: Vec<TimelineId> =
            self.known.iter().filter(|(_, known)| known.is_doomed).map(|(id, _)| *id).collect();
        for id in doomed {
            self.delete(id).await;
        }
    }

    /// Deletes a timeline.
    pub async fn delete(&mut self, id: TimelineId) {
        let (tenant, Some(manager)) = (self.tenant, self.owner().manager()) else { return };
        let deleting = self.owner().run("deletion", PATIENCE, async move { manager.delete_timeline(tenant, id).await });
        match deleting.await {
            Some(Ok(())) => {
                tell!(self.story, "timeline {id} is deleted");
                self.known.remove(&id);
                self.deleted.push(id);
            }
            Some(Err(ManageError::Precondition(reason))) => tell!(self.story, "timeline {id} is not deleted: {reason}"),
            other => {
                tell!(self.story, "timeline {id} may be deleted or not: {other:?}");
                if let Some(known) = self.known.get_mut(&id) {
                    (known.kept, known.is_doomed) = (Kept::Perhaps, true);
                }
            }
        }
    }
}

/// Makes a tenant with one timeline. Whether the bucket has it.
async fn make_first(
    manager: TenantManager,
    tenant: TenantShardId,
    id: TimelineId,
    is_postgres: bool,
) -> anyhow::Result<bool> {
    manager.create_tenant(tenant).await?;
    let (origin, conf) = match is_postgres {
        true => (Beginning { wal_segment_size: SEGMENT, ..Beginning::of_initdb(VERSION, SYSTEM, CREATED) }, manager.conf()),
        false => (Beginning::of_initdb(PgVersion::V15, 7, IMPORT_LSN), manager.conf()),
    };
    let prev_record_lsn = origin.import_lsn - 8;
    let new = NewTimeline { tenant_shard_id: tenant, timeline_id: id, origin, prev_record_lsn };
    Timeline::prepare(conf, tenant, id).await?;
    let remote = manager.remote_of(tenant);
    let timeline = Timeline::create_with(conf, new, Vec::new(), remote, &context()).await?;
    manager.add(timeline.clone()).await?;
    if is_postgres {
        timeline.put_batch(cluster(BEGINS), &context()).await?;
        timeline.finish_write(BEGINS, CREATED);
        timeline.flush(&context()).await?;
    }
    Ok(timeline.wait_uploaded(PATIENCE).await)
}
