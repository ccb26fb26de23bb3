//! Moves tenants between servers: attaching, detaching, and reacting when another server takes a tenant over.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pageserver_api::shard::TenantShardId;

use super::inventory::{DETACHED_NAME, Tenant};
use super::journals::Kept;
use super::{ManageError, TenantManager, flush_or_warn, no_tenant, open_tenant, removal};
use crate::tenant::remote::{Purpose, TenantRemote};
use crate::tenant::timeline::Timeline;
use errors::StorageError;
use virtual_file::fs;

/// How long a detach waits for pending uploads.
const DETACH_UPLOAD: Duration = Duration::from_secs(30);
/// While WAL arrives, the generation is checked at least this often.
const CHECK_PERIOD: Duration = Duration::from_secs(30);

/// Pauses before the second and third listing of an attached tenant's timelines.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(600)];

impl TenantManager {
    /// Takes a tenant over from its current owner and opens its timelines as stored in the bucket. A tenant that
    /// exists nowhere is created without timelines; one that is already attached here stays as it is, unless another
    /// server has taken it over, whether this one knew that yet or not: then it is taken back.
    pub async fn attach_tenant(&self, id: TenantShardId) -> Result<(), ManageError> {
        let _changing = self.change(id).await?;
        self.leave_lost(id).await?;
        self.attach_tenant_locked(id).await
    }

    /// Attaches a tenant, whoever owns it.
    pub(super) async fn attach_tenant_locked(&self, id: TenantShardId) -> Result<(), ManageError> {
        match self.attach_for(id, Purpose::Create).await? {
            true => Ok(()),
            false => {
                let reason = format!("tenant {id} is another server's, although it was to be taken");
                Err(StorageError::Internal(reason).into())
            }
        }
    }

    /// Attaches a tenant unless it is here. False if another server has it, and `purpose` does not permit to take it.
    pub(super) async fn attach_for(&self, id: TenantShardId, purpose: Purpose) -> Result<bool, ManageError> {
        if self.inner.tenants.read().get(&id).is_some_and(|tenant| tenant.unattached.is_none()) {
            return Ok(true);
        }
        let Some(Kept(journals)) = self.inner.journals.get() else { return self.attach_now(id, purpose).await };
        // A restart goes on with it as a standby's, unless it was none.
        let is_standby = self.inner.standbys.read().contains_key(&id);
        // Without a bucket nobody else can have had it.
        if self.inner.conf.remote_storage.is_none() || fault::planted(fault::Bug::ForgetAtTakeover) {
            journals.forget(id).await?;
        }
        journals.stand_still(id, is_standby).await?;
        let attached = self.attach_now(id, purpose).await;
        journals.go_on(id);
        attached
    }

    async fn attach_now(&self, id: TenantShardId, purpose: Purpose) -> Result<bool, ManageError> {
        let conf = self.inner.conf;
        fs::create_dir_durably(&conf.timelines_path(&id), &conf.workdir).await?;
        let Some(storage) = self.inner.conf.remote_storage.clone() else {
            self.inner.tenants.write().entry(id).or_default();
            return Ok(true);
        };
        let Some((tenant, broken)) = open_tenant::take_for(self.inner.conf, storage, id, purpose).await? else {
            return Ok(false);
        };
        let tenant = tenant.ok_or_else(|| StorageError::Internal(format!("tenant {id} was made, and is not there")))?;
        self.take_in(id, &tenant).await?;
        self.unmark_attached(id).await?;
        let mut all_broken = self.inner.broken.write();
        all_broken.retain(|(tenant, _), _| *tenant != id);
        all_broken.extend(broken);
        drop(all_broken);
        self.adopt(id, tenant);
        Ok(true)
    }

