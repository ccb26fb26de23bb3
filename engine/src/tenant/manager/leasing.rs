//! Keeps this server's lease, if standbys ask for one.

use std::time::Duration;

use super::inventory::Tenant;
use super::keeper::{Keeper, Seen};
use super::{ManageError, TenantManager, flush_or_warn, open_tenant};
use crate::lease::{Held, LeaseState};
use crate::tenant::remote::Purpose;

/// How many intervals pass until somebody looks again whether a lease is asked for, while WAL arrives.
const LOOK_INTERVALS: u32 = 15;

impl TenantManager {
    /// Renews the lease until the server ends, or waits until there is to be one.
    pub(super) async fn keep_lease(self, mut keeper: Keeper) {
        loop {
            let pause = if keeper.lease.is_bound() {
                let asked = env::clock::now();
                keeper.renew(asked).await;
                self.see_to_lost(&keeper).await;
                keeper.forget_if_due(asked).await;
                keeper.policy.interval.saturating_sub(env::clock::now().saturating_duration_since(asked))
            } else {
                Duration::MAX
            };
            tokio::select! {
                () = env::clock::sleep(pause.min(keeper.policy.interval)), if pause < Duration::MAX => {}
                () = keeper.lease.look(), if pause == Duration::MAX => keeper.bind_if_asked().await,
                () = self.inner.cancel.cancelled() => return,
            }
        }
    }

    /// What a standby has claimed with success it takes; if it does not, it was lost on the way, and this server takes
    /// the next generation itself.
    async fn see_to_lost(&self, keeper: &Keeper) {
        for ((tenant, generation), known_for) in keeper.lease.lost() {
            let Some(remote) = self.remote_of(tenant).filter(|remote| remote.generation() == generation) else {
                // That of an earlier generation, or of one that is just being attached.
                continue;
            };
            if keeper.lease.has_given((tenant, generation)) && known_for < keeper.policy.takeover_after {
                // Whoever hands it over sees to it.
                continue;
            }
            let looked = env::clock::timeout(keeper.policy.takeover_after / 4, remote.check()).await;
            if matches!(looked, Ok(Ok(()))) && known_for >= keeper.policy.takeover_after {
                tracing::warn!(%tenant, "the standby that has claimed it did not take it: it is taken back");
                // The lease is to be renewed meanwhile.
                let manager = self.clone();
                env::spawn::task("taking a tenant back", async move {
                    if let Err(error) = manager.retake((tenant, generation)).await {
                        tracing::error!(%tenant, "not taken back: {error}");
                    }
                });
            }
        }
    }

    /// Whether this server may act as the owner of its tenants.
    pub fn lease(&self) -> LeaseState {
        self.inner.conf.resources.lease.state()
    }

    /// While WAL arrives, looks now and then whether a lease is asked for.
    pub(super) fn look_for_lease(&self, seen: &mut Seen) {
        let conf = self.inner.conf;
        if conf.lease.interval.is_zero() || conf.resources.lease.is_bound() {
            return;
        }
        let now = env::clock::now();
        let is_due =
            seen.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= conf.lease.interval * LOOK_INTERVALS);
        if !is_due {
            return;
        }
        let position = self.all_timelines().iter().map(|timeline| timeline.last_record_lsn().0).sum();
        if std::mem::replace(&mut seen.position, position) != position {
            seen.asked = Some(now);
            conf.resources.lease.look_soon();
        }
    }

    /// Takes the next generation of a tenant that this server has, if nobody else has done so. What it has received
    /// stays.
    async fn retake(&self, held: Held) -> Result<(), ManageError> {
        let _changing = self.change(held.0).await?;
        // Somebody may have seen to it meanwhile.
        if self.inner.conf.resources.lease.has_lost(held) { self.retake_locked(held).await } else { Ok(()) }
    }

    pub(super) async fn retake_locked(&self, (id, generation): Held) -> Result<(), ManageError> {
        let Some(remote) = self.remote_of(id).filter(|remote| remote.generation() == generation) else {
            return Ok(());
        };
        let timelines = self.timelines(id)?;
        for timeline in &timelines {
            flush_or_warn(timeline).await;
        }
        self.inner.tenants.write().remove(&id);
        for timeline in timelines {
            timeline.shutdown().await;
        }
        let storage = remote.storage().clone();
        match open_tenant::take_for(self.inner.conf, storage, id, Purpose::Succeed(generation)).await {
            Ok(Some((Some(tenant), broken))) => {
                self.inner.broken.write().extend(broken);
                self.adopt(id, tenant);
                self.unmark_attached(id).await?;
            }
            Ok(_) => self.mark_fenced(id).await,
            Err(error) => {
                let reason = format!("{error}. Set it AttachedSingle here to try again");
                self.adopt(id, Tenant { unattached: Some(reason), ..Tenant::default() });
                return Err(error.into());
            }
        }
        self.inner.conf.resources.lease.forget(id);
        Ok(())
    }
}
