//! Manages all tenants and timelines of a working directory: opens them at startup, creates, branches, deletes and
//! closes them.
//!
//! Reads go through a map that is locked only briefly. Changes to a tenant's set of timelines are serialized per
//! tenant; a change that waits for the bucket does not hold up other tenants.

mod archival;
mod attach;
mod delete;
mod detach;
mod elsewhere;
mod fleet;
mod garbage;
mod handover;
mod inventory;
mod journals;
mod keeper;
mod leasing;
mod load;
mod moving;
mod open_tenant;
mod orders;
mod placing;
mod receivers;
mod reconcile;
mod removal;
mod reopen;
mod standby;
mod standbys;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pageserver_api::shard::TenantShardId;
use parking_lot::RwLock;
use tokio::sync::{Notify, OwnedMutexGuard, RwLockReadGuard, watch};
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utils::sync::keyed_lock::KeyedLock;

pub use self::elsewhere::{Elsewhere, TimelineElsewhere};
pub use self::fleet::{FleetLook, LeaseSeen, ServerSaid, TenantOwner};
use self::inventory::{Broken, Tenant, local_tenants};
pub use self::journals::Journals;
use self::journals::Kept;
use self::keeper::{Keeper, Seen};
pub use self::placing::OrderStatus;
use self::placing::Placing;
pub use self::receivers::Receivers;
use self::standbys::Standby;
pub use self::standbys::StandbyInfo;
use super::eviction;
use super::timeline::{Timeline, Told};
use super::warm;
use crate::config::PageServerConf;
use crate::context::{DownloadBehavior, RequestContext};
use crate::task_mgr::TaskKind;
use errors::{ErrorKind, StorageError};

/// How often timelines get their periodic maintenance.
const TEND_PERIOD: Duration = Duration::from_secs(1);
/// How long shutdown waits for pending uploads. The next start continues them.
const SHUTDOWN_UPLOAD: Duration = Duration::from_secs(8);

/// Why an operation on tenants or timelines failed.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// There is no such tenant or timeline.
    #[error("{0}")]
    NotFound(String),
    /// It exists already, and is not the same.
    #[error("{0}")]
    Conflict(String),
    /// Not possible right now.
    #[error("{0}")]
    Busy(String),
    /// Another server owns the tenant, and this one is its standby.
    #[error("{0}")]
    Elsewhere(String),
    /// Something else must be done first.
    #[error("{0}")]
    Precondition(String),
    /// The LSN cannot be served.
    #[error("{0}")]
    NotAcceptable(String),
    /// The storage engine failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// A branch to create.
#[derive(Clone, Copy, Debug)]
pub struct NewBranch {
    /// The new timeline.
    pub timeline_id: TimelineId,
    /// The timeline that it continues.
    pub ancestor_id: TimelineId,
    /// The last LSN that both have in common; defaults to the ancestor's last record.
    pub lsn: Option<Lsn>,
}

/// Whether a timeline was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// It was created.
    New,
    /// An identical one existed already.
    Existed,
}

/// Manages the contents of a working directory. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TenantManager {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    conf: &'static PageServerConf,
    /// No background work is done.
    idle: bool,
    tenants: RwLock<BTreeMap<TenantShardId, Tenant>>,
    /// Timelines that could not be opened, and why.
    broken: RwLock<Broken>,
    /// Locked per tenant while the tenant or its set of timelines is changed.
    changes: KeyedLock<TenantShardId>,
    /// Shared by all changes; taken exclusively by shutdown.
    running: Arc<tokio::sync::RwLock<()>>,
    cancel: CancellationToken,
    /// The task that records hot layers; it ends some time after `cancel`.
    warming: parking_lot::Mutex<Option<tokio::task::JoinHandle<()>>>,
    journals: OnceLock<Kept>,
    /// Cancelled when owners of other tenants may be followed: whoever takes a tenant over needs `journals`.
    may_follow: CancellationToken,
    /// Tenants of other servers whose place this one takes when they are gone.
    standbys: RwLock<BTreeMap<TenantShardId, Standby>>,
    standbys_changed: Notify,
    /// How many tenants this server has taken over by itself, or was handed over.
    taken_over: watch::Sender<u64>,
    placing: Placing,
}

