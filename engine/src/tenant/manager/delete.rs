//! Deletion of timelines and tenants. With a bucket, a mark of deletion is written there first; if the rest of the
//! removal is interrupted, a later start completes it.

use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::removal::remove_local;
use super::{ManageError, TenantManager};
use crate::tenant::remote::{remove_tenant, remove_timeline};
use virtual_file::fs;

impl TenantManager {
    /// Deletes a timeline with everything stored for it.
    ///
    /// # Errors
    /// [`ManageError::Precondition`] if it has branches. After an error of the bucket it may be that nothing of the
    /// timeline is uploaded any more, until it is deleted or the server restarts: whoever wanted it deleted tries
    /// again.
    pub async fn delete_timeline(&self, id: TenantShardId, timeline_id: TimelineId) -> Result<(), ManageError> {
        let _changing = self.change(id).await?;
        let timeline = self.get(id, timeline_id)?;
        let children = self.children(id, timeline_id);
        if let [first, ..] = children.as_slice() {
            let count = children.len();
            let reason = format!("timeline {timeline_id} has {count} branches, {first} among them: delete those first");
            return Err(ManageError::Precondition(reason));
        }
        timeline.bury().await?;
        self.inner.tenants.write().entry(id).or_default().timelines.remove(&timeline_id);
        let dir = timeline.dir().to_owned();
        timeline.shutdown().await;
        remove_local(&dir).await?;
        fs::fsync_dir(&self.inner.conf.timelines_path(&id)).await?;
        if let Some(remote) = self.remote_of(id)
            && let Err(error) = remove_timeline(&remote, timeline_id, remote.generation(), 0).await
        {
            tracing::warn!(timeline = %timeline_id, "objects of it are left, a later start removes them: {error}");
        }
        Ok(())
    }

    /// Deletes a tenant with everything stored for it. Deleting one that does not exist is not an error.
    ///
    /// # Errors
    /// [`StorageError::Fenced`](errors::StorageError::Fenced) if another server has taken it over.
    pub async fn delete_tenant(&self, id: TenantShardId) -> Result<(), ManageError> {
        let _changing = self.change(id).await?;
        self.check_not_standby(id)?;
        if !self.inner.tenants.read().contains_key(&id) {
            return Ok(());
        }
        // Otherwise its objects in the bucket would remain.
        self.check_attached(id)?;
        let remote = self.remote_of(id);
        if let Some(remote) = &remote {
            remote.bury().await?;
        }
        let Some(tenant) = self.inner.tenants.write().remove(&id) else { return Ok(()) };
        self.inner.broken.write().retain(|(tenant, _), _| *tenant != id);
        for timeline in tenant.timelines.into_values() {
            timeline.shutdown().await;
        }
        // Without manifests none of it comes back, however far the removal gets.
        for timeline in fs::list_dir_if_any(&self.inner.conf.timelines_path(&id)).await? {
            remove_local(&self.inner.conf.timelines_path(&id).join(timeline)).await?;
        }
        fs::remove_tree(&self.inner.conf.tenant_path(&id)).await?;
        fs::fsync_dir(&self.inner.conf.tenants_path()).await?;
        if let Some(remote) = remote
            && let Err(error) = remove_tenant(&remote, id, remote.generation()).await
        {
            tracing::warn!(tenant = %id, "objects of it are left, a later start removes them: {error}");
        }
        Ok(())
    }
}
