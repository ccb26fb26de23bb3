//! Two servers, one bucket, tenants with their branches, and those who use and operate them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use camino::Utf8Path;
use engine::tenant::manager::{ManageError, NewBranch, TenantManager};
use engine::tenant::timeline::{NewTimeline, Origin as Beginning, Timeline};
use pageserver_api::shard::TenantShardId;
use postgres_formats::version::PgVersion;
use simulated::aged::AgedStore;
use simulated::model::{IMPORT_LSN, Model};
use simulated::random::Random;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use crate::origin::Origin;
use crate::plan::Setting;
use crate::postgres::{BEGINS, CREATED, Postgres, cluster};
use crate::reader::{Kept, Promises, Subject};
use crate::server::{PATIENCE, Server, context};
use crate::story::{Story, tell};
use crate::tenant::Tenant;
use crate::wal::{SEGMENT, SYSTEM, VERSION};
use crate::walsender::{Reached, listen};
use crate::weather::Weather;

/// A timeline that was made.
#[derive(Clone)]
pub struct Known {
    /// The number of its tenant.
    pub tenant: usize,
    /// Where its WAL comes from.
    pub origin: Origin,
    /// Where it is written down that it exists.
    pub kept: Kept,
    /// Moments of it that have to be kept.
    pub promises: Promises,
    /// The least that was ever said to be kept of it, in bytes of WAL.
    pub gc_horizon: u64,
    /// An owner that did not know of it may have removed what it inherits.
    pub may_lack: bool,
    /// Its deletion has failed, and will be tried again: until then nothing of it is uploaded.
    is_doomed: bool,
    /// What each server has said of it that must still be so after a restart.
    pub said: [Said; 2],
}

/// What a server says of a timeline, which never becomes less on the same disk.
#[derive(Clone, Copy, Default)]
pub struct Said {
    /// So far it is on the disk.
    pub durable: Lsn,
    /// Below this nobody can read it. What was only said, and not written down, may come back with a restart.
    pub cutoff: Lsn,
    /// The server's life, and the open timeline, that said so.
    pub instance: Option<(u64, u64)>,
}

impl Known {
    fn new(tenant: usize, origin: Origin, kept: Kept, setting: &Setting) -> Self {
        let (promises, said) = Default::default();
        let gc_horizon = setting.gc_horizon;
        Self { tenant, origin, kept, promises, gc_horizon, may_lack: false, is_doomed: false, said }
    }

    /// What only its owner's disk had may be lost.
    fn forget_disk(&mut self) {
        self.kept = if self.kept == Kept::OnDisk { Kept::Perhaps } else { self.kept };
        for promise in self.promises.lock().iter_mut().filter(|promise| promise.kept == Kept::OnDisk) {
            promise.kept = Kept::Perhaps;
        }
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
    /// The tenants.
    pub tenants: Vec<Tenant>,
    /// What both servers have views of.
    pub bucket: Arc<AgedStore>,
    /// All timelines that are there, or may be.
    pub known: BTreeMap<TimelineId, Known>,
    /// Those that nobody was promised, and that are gone since another server has their tenant. One whose disk has them
    /// still may be the next to have it.
    pub lost: BTreeMap<TimelineId, Known>,
    /// Those that were deleted.
    pub deleted: Vec<TimelineId>,
    /// The tenant in which each timeline was made, also those that are not there any more.
    pub homes: BTreeMap<TimelineId, usize>,
    /// What fails.
    pub weather: Weather,
    /// Whether no clock is ever set.
    pub clocks_agree: bool,
    /// The Postgres of each timeline, if there is one.
    hosts: BTreeMap<TimelineId, Reached>,
    /// Nothing goes wrong on the way to them any more.
    pub is_calm: Arc<AtomicBool>,
}

impl World {
    /// Two servers that take turns at having a tenant with one timeline, whose creation is in the bucket.
    pub async fn begin(setting: Setting, story: &Story, root: &Utf8Path, clocks_agree: bool) -> anyhow::Result<Self> {
        let bucket = Arc::new(AgedStore::default());
        let servers = ["first", "second"].map(|name| Server::new(name, root.join(name), &bucket, &setting, story));
        let tenant = |number: usize| Tenant::new(number % servers.len(), servers[number % servers.len()].name);
        let mut world = Self {
            setting,
            story: story.clone(),
            tenants: (0..setting.tenants).map(tenant).collect(),
            servers,
            bucket,
            known: BTreeMap::new(),
            lost: BTreeMap::new(),
            deleted: Vec::new(),
            homes: BTreeMap::new(),
            weather: Weather::default(),
            clocks_agree,
            hosts: BTreeMap::new(),
            is_calm: Arc::default(),
        };
        for server in &mut world.servers {
            anyhow::ensure!(server.start().await, "{} does not start", server.name);
        }
        for tenant in 0..setting.tenants {
            world.make(tenant).await?;
        }
        world.settle_in().await;
        Ok(world)
    }