/// Guards of a tenant that is being changed.
struct Changing<'a> {
    _tenant: OwnedMutexGuard<()>,
    _running: RwLockReadGuard<'a, ()>,
}

impl TenantManager {
    /// Opens everything in the working directory of `conf`. A timeline that cannot be opened does not prevent others
    /// from serving: see [`TenantManager::broken`].
    pub async fn load(conf: &'static PageServerConf) -> Result<Self, StorageError> {
        let keeper = Keeper::begin(conf).await;
        let manager = Self::load_all(conf, false).await?;
        if let Some(keeper) = keeper {
            env::spawn::vital("lease of this server", manager.clone().keep_lease(keeper));
            env::spawn::vital("owners of other tenants", manager.clone().follow_owners());
            env::spawn::vital("orders about tenants", manager.clone().follow_orders());
        }
        env::spawn::vital("tend timelines", manager.clone().tend());
        if !conf.retention.gc_period.is_zero() {
            env::spawn::vital("history that nothing keeps", manager.clone().collect_garbage_periodically());
        }
        let all = manager.clone();
        let keeper = eviction::keep(conf, move || all.all_timelines(), manager.inner.cancel.clone());
        env::spawn::vital("local disk", keeper);
        let all = manager.clone();
        let followed = manager.clone();
        let standbys = move || followed.inner.standbys.read().keys().copied().collect();
        let warming = warm::keep(conf, move || all.open_tenants(), standbys, manager.inner.cancel.clone());
        *manager.inner.warming.lock() = Some(env::spawn::task("hot layers", warming));
        Ok(manager)
    }

    /// As [`TenantManager::load`], but without background tasks.
    pub async fn load_idle(conf: &'static PageServerConf) -> Result<Self, StorageError> {
        Self::load_all(conf, true).await
    }

    async fn load_all(conf: &'static PageServerConf, idle: bool) -> Result<Self, StorageError> {
        conf.configure_caches();
        let ctx = RequestContext::new(TaskKind::TenantManager, DownloadBehavior::Error);
        let load::Loaded { tenants, broken } = load::load(conf, &ctx).await?;
        let standbys = local_tenants(conf).await?.standbys.into_iter().map(|id| (id, Standby::default())).collect();
        let inner = Arc::new(Inner {
            conf,
            idle,
            tenants: RwLock::default(),
            broken: RwLock::new(broken),
            changes: KeyedLock::default(),
            running: Arc::default(),
            cancel: CancellationToken::new(),
            warming: parking_lot::Mutex::default(),
            journals: OnceLock::new(),
            may_follow: CancellationToken::new(),
            standbys: RwLock::new(standbys),
            standbys_changed: Notify::new(),
            taken_over: watch::Sender::default(),
            placing: Placing::default(),
        });
        let manager = Self { inner };
        tenants.into_iter().for_each(|(id, tenant)| manager.adopt(id, tenant));
        Ok(manager)
    }

