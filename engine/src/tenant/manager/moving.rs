//! The server that a tenant is handed over to: becomes a standby, gets ready, and takes the next generation as soon as
//! the owner has given the tenant.

use std::time::Duration;

use pageserver_api::shard::TenantShardId;

use super::orders::{WORDS, out_of_time};
use super::receivers::Receiving;
use super::{ManageError, TenantManager};
use crate::lease::Held;
use crate::placement::{Order, Placements, Side, Stage, What};
use crate::tenant::remote::{Purpose, newest};
use crate::tenant::warm::ahead;
use metrics::METRICS;

/// How often it is looked whether the owner has given the tenant: clients wait meanwhile.
const GIVEN: Duration = Duration::from_millis(10);
/// How long a new standby has to follow all timelines. One whose server is away is not waited for.
const FOLLOWING: Duration = Duration::from_secs(5);
/// This part of the time that is left may go into fetching what is hot at the owner.
const WARMING_PART: u32 = 4;

impl TenantManager {
    /// Does what an order says, as its target.
    pub(super) async fn come(&self, p: &Placements, id: TenantShardId, order: &Order) -> Result<(), ManageError> {
        if self.remote_of(id).is_some_and(|remote| remote.fenced().is_none() && remote.check_lease().is_ok()) {
            return Ok(());
        }
        if order.what == What::Move {
            self.check_not_drained().await?;
        }
        self.make_standby(id).await?;
        if let Some(Receiving(receivers)) = self.inner.placing.receivers.get() {
            receivers.go_on(id).await;
        }
        self.say(p, id, order, Stage::Following).await?;
        if order.what == What::Follow {
            return Ok(());
        }
        let deadline = env::clock::now() + order.left().unwrap_or_default();
        self.get_ready(id, order, deadline).await?;
        self.say(p, id, order, Stage::Ready).await?;
        if !fault::planted(fault::Bug::TakeUngiven) {
            self.wait_until_given(p, id, order, deadline).await?;
        }
        self.take_given((id, order.generation)).await
    }

    async fn say(&self, p: &Placements, id: TenantShardId, order: &Order, stage: Stage) -> Result<(), ManageError> {
        Ok(self.in_time(p.say(id, Side::Target, &order.word(stage, None))).await?)
    }

    /// Everything that can be done while the owner still serves the tenant.
    async fn get_ready(
        &self,
        id: TenantShardId,
        order: &Order,
        deadline: std::time::Instant,
    ) -> Result<(), ManageError> {
        let Some(storage) = &self.inner.conf.remote_storage else { return Ok(()) };
        let found = newest(storage, id, order.generation).await?;
        if found.is_none_or(|found| found.generation != order.generation || found.is_deleted) {
            let reason = format!("tenant {id} has another owner by now, or was deleted: order it again");
            return Err(ManageError::Conflict(reason));
        }
        // It acts as the owner at once then.
        self.get_lease().await?;
        let limit = deadline.saturating_duration_since(env::clock::now()) / WARMING_PART;
        let warming = ahead::keep(self.inner.conf, storage, id, || self.inner.standbys.read().contains_key(&id));
        // Without it the tenant is slower for a while.
        if !matches!(env::clock::timeout(limit, warming).await, Ok(Ok(_))) {
            tracing::info!(tenant = %id, "not all that is hot at its owner is here");
        }
        let until = env::clock::now() + FOLLOWING;
        let is_following = || self.inner.placing.receivers.get().is_none_or(|Receiving(one)| one.is_following(id));
        while !is_following() && env::clock::now() < until {
            self.pause(WORDS, deadline, "this server does not follow the tenant's timelines yet").await?;
        }
        Ok(())
    }

    async fn wait_until_given(
        &self,
        p: &Placements,
        id: TenantShardId,
        order: &Order,
        deadline: std::time::Instant,
    ) -> Result<(), ManageError> {
        loop {
            // A bucket that does not answer for a moment may do so in the next one.
            match self.in_time(p.word(id, Side::Owner, order)).await.ok().flatten() {
                Some(word) if word.stage == Stage::Given => return Ok(()),
                Some(word) if word.stage == Stage::Failed => {
                    let reason = word.error.unwrap_or_default();
                    return Err(ManageError::Busy(format!("server {} did not hand it over: {reason}", order.from)));
                }
                _ => self.pause(GIVEN, deadline, "its owner has not handed it over").await?,
            }
        }
    }

    /// Lets some time pass, of which there is no more after `deadline`.
    pub(super) async fn pause(
        &self,
        pause: Duration,
        deadline: std::time::Instant,
        what: &str,
    ) -> Result<(), ManageError> {
        if env::clock::now() >= deadline {
            return Err(out_of_time(what));
        }
        tokio::select! {
            () = env::clock::sleep(pause) => Ok(()),
            () = self.inner.cancel.cancelled() => Err(errors::StorageError::Shutdown.into()),
        }
    }

    /// Takes the generation after the one that the owner has given up, unless somebody was faster.
    async fn take_given(&self, (id, generation): Held) -> Result<(), ManageError> {
        let _changing = self.change(id).await?;
        if !self.inner.standbys.read().contains_key(&id) {
            return Err(ManageError::Conflict(format!("this server is no standby of tenant {id} any more")));
        }
        let taken = self.attach_for(id, Purpose::Succeed(generation)).await;
        if !matches!(taken, Ok(true)) {
            // It may be this server's, even if it could not be opened.
            self.inner.standbys.write().entry(id).and_modify(|standby| standby.located = None);
            self.inner.standbys_changed.notify_one();
        }
        if !taken? {
            return Err(ManageError::Conflict(format!("tenant {id} has another owner by now: order it again")));
        }
        METRICS.handovers.inc();
        tracing::info!(tenant = %id, generation = generation + 1, "the tenant was handed over to this server");
        self.inner.taken_over.send_modify(|count| *count += 1);
        Ok(())
    }
}
