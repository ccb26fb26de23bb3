//! Removes the history of tenants that nothing keeps, periodically and on request.

use std::time::Duration;

use pageserver_api::shard::TenantShardId;

use super::{ManageError, TenantManager, no_tenant};
use crate::tenant::timeline::{GcReport, Timeline};
use errors::StorageError;

impl TenantManager {
    /// Removes the history of a tenant that nothing keeps. With `dry_run` only says what would go.
    ///
    /// # Errors
    /// [`ManageError::Precondition`] if it is not known of all branches what they need.
    pub async fn collect_garbage(&self, id: TenantShardId, dry_run: bool) -> Result<Vec<GcReport>, ManageError> {
        self.check_branches_known(id)?;
        match Timeline::prepare_garbage(&self.timelines(id)?).await {
            Ok(()) => {}
            Err(error @ StorageError::Shutdown) => return Err(error.into()),
            // More is kept than would have to be.
            Err(error) => tracing::warn!(tenant = %id, "it is not known which keys are in use: {error}"),
        }
        // No branch is made meanwhile.
        let _changing = self.change(id).await?;
        self.check_branches_known(id)?;
        let timelines = self.timelines(id)?;
        Ok(Timeline::collect_garbage(&timelines, dry_run).await?)
    }

    /// Whether all branches of a tenant are known, so that nothing goes which one of them needs.
    ///
    /// # Errors
    /// [`ManageError::Precondition`] if not.
    pub fn check_branches_known(&self, id: TenantShardId) -> Result<(), ManageError> {
        if let Some((timeline, reason)) = self.inner.broken.read().iter().find(|((tenant, _), _)| *tenant == id) {
            let reason = format!(
                "no history of tenant {id} is removed: timeline {} could not be opened ({reason}), and what it \
                 needs of others is not known",
                timeline.1
            );
            return Err(ManageError::Precondition(reason));
        }
        let tenants = self.inner.tenants.read();
        let tenant = tenants.get(&id).ok_or_else(|| no_tenant(id))?;
        let Some(attached) = tenant.attached.filter(|_| tenant.remote.is_some()) else { return Ok(()) };
        let quiet = self.inner.conf.retention.quiet_after_attach;
        let left = quiet.saturating_sub(env::clock::now().saturating_duration_since(attached));
        if left > Duration::ZERO {
            let reason = format!(
                "no history of tenant {id} is removed for another {} s: it was attached a short time ago, and the \
                 bucket's list of its branches may lag",
                left.as_secs() + 1
            );
            return Err(ManageError::Precondition(reason));
        }
        Ok(())
    }

    /// Removes history of all tenants again and again, until shutdown.
    pub(super) async fn collect_garbage_periodically(self) {
        let period = self.inner.conf.retention.gc_period;
        loop {
            tokio::select! {
                () = env::clock::sleep(period) => {}
                () = self.inner.cancel.cancelled() => return,
            }
            for id in self.tenants() {
                match self.collect_garbage(id, false).await {
                    Ok(_) | Err(ManageError::Storage(StorageError::Shutdown)) => {}
                    Err(ManageError::Precondition(reason)) => tracing::debug!("{reason}"),
                    Err(error) => tracing::warn!(tenant = %id, "history is not removed, will be tried again: {error}"),
                }
            }
        }
    }
}