    /// Makes a tenant and its first timeline.
    async fn make(&mut self, number: usize) -> anyhow::Result<()> {
        let Tenant { id: tenant, root, .. } = self.tenants[number];
        let manager = self.owner_of(number).manager().context("it has started, and is gone")?;
        let making = make_first(manager, tenant, root, self.setting.is_postgres);
        let made = self.owner_of(number).run("creation of a tenant", PATIENCE, making).await;
        anyhow::ensure!(made.transpose()?.unwrap_or(false), "no timeline was made");
        let (begins, postgres) = match self.setting.is_postgres {
            true => (BEGINS, Some(Postgres::new(BEGINS, CREATED))),
            false => (IMPORT_LSN, None),
        };
        let origin = Origin::new(root, begins, Model::default(), Vec::new(), postgres);
        self.add(Known::new(number, origin, Kept::InBucket, &self.setting));
        Ok(())
    }

    fn add(&mut self, known: Known) {
        let id = known.origin.id;
        if self.setting.is_postgres {
            self.hosts.insert(id, listen(&known.origin, &self.is_calm));
        }
        self.homes.insert(id, known.tenant);
        self.known.insert(id, known);
    }

    /// The server that is to have a tenant.
    pub fn owner_of(&self, tenant: usize) -> &Server {
        &self.servers[self.tenants[tenant].owner]
    }

    /// The server that is to have a timeline.
    pub fn server_of(&self, id: TimelineId) -> &Server {
        self.owner_of(self.homes[&id])
    }

    /// A timeline as its tenant's owner has it.
    pub fn timeline(&self, id: TimelineId) -> Option<Timeline> {
        self.server_of(id).timeline(self.tenants[self.homes[&id]].id, id)
    }

    /// One of a tenant's timelines that nobody wants to be deleted.
    pub fn any(&self, tenant: usize, random: &mut Random) -> (TimelineId, Known) {
        let is_one = |known: &Known| known.tenant == tenant && !known.is_doomed;
        let all: Vec<_> = self.known.iter().filter(|(_, known)| is_one(known)).collect();
        let (id, known) = all[random.below(all.len() as u64) as usize];
        (*id, known.clone())
    }

    /// How many timelines a tenant has, or may have.
    pub fn count(&self, tenant: usize) -> usize {
        self.known.values().filter(|known| known.tenant == tenant).count()
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
            owner: Arc::clone(&self.tenants[known.tenant].owner_name),
            clocks_agree: self.clocks_agree,
            may_lack: known.may_lack,
        }
    }

    /// From now on this server is to have the tenant. What only the former owner's disk has may be lost.
    pub fn set_owner(&mut self, tenant: usize, owner: usize) {
        let it = &mut self.tenants[tenant];
        (it.owner, it.is_to_attach) = (owner, true);
        *it.owner_name.lock() = self.servers[owner].name;
        let all = self.known.values_mut().chain(self.lost.values_mut());
        for known in all.filter(|known| known.tenant == tenant) {
            // Of two disks and the bucket the newest counts, which may be older than what one of them had.
            known.said = Default::default();
            known.forget_disk();
        }
    }

    /// This server has lost its disk: nothing that it has said has to be so any more.
    pub fn forget_disk(&mut self, server: usize) {
        for known in self.known.values_mut().chain(self.lost.values_mut()) {
            known.said[server] = Said::default();
            if self.tenants[known.tenant].owner == server {
                known.forget_disk();
            }
        }
    }

    /// Makes a branch of `ancestor` at `lsn`.
    pub async fn branch(&mut self, ancestor: TimelineId, lsn: Lsn) {
        let (id, Some(known)) = (TimelineId::generate(), self.known.get(&ancestor)) else { return };
        let (number, Some(manager)) = (known.tenant, self.owner_of(known.tenant).manager()) else { return };
        let tenant = self.tenants[number].id;
        let origin = known.origin.branch(id, lsn);
        let may_lack = known.may_lack;
        self.add(Known { may_lack, ..Known::new(number, origin, Kept::Perhaps, &self.setting) });
        let new = NewBranch { timeline_id: id, ancestor_id: ancestor, lsn: Some(lsn) };
        let made = self.owner_of(number).run("branch", PATIENCE, async move {
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
        let (owner, tenant) = (self.server_of(id), self.tenants[self.homes[&id]].id);
        let Some(manager) = owner.manager() else { return };
        let deleting = owner.run("deletion", PATIENCE, async move { manager.delete_timeline(tenant, id).await });
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
pub(crate) async fn make_first(
    manager: TenantManager,
    tenant: TenantShardId,
    id: TimelineId,
    is_postgres: bool,
) -> anyhow::Result<bool> {
    manager.create_tenant(tenant).await?;
    let conf = manager.conf();
    let origin = match is_postgres {
        true => Beginning { wal_segment_size: SEGMENT, ..Beginning::of_initdb(VERSION, SYSTEM, CREATED) },
        false => Beginning::of_initdb(PgVersion::V15, 7, IMPORT_LSN),
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
