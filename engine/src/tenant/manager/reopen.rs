//! Reopens what could not be opened before, after it was repaired or when the tenant is taken over despite damage.

use pageserver_api::shard::TenantShardId;

use super::{ManageError, TenantManager, not_attached, open_tenant};
use crate::tenant::remote::{Own, mend};
use errors::StorageError;

impl TenantManager {
    /// As [`TenantManager::attach_tenant`], but if generations of the tenant were removed or overwritten, repairs the
    /// chain and takes the tenant over from whoever may hold one of them.
    pub async fn take_tenant_over(&self, id: TenantShardId) -> Result<(), ManageError> {
        let _changing = self.change(id).await?;
        self.leave_lost(id).await?;
        let reason = match self.attach_tenant_locked(id).await {
            Err(ManageError::Storage(StorageError::DamagedChain { reason, .. })) => reason,
            attached => return attached,
        };
        tracing::warn!(tenant = %id, "its chain of generations is made whole, and the tenant taken over: {reason}");
        if let Some(storage) = &self.inner.conf.remote_storage {
            mend(storage, id).await?;
        }
        self.attach_tenant_locked(id).await
    }

    /// Why a tenant that is here could not be attached, if so.
    pub fn unattached(&self, id: TenantShardId) -> Option<String> {
        self.inner.tenants.read().get(&id)?.unattached.clone()
    }

    /// Fails if the tenant is here but could not be attached: nothing of it may be changed then.
    pub(super) fn check_attached(&self, id: TenantShardId) -> Result<(), ManageError> {
        self.unattached(id).map_or(Ok(()), |reason| Err(not_attached(id, &reason)))
    }

    /// Opens timelines of an attached tenant that could not be opened before. Returns how many it opened.
    pub async fn reopen(&self, id: TenantShardId) -> Result<usize, ManageError> {
        let _changing = self.change(id).await?;
        let Some(remote) = self.remote_of(id) else { return Ok(0) };
        let names = self.broken().into_iter().filter(|(tenant, ..)| *tenant == id).map(|(_, timeline, _)| timeline);
        let names: std::collections::BTreeSet<_> = names.collect();
        if names.is_empty() {
            return Ok(0);
        }
        let open = self.timelines(id)?.into_iter().map(|timeline| (timeline.timeline_id(), timeline)).collect();
        let (found, broken) = open_tenant::open_more(self.inner.conf, &remote, names, Own::Counts, &open).await?;
        let count = found.len();
        for timeline in found.keys() {
            tracing::info!(tenant = %id, %timeline, "it can be opened now");
        }
        let mut all_broken = self.inner.broken.write();
        all_broken.retain(|(tenant, _), _| *tenant != id);
        all_broken.extend(broken);
        drop(all_broken);
        self.inner.tenants.write().entry(id).or_default().timelines.extend(found);
        Ok(count)
    }
}