    /// Takes in what was journaled of a tenant: whoever is served afterwards sees all that was acknowledged.
    async fn take_in(&self, id: TenantShardId, tenant: &Tenant) -> Result<(), StorageError> {
        let Some(Kept(journals)) = self.inner.journals.get() else { return Ok(()) };
        let timelines: Vec<Timeline> = tenant.timelines.values().cloned().collect();
        let taken = journals.take_in(id, timelines.clone()).await;
        if taken.is_err() {
            for timeline in timelines {
                timeline.shutdown().await;
            }
        }
        taken
    }

    /// Closes a tenant that another server has taken over, whether this one knew that yet or not. Its files stay, for
    /// whoever attaches it next.
    ///
    /// # Errors
    /// Those of the bucket: without it nobody knows whose the tenant is.
    pub(super) async fn leave_lost(&self, id: TenantShardId) -> Result<(), StorageError> {
        let Some(remote) = self.remote_of(id) else { return Ok(()) };
        match remote.check().await {
            Err(StorageError::Fenced { .. }) => {}
            other => return other,
        }
        let Some(tenant) = self.inner.tenants.write().remove(&id) else { return Ok(()) };
        tracing::warn!(tenant = %id, "another server has taken the tenant over: what is here of it is closed");
        for timeline in tenant.timelines.into_values() {
            timeline.shutdown().await;
        }
        Ok(())
    }

    /// Serves the tenant from now on.
    pub(super) fn adopt(&self, id: TenantShardId, tenant: Tenant) {
        if let Some(remote) = &tenant.remote {
            env::spawn::vital("watch over a tenant's generation", self.clone().when_fenced(Arc::clone(remote)));
            if !self.inner.idle {
                env::spawn::vital("look again for timelines", self.clone().look_again_later(id, remote.generation()));
            }
        }
        let attached = Some(env::clock::now());
        self.inner.tenants.write().insert(id, Tenant { attached, ..tenant });
    }

    /// Some time after attaching the tenant, checks whether a new listing shows more timelines.
    async fn look_again_later(self, id: TenantShardId, generation: u32) {
        for pause in LOOK_AGAIN {
            tokio::select! {
                () = env::clock::sleep(pause) => {}
                () = self.inner.cancel.cancelled() => return,
            }
            if self.remote_of(id).is_none_or(|remote| remote.generation() != generation) {
                return;
            }
            if let Err(error) = self.look_again(id).await {
                tracing::info!(tenant = %id, "not looked again for timelines: {error}");
            }
        }
    }

    /// Lists the tenant's timelines in the bucket again and opens those missing from the listing at attach time,
    /// because some buckets' listings lag. Returns how many were opened.
    pub async fn look_again(&self, id: TenantShardId) -> Result<usize, ManageError> {
        let _changing = self.change(id).await?;
        let Some(remote) = self.remote_of(id) else { return Ok(0) };
        let open = self.timelines(id)?.into_iter().map(|timeline| (timeline.timeline_id(), timeline)).collect();
        let (found, broken) = open_tenant::look_again(self.inner.conf, &remote, &open).await?;
        for timeline in found.keys() {
            tracing::warn!(tenant = %id, %timeline, "the bucket's list did not name this timeline at first");
        }
        let count = found.len();
        self.inner.broken.write().extend(broken);
        self.inner.tenants.write().entry(id).or_default().timelines.extend(found);
        Ok(count)
    }

    /// When another server takes the tenant over, makes sure that the next start does not take it back.
    async fn when_fenced(self, remote: Arc<TenantRemote>) {
        let (id, generation, mut fenced) = (remote.tenant_shard_id(), remote.generation(), remote.watch_fenced());
        // Do not keep the tenant alive: it may be detached before it is fenced.
        drop(remote);
        tokio::select! {
            seen = fenced.wait_for(Option::is_some) => if seen.is_err() { return },
            // Shutdown marks those that are fenced by then.
            () = self.inner.cancel.cancelled() => return,
        }
        let Ok(_changing) = self.change(id).await else { return };
        if self.remote_of(id).is_some_and(|remote| remote.generation() == generation) {
            self.mark_fenced(id).await;
        }
    }

