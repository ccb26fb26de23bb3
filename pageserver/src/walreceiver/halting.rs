//! What brings WAL stops while a tenant is handed over to another server.

use std::sync::{Arc, Weak};

use futures_util::future::{BoxFuture, join_all};
use pageserver_api::shard::TenantShardId;

use super::{Inner, WalReceivers};
use engine::tenant::manager::Receivers;

/// See [`Receivers`].
struct Halting(Weak<Inner>);

impl WalReceivers {
    /// From now on this server hands tenants over, and is handed some, with what brings WAL to them.
    pub(super) fn take_part_in_handovers(&self) {
        self.inner.manager.hand_over_with(Box::new(Halting(Arc::downgrade(&self.inner))));
    }
}

impl Halting {
    fn receivers(&self) -> Option<WalReceivers> {
        self.0.upgrade().map(|inner| WalReceivers { inner })
    }
}

impl Receivers for Halting {
    fn halt(&self, tenant: TenantShardId) -> BoxFuture<'static, ()> {
        let receivers = self.receivers();
        Box::pin(async move {
            let Some(receivers) = receivers else { return };
            let timelines = receivers.inner.manager.timelines(tenant).unwrap_or_default();
            // Whoever is about to register a compute starts a receiver at the end.
            let _changing = receivers.inner.writers.lock().await;
            join_all(timelines.iter().map(|timeline| receivers.stop(tenant, timeline.timeline_id()))).await;
        })
    }

    fn go_on(&self, tenant: TenantShardId) -> BoxFuture<'static, ()> {
        let receivers = self.receivers();
        Box::pin(async move {
            if let Some(receivers) = receivers {
                receivers.start_tenant(tenant).await;
            }
        })
    }

    fn is_following(&self, tenant: TenantShardId) -> bool {
        let Some(receivers) = self.receivers() else { return true };
        let Some(standing) = &receivers.inner.standing else { return true };
        let seen = standing.seen.lock().contains_key(&tenant);
        seen && receivers.standby_status(tenant).iter().all(|status| status.is_following())
    }
}
