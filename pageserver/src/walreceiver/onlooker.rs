//! Looks at the bucket again and again for what is to be followed as a standby.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use pageserver_api::shard::TenantShardId;

use super::WalReceivers;
use super::standby::{StandbyStatus, Standing};

/// The bucket is looked at after so many intervals of leases...
const LOOK_INTERVALS: u32 = 5;
/// ... and not more often than this.
const LOOK_MIN: Duration = Duration::from_millis(200);
/// Time limit for that. Others wait meanwhile.
const LOOK_MAX: Duration = Duration::from_secs(30);

impl WalReceivers {
    /// How this server follows the timelines of a tenant of which it is a standby.
    pub fn standby_status(&self, tenant: TenantShardId) -> Vec<StandbyStatus> {
        self.inner.standing.as_ref().map(|standing| standing.status(tenant)).unwrap_or_default()
    }

    /// Looks at the bucket again and again for what is to be followed as a standby, until shutdown.
    pub(super) async fn stand_by(self, standing: Arc<Standing>) {
        let period = (standing.conf.lease.interval * LOOK_INTERVALS).max(LOOK_MIN);
        loop {
            let standbys: HashSet<TenantShardId> =
                self.inner.manager.standbys().into_iter().map(|(tenant, _)| tenant).collect();
            standing.end(|(tenant, _)| !standbys.contains(tenant)).await;
            standing.seen.lock().retain(|tenant, _| standbys.contains(tenant));
            for tenant in standbys {
                self.look_elsewhere(&standing, tenant).await;
            }
            tokio::select! {
                () = env::clock::sleep(period) => {}
                () = self.inner.look.notified() => {}
                () = standing.cancel.cancelled() => return,
            }
        }
    }

    async fn look_elsewhere(&self, standing: &Standing, tenant: TenantShardId) {
        let before = standing.seen.lock().get(&tenant).cloned().unwrap_or_default();
        let looking = env::clock::timeout(LOOK_MAX, self.inner.manager.look_elsewhere(tenant, &before));
        match looking.await {
            Ok(Ok(Some(found))) => standing.follow(tenant, found).await,
            // What is followed is so on.
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::info!(%tenant, "what the bucket has of it is not known: {error}"),
            Err(_) => tracing::info!(%tenant, "what the bucket has of it is not known: it does not answer"),
        }
    }
}