    pub(super) async fn mark_fenced(&self, id: TenantShardId) {
        if let Err(error) = self.mark_detached(id, "another server has taken the tenant over").await {
            tracing::error!(tenant = %id, "a restart would take the tenant back: {error}");
        }
    }

    pub(super) async fn mark_detached(&self, id: TenantShardId, reason: &str) -> Result<(), StorageError> {
        virtual_file::write_file_durably(&self.inner.conf.tenant_path(&id).join(DETACHED_NAME), reason.as_bytes()).await
    }

    /// Completes the tenant's uploads and releases it, so that another server may attach it. Its files are removed
    /// from the local disk.
    ///
    /// # Errors
    /// [`ManageError::Busy`] if the uploads do not complete in time: then nothing changes;
    /// [`ManageError::Precondition`] without a bucket.
    pub async fn detach_tenant(&self, id: TenantShardId) -> Result<(), ManageError> {
        let _changing = self.change(id).await?;
        let timelines = self.timelines(id)?;
        self.check_attached(id)?;
        let Some(remote) = self.remote_of(id) else {
            let reason = format!(
                "tenant {id} is in no bucket: nothing of it is kept elsewhere. To remove it for good, delete it"
            );
            return Err(ManageError::Precondition(reason));
        };
        let fenced = remote.fenced().is_some();
        if !fenced {
            upload_all(&timelines).await?;
        }
        self.mark_detached(id, "the tenant was detached").await?;
        self.inner.tenants.write().remove(&id).ok_or_else(|| no_tenant(id))?;
        self.inner.broken.write().retain(|(tenant, _), _| *tenant != id);
        for timeline in timelines {
            let dir = timeline.dir().to_owned();
            timeline.shutdown().await;
            if !fenced {
                removal::remove_local(&dir).await?;
            }
        }
        tracing::info!(tenant = %id, "tenant detached");
        Ok(())
    }

    /// Closes a tenant. Its files stay, and the bucket is told nothing.
    ///
    /// # Errors
    /// If the manager has been shut down.
    pub async fn close_tenant(&self, id: TenantShardId) -> Result<(), ManageError> {
        let _changing = self.change(id).await?;
        let tenant = self.inner.tenants.write().remove(&id);
        self.inner.broken.write().retain(|(tenant, _), _| *tenant != id);
        for timeline in tenant.into_iter().flat_map(|tenant| tenant.timelines.into_values()) {
            timeline.shutdown().await;
        }
        Ok(())
    }

    /// The tenant's state in the bucket; `None` without a bucket.
    pub fn remote_of(&self, id: TenantShardId) -> Option<Arc<TenantRemote>> {
        self.inner.tenants.read().get(&id)?.remote.clone()
    }

    /// Checks the generations of tenants that receive WAL but were not checked recently: publications check as well,
    /// but there may be none for a long time. `seen` holds the positions at the last check.
    pub(super) fn check_generations(&self, seen: &mut HashMap<TenantShardId, u64>) {
        for (id, tenant) in self.inner.tenants.read().iter() {
            let Some(remote) = &tenant.remote else { continue };
            let position = tenant.timelines.values().map(|timeline| timeline.last_record_lsn().0).sum();
            let known = seen.entry(*id).or_insert(position);
            if *known == position || remote.unchecked_for() < CHECK_PERIOD || remote.fenced().is_some() {
                continue;
            }
            *known = position;
            let remote = Arc::clone(remote);
            env::spawn::task("look at a generation", async move { remote.look().await });
        }
    }
}

async fn upload_all(timelines: &[Timeline]) -> Result<(), ManageError> {
    for timeline in timelines {
        flush_or_warn(timeline).await;
    }
    for timeline in timelines {
        if !timeline.wait_uploaded(DETACH_UPLOAD).await {
            let id = timeline.timeline_id();
            return Err(ManageError::Busy(format!("timeline {id} is not uploaded yet: nothing was detached")));
        }
    }
    Ok(())
}
