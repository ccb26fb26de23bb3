//! All tenants and timelines of a working directory: opened at start, made, branched, deleted, closed.
//!
//! Reads go through a map that is locked for moments only. What changes the set of timelines comes one after the other.

mod load;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pageserver_api::shard::TenantShardId;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::timeline::{MANIFEST_NAME, Timeline};
use crate::config::PageServerConf;
use crate::context::{DownloadBehavior, RequestContext};
use crate::errors::{ErrorKind, StorageError};
use crate::task_mgr::TaskKind;
use crate::virtual_file::fs;

/// How often timelines are looked after.
const TEND_PERIOD: Duration = Duration::from_secs(1);

/// Why tenants and timelines could not be managed as asked.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// There is no such tenant or timeline.
    #[error("{0}")]
    NotFound(String),
    /// It exists, and is another one.
    #[error("{0}")]
    Conflict(String),
    /// Not now.
    #[error("{0}")]
    Busy(String),
    /// Something else must be done first.
    #[error("{0}")]
    Precondition(String),
    /// The LSN is not one that can be served.
    #[error("{0}")]
    NotAcceptable(String),
    /// The store failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// A branch to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewBranch {
    /// The new timeline.
    pub timeline_id: TimelineId,
    /// The timeline that it continues.
    pub ancestor_id: TimelineId,
    /// The last LSN that both have in common; the ancestor's last record if not given.
    pub lsn: Option<Lsn>,
}

/// Whether something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// Yes.
    New,
    /// No: the same was there.
    Existed,
}

/// Manages what a working directory holds. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TenantManager {
    inner: Arc<Inner>,
}

type Timelines = BTreeMap<TimelineId, Timeline>;

#[derive(Debug)]
struct Inner {
    conf: &'static PageServerConf,
    tenants: RwLock<BTreeMap<TenantShardId, Timelines>>,
    /// Timelines that could not be opened, and why.
    broken: RwLock<BTreeMap<(TenantShardId, TimelineId), String>>,
    /// Held while the set of tenants or timelines is changed.
    changes: tokio::sync::Mutex<()>,
    cancel: CancellationToken,
}

impl TenantManager {
    /// Opens everything that the working directory of `conf` holds. A timeline that cannot be opened does not keep the
    /// others from serving: see [`TenantManager::broken`].
    pub async fn load(conf: &'static PageServerConf) -> Result<Self, StorageError> {
        let manager = Self::load_idle(conf).await?;
        env::spawn::task("tend timelines", manager.clone().tend());
        Ok(manager)
    }

    /// As [`TenantManager::load`], but nothing happens by itself.
    pub async fn load_idle(conf: &'static PageServerConf) -> Result<Self, StorageError> {
        let ctx = RequestContext::new(TaskKind::TenantManager, DownloadBehavior::Error);
        let load::Loaded { tenants, broken } = load::load(conf, &ctx).await?;
        let inner = Arc::new(Inner {
            conf,
            tenants: RwLock::new(tenants),
            broken: RwLock::new(broken),
            changes: tokio::sync::Mutex::default(),
            cancel: CancellationToken::new(),
        });
        Ok(Self { inner })
    }