    /// The settings.
    pub fn conf(&self) -> &'static PageServerConf {
        self.inner.conf
    }

    /// All tenants.
    pub fn tenants(&self) -> Vec<TenantShardId> {
        self.inner.tenants.read().keys().copied().collect()
    }

    /// All timelines of all tenants.
    pub fn all_timelines(&self) -> Vec<Timeline> {
        self.inner.tenants.read().values().flat_map(|tenant| tenant.timelines.values()).cloned().collect()
    }

    fn open_tenants(&self) -> Vec<warm::Open> {
        let open = |(id, tenant): (&TenantShardId, &Tenant)| warm::Open {
            tenant: *id,
            timelines: tenant.timelines.values().cloned().collect(),
            remote: tenant.remote.clone(),
        };
        self.inner.tenants.read().iter().map(open).collect()
    }

    /// Timelines that could not be opened, and why.
    pub fn broken(&self) -> Vec<(TenantShardId, TimelineId, String)> {
        self.inner.broken.read().iter().map(|((tenant, id), reason)| (*tenant, *id, reason.clone())).collect()
    }

    /// Creates a tenant without timelines, as [`TenantManager::attach_tenant`] does. An existing one stays as it is.
    pub async fn create_tenant(&self, id: TenantShardId) -> Result<(), ManageError> {
        self.check_not_standby(id)?;
        if self.is_drained() && !self.inner.tenants.read().contains_key(&id) {
            self.check_not_drained().await?;
        }
        self.attach_tenant(id).await
    }

    /// The timelines of a tenant.
    pub fn timelines(&self, id: TenantShardId) -> Result<Vec<Timeline>, ManageError> {
        let tenants = self.inner.tenants.read();
        let tenant = tenants.get(&id).ok_or_else(|| self.no_tenant(id))?;
        Ok(tenant.timelines.values().cloned().collect())
    }

    /// One timeline.
    pub fn get(&self, id: TenantShardId, timeline_id: TimelineId) -> Result<Timeline, ManageError> {
        let tenants = self.inner.tenants.read();
        let tenant = tenants.get(&id).ok_or_else(|| self.no_tenant(id))?;
        tenant.timelines.get(&timeline_id).cloned().ok_or_else(|| {
            let broken = self.inner.broken.read();
            match (&tenant.unattached, broken.get(&(id, timeline_id))) {
                (Some(reason), _) => not_attached(id, reason),
                (None, Some(reason)) => {
                    ManageError::Busy(format!("timeline {timeline_id} could not be opened: {reason}"))
                }
                (None, None) => ManageError::NotFound(format!("timeline {timeline_id} of tenant {id} not found")),
            }
        })
    }

    /// Adopts a timeline that was created by an import.
    pub async fn add(&self, timeline: Timeline) -> Result<(), ManageError> {
        let (tenant, id) = (timeline.tenant_shard_id(), timeline.timeline_id());
        let _changing = self.change(tenant).await?;
        self.check_not_standby(tenant)?;
        self.attach_tenant_locked(tenant).await?;
        if self.remote_of(tenant).is_some() != timeline.remote().is_some() {
            let reason = format!("timeline {id} was not made for the bucket that its tenant is in");
            return Err(StorageError::Internal(reason).into());
        }
        match self.inner.tenants.write().entry(tenant).or_default().timelines.entry(id) {
            std::collections::btree_map::Entry::Occupied(_) => Err(exists(id)),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(timeline);
                Ok(())
            }
        }
    }

    /// Creates a branch. The cost does not depend on how much is stored.
    ///
    /// # Errors
    /// [`ManageError::NotAcceptable`] if the LSN cannot be read; [`ManageError::Conflict`] if the timeline exists but
    /// is not this branch.
    pub async fn branch(&self, id: TenantShardId, new: NewBranch) -> Result<(Timeline, Created), ManageError> {
        self.branch_with(id, new, None).await
    }

    /// As [`TenantManager::branch`], but stores `told` (the branch's name and WAL source) with it.
    pub async fn branch_with(
        &self,
        id: TenantShardId,
        new: NewBranch,
        told: Option<Told>,
    ) -> Result<(Timeline, Created), ManageError> {
        let _changing = self.change(id).await?;
        let ancestor = self.get(id, new.ancestor_id)?;
        if let Ok(present) = self.get(id, new.timeline_id) {
            return same_branch(&present, &new)
                .then_some((present, Created::Existed))
                .ok_or_else(|| exists(new.timeline_id));
        }
        if ancestor.is_archived() {
            return Err(ManageError::NotAcceptable(format!(
                "timeline {} is archived: unarchive it before a branch of it is made",
                new.ancestor_id
            )));
        }
        let lsn = new.lsn.unwrap_or_else(|| ancestor.last_record_lsn());
        let branch = ancestor.branch_with(new.timeline_id, lsn, told).await.map_err(|error| match error.kind() {
            ErrorKind::Invalid => ManageError::NotAcceptable(error.to_string()),
            _ => ManageError::Storage(error),
        })?;
        self.inner.tenants.write().entry(id).or_default().timelines.insert(new.timeline_id, branch.clone());
        if ancestor.disk_consistent_lsn() < lsn {
            // Without this flush a crash would leave the branch waiting for its ancestor's WAL to arrive again.
            env::spawn::task("flush of an ancestor", async move { flush_or_warn(&ancestor).await });
        }
        Ok((branch, Created::New))
    }

    /// The direct branches of a timeline.
    pub fn children(&self, id: TenantShardId, timeline_id: TimelineId) -> Vec<TimelineId> {
        let tenants = self.inner.tenants.read();
        let timelines = tenants.get(&id).into_iter().flat_map(|tenant| tenant.timelines.values());
        timelines.filter(|timeline| timeline.is_child_of(timeline_id)).map(Timeline::timeline_id).collect()
    }

    /// Flushes what has arrived, as far as the disk permits, and closes everything.
    pub async fn shutdown(&self) {
        self.inner.cancel.cancel();
        let warming = self.inner.warming.lock().take();
        if let Some(warming) = warming {
            // Hot layers are recorded before the timelines close; a panic in that task loses no more than a hint.
            let _ = warming.await;
        }
        let _alone = self.inner.running.write().await;
        let tenants = std::mem::take(&mut *self.inner.tenants.write());
        let remotes: Vec<_> = tenants.values().filter_map(|tenant| tenant.remote.clone()).collect();
        let all: Vec<Timeline> = tenants.into_values().flat_map(|tenant| tenant.timelines.into_values()).collect();
        for timeline in &all {
            flush_or_warn(timeline).await;
        }
        let uploads = all.iter().map(|timeline| timeline.wait_uploaded(SHUTDOWN_UPLOAD));
        let uploaded = futures_util::future::join_all(uploads).await;
        let left = uploaded.iter().filter(|uploaded| !**uploaded).count();
        if left > 0 {
            tracing::warn!("{left} timelines are not uploaded to their end: the next start goes on with it");
        }
        for timeline in all {
            timeline.shutdown().await;
        }
        for remote in remotes.iter().filter(|remote| remote.fenced().is_some()) {
            self.mark_fenced(remote.tenant_shard_id()).await;
        }
    }

    fn no_tenant(&self, id: TenantShardId) -> ManageError {
        self.check_not_standby(id).err().unwrap_or_else(|| no_tenant(id))
    }

    /// Waits until nobody else changes this tenant.
    async fn change(&self, id: TenantShardId) -> Result<Changing<'_>, ManageError> {
        let _running = self.inner.running.read().await;
        let _tenant = self.inner.changes.lock(id).await;
        let changing = Changing { _tenant, _running };
        if self.inner.cancel.is_cancelled() { Err(StorageError::Shutdown.into()) } else { Ok(changing) }
    }

    /// Maintains all timelines until shutdown.
    async fn tend(self) {
        let mut ticks = env::clock::interval(TEND_PERIOD);
        let (mut seen, mut lease_seen) = (HashMap::new(), Seen::default());
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.inner.cancel.cancelled() => return,
            }
            self.check_generations(&mut seen);
            self.look_for_lease(&mut lease_seen);
            for timeline in self.all_timelines().into_iter().filter(|timeline| timeline.broken().is_none()) {
                // Failures were logged where they occurred, and are retried.
                let _ = timeline.tend().await;
            }
        }
    }
}

async fn flush_or_warn(timeline: &Timeline) {
    let ctx = RequestContext::new(TaskKind::TenantManager, DownloadBehavior::Error);
    match timeline.flush(&ctx).await {
        Ok(()) | Err(StorageError::Shutdown | StorageError::Fenced { .. }) => {}
        Err(error) => tracing::warn!(timeline = %timeline.timeline_id(), "not flushed: {error}"),
    }
}

fn same_branch(present: &Timeline, new: &NewBranch) -> bool {
    let ancestor = present.origin().ancestor;
    ancestor.is_some_and(|is| is.timeline_id == new.ancestor_id && new.lsn.is_none_or(|lsn| lsn == is.lsn))
}

fn no_tenant(id: TenantShardId) -> ManageError {
    ManageError::NotFound(format!("tenant {id} not found"))
}

fn not_attached(id: TenantShardId, reason: &str) -> ManageError {
    ManageError::Busy(format!("tenant {id} could not be attached: {reason}"))
}

fn exists(id: TimelineId) -> ManageError {
    ManageError::Conflict(format!("timeline {id} exists already"))
}