    /// The settings.
    pub fn conf(&self) -> &'static PageServerConf {
        self.inner.conf
    }

    /// All tenants.
    pub fn tenants(&self) -> Vec<TenantShardId> {
        self.inner.tenants.read().keys().copied().collect()
    }

    /// Timelines that could not be opened, and why.
    pub fn broken(&self) -> Vec<(TenantShardId, TimelineId, String)> {
        self.inner.broken.read().iter().map(|((tenant, id), reason)| (*tenant, *id, reason.clone())).collect()
    }

    /// Makes a tenant without timelines. One that exists stays as it is.
    pub async fn create_tenant(&self, id: TenantShardId) -> Result<(), ManageError> {
        let _changing = self.change().await?;
        self.create_tenant_locked(id).await
    }

    async fn create_tenant_locked(&self, id: TenantShardId) -> Result<(), ManageError> {
        if self.inner.tenants.read().contains_key(&id) {
            return Ok(());
        }
        let conf = self.inner.conf;
        let dir = conf.timelines_path(&id);
        fs::create_dir_all(&dir).await?;
        for parent in dir.ancestors().take_while(|parent| parent.starts_with(&conf.workdir)) {
            fs::fsync_dir(parent).await?;
        }
        self.inner.tenants.write().entry(id).or_default();
        Ok(())
    }

    /// Removes a tenant with all that is stored of it. One that is not there is no error.
    pub async fn delete_tenant(&self, id: TenantShardId) -> Result<(), ManageError> {
        let _changing = self.change().await?;
        let Some(timelines) = self.inner.tenants.write().remove(&id) else { return Ok(()) };
        self.inner.broken.write().retain(|(tenant, _), _| *tenant != id);
        for timeline in timelines.into_values() {
            timeline.shutdown().await;
        }
        let dir = self.inner.conf.tenant_path(&id);
        // Without manifests nothing of it comes back, however far the removal gets.
        for timeline in fs::list_dir(&self.inner.conf.timelines_path(&id)).await? {
            let dir = self.inner.conf.timelines_path(&id).join(timeline);
            fs::unlink(&dir.join(MANIFEST_NAME)).await?;
            fs::fsync_dir(&dir).await?;
        }
        fs::remove_tree(&dir).await?;
        Ok(fs::fsync_dir(&self.inner.conf.tenants_path()).await?)
    }

    /// The timelines of a tenant.
    pub fn timelines(&self, id: TenantShardId) -> Result<Vec<Timeline>, ManageError> {
        let tenants = self.inner.tenants.read();
        Ok(tenants.get(&id).ok_or_else(|| no_tenant(id))?.values().cloned().collect())
    }

    /// One timeline.
    pub fn get(&self, id: TenantShardId, timeline_id: TimelineId) -> Result<Timeline, ManageError> {
        let tenants = self.inner.tenants.read();
        let timelines = tenants.get(&id).ok_or_else(|| no_tenant(id))?;
        timelines.get(&timeline_id).cloned().ok_or_else(|| match self.inner.broken.read().get(&(id, timeline_id)) {
            Some(reason) => ManageError::Busy(format!("timeline {timeline_id} could not be opened: {reason}")),
            None => ManageError::NotFound(format!("timeline {timeline_id} of tenant {id} not found")),
        })
    }

    /// Takes over a timeline that was made of an import.
    pub async fn add(&self, timeline: Timeline) -> Result<(), ManageError> {
        let _changing = self.change().await?;
        let (tenant, id) = (timeline.tenant_shard_id(), timeline.timeline_id());
        self.create_tenant_locked(tenant).await?;
        match self.inner.tenants.write().entry(tenant).or_default().entry(id) {
            std::collections::btree_map::Entry::Occupied(_) => Err(exists(id)),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(timeline);
                Ok(())
            }
        }
    }

    /// Makes a branch. Costs the same whatever is stored.
    ///
    /// # Errors
    /// [`ManageError::NotAcceptable`] if the LSN cannot be read; [`ManageError::Conflict`] if the timeline exists and
    /// is not this branch.
    pub async fn branch(&self, id: TenantShardId, new: NewBranch) -> Result<(Timeline, Created), ManageError> {
        let _changing = self.change().await?;
        let ancestor = self.get(id, new.ancestor_id)?;
        if let Ok(present) = self.get(id, new.timeline_id) {
            return same_branch(&present, &new)
                .then_some((present, Created::Existed))
                .ok_or_else(|| exists(new.timeline_id));
        }
        let lsn = new.lsn.unwrap_or_else(|| ancestor.last_record_lsn());
        let branch = ancestor.branch(new.timeline_id, lsn).await.map_err(|error| match error.kind() {
            ErrorKind::Invalid => ManageError::NotAcceptable(error.to_string()),
            _ => ManageError::Storage(error),
        })?;
        self.inner.tenants.write().entry(id).or_default().insert(new.timeline_id, branch.clone());
        if ancestor.disk_consistent_lsn() < lsn {
            // Until then a crash would leave the branch waiting for its ancestor's WAL to come again.
            env::spawn::task("flush of an ancestor", async move { flush_or_warn(&ancestor).await });
        }
        Ok((branch, Created::New))
    }

    /// The timelines that branch off this one.
    pub fn children(&self, id: TenantShardId, timeline_id: TimelineId) -> Vec<TimelineId> {
        let tenants = self.inner.tenants.read();
        let timelines = tenants.get(&id).into_iter().flat_map(BTreeMap::values);
        timelines.filter(|timeline| timeline.is_child_of(timeline_id)).map(Timeline::timeline_id).collect()
    }

    /// Removes a timeline with all that is stored of it.
    ///
    /// # Errors
    /// [`ManageError::Precondition`] while others branch off it.
    pub async fn delete_timeline(&self, id: TenantShardId, timeline_id: TimelineId) -> Result<(), ManageError> {
        let _changing = self.change().await?;
        let timeline = self.get(id, timeline_id)?;
        let children = self.children(id, timeline_id);
        if let [first, ..] = children.as_slice() {
            let count = children.len();
            let reason = format!("timeline {timeline_id} has {count} branches, {first} among them: delete those first");
            return Err(ManageError::Precondition(reason));
        }
        self.inner.tenants.write().entry(id).or_default().remove(&timeline_id);
        let dir = timeline.dir().to_owned();
        timeline.shutdown().await;
        // From here on it is gone, even if the process ends before its files are.
        fs::unlink(&dir.join(MANIFEST_NAME)).await?;
        fs::fsync_dir(&dir).await?;
        fs::remove_tree(&dir).await?;
        Ok(fs::fsync_dir(&self.inner.conf.timelines_path(&id)).await?)
    }

    /// Makes durable what has arrived, as far as the disk permits, and closes everything.
    pub async fn shutdown(&self) {
        self.inner.cancel.cancel();
        let _changing = self.inner.changes.lock().await;
        let tenants = std::mem::take(&mut *self.inner.tenants.write());
        let all: Vec<Timeline> = tenants.into_values().flat_map(BTreeMap::into_values).collect();
        for timeline in &all {
            flush_or_warn(timeline).await;
        }
        for timeline in all {
            timeline.shutdown().await;
        }
    }

    async fn change(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, ManageError> {
        let changing = self.inner.changes.lock().await;
        if self.inner.cancel.is_cancelled() { Err(StorageError::Shutdown.into()) } else { Ok(changing) }
    }

    /// Looks after all timelines until shutdown.
    async fn tend(self) {
        let mut ticks = tokio::time::interval(TEND_PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.inner.cancel.cancelled() => return,
            }
            let timelines: Vec<Timeline> =
                self.inner.tenants.read().values().flat_map(BTreeMap::values).cloned().collect();
            for timeline in timelines.into_iter().filter(|timeline| timeline.broken().is_none()) {
                // What fails is tried again, and was logged where it failed.
                let _ = timeline.tend().await;
            }
        }
    }
}

async fn flush_or_warn(timeline: &Timeline) {
    let ctx = RequestContext::new(TaskKind::TenantManager, DownloadBehavior::Error);
    match timeline.flush(&ctx).await {
        Ok(()) | Err(StorageError::Shutdown) => {}
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

fn exists(id: TimelineId) -> ManageError {
    ManageError::Conflict(format!("timeline {id} exists already"))
}
