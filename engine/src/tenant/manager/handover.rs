//! The owner of a tenant that hands it over to a standby.
//!
//! First everything is uploaded while all goes on. Then the owner ceases to act as one: it acknowledges nothing more,
//! takes nothing in, uploads the rest, notes on its disk that it is a standby, and says in the bucket that the tenant
//! is given. Who has the generation after the one that it held is the owner from then on: the target, or, if that does
//! not take it in time, this server, which has to take it as anybody. So nobody depends on who saw what.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pageserver_api::shard::TenantShardId;

use super::inventory::STANDBY_NAME;
use super::journals::Kept;
use super::orders::WORDS;
use super::receivers::Receiving;
use super::{ManageError, TenantManager};
use crate::context::{DownloadBehavior, RequestContext};
use crate::lease::{Held, LeaseState};
use crate::placement::{Order, Placements, Side, Stage};
use crate::task_mgr::TaskKind;
use crate::tenant::remote::newest;
use crate::tenant::timeline::Timeline;
use errors::StorageError;

/// What arrives while the rest is uploaded waits for the next owner, and clients with it: so no longer than this.
const LAST_UPLOAD: Duration = Duration::from_secs(5);
/// How often it is looked whether the target has taken the tenant.
const TAKEN: Duration = Duration::from_millis(50);
/// At least so long the target has for that.
const TAKEN_MIN: Duration = Duration::from_secs(2);

impl TenantManager {
    /// Does what an order says, as the tenant's owner.
    pub(super) async fn go(&self, p: &Placements, id: TenantShardId, order: &Order) -> Result<(), ManageError> {
        let deadline = env::clock::now() + order.left().unwrap_or_default();
        // Whoever has none would go on as the owner, whatever was said.
        self.get_lease().await?;
        loop {
            match self.in_time(p.word(id, Side::Target, order)).await.ok().flatten().map(|word| word.stage) {
                Some(Stage::Ready) => break,
                // It has said why.
                Some(Stage::Failed) => return Ok(()),
                _ => self.pause(WORDS, deadline, "the server that is to have it is not ready").await?,
            }
        }
        let held = (id, order.generation);
        self.check_may_give(held)?;
        // Most of it, before anybody has to wait.
        self.upload(id, deadline.saturating_duration_since(env::clock::now()), false).await?;
        self.hand_over(p, held, order).await
    }

    fn check_may_give(&self, (id, generation): Held) -> Result<(), ManageError> {
        let remote = self.remote_of(id).filter(|remote| remote.generation() == generation);
        let Some(remote) = remote else { return Err(ManageError::Conflict(format!("tenant {id} has another owner"))) };
        remote.check_lease()?;
        match self.inner.conf.resources.lease.state() {
            LeaseState::Held(_) => Ok(()),
            LeaseState::None => Err(ManageError::Busy("its owner has no lease yet: try again".to_owned())),
            LeaseState::Ended(reason) => Err(ManageError::Busy(reason)),
        }
    }

    /// Has the bucket have all that the timelines of a tenant have at this moment; `to_the_end` if nothing comes any
    /// more.
    async fn upload(&self, id: TenantShardId, limit: Duration, to_the_end: bool) -> Result<(), ManageError> {
        let timelines = self.timelines(id)?;
        let work = timelines.iter().map(|timeline| upload_one(timeline, limit, to_the_end));
        join_all(work).await.into_iter().collect()
    }

    async fn hand_over(&self, p: &Placements, held: Held, order: &Order) -> Result<(), ManageError> {
        let id = held.0;
        let _changing = self.change(id).await?;
        self.check_may_give(held)?;
        if !fault::planted(fault::Bug::GiveAndGoOn) {
            self.inner.conf.resources.lease.give(held, &order.to);
        }
        let begun = env::clock::now();
        if let Err(error) = self.let_go(id).await {
            // Nothing was said yet: all goes on as before.
            self.stay(id).await;
            return Err(error);
        }
        // Whether or not that arrives, it may have.
        let said = self.in_time(p.say(id, Side::Owner, &order.word(Stage::Given, None))).await;
        let took = env::clock::now().saturating_duration_since(begun);
        tracing::info!(tenant = %id, to = order.to, ?took, sent = said.is_ok(), "the tenant is given away");
        self.await_heir(held, begun).await
    }

    /// Ceases to be the owner, but for saying so: nothing is acknowledged any more by now.
    async fn let_go(&self, id: TenantShardId) -> Result<(), ManageError> {
        if let Some(Receiving(receivers)) = self.inner.placing.receivers.get() {
            receivers.halt(id).await;
        }
        self.upload(id, LAST_UPLOAD, true).await?;
        // The bucket has all now. A restart looks who owns the tenant, as a standby does, and it may be this server.
        let said = "this server has handed the tenant over";
        let mark = self.inner.conf.tenant_path(&id).join(STANDBY_NAME);
        Ok(virtual_file::write_file_durably(&mark, said.as_bytes()).await?)
    }

    /// Goes on as the owner, as if nothing had been.
    async fn stay(&self, id: TenantShardId) {
        let mark = self.inner.conf.tenant_path(&id).join(STANDBY_NAME);
        if let Err(error) = virtual_file::fs::unlink(&mark).await {
            tracing::warn!(tenant = %id, "a restart takes this server for a standby, and the tenant back: {error}");
        }
        self.inner.conf.resources.lease.forget(id);
        self.go_on_receiving(id);
    }

    /// The caller may hold what that needs.
    fn go_on_receiving(&self, id: TenantShardId) {
        let manager = self.clone();
        drop(env::spawn::task("WAL after a handover", async move {
            if let Some(Receiving(receivers)) = manager.inner.placing.receivers.get() {
                receivers.go_on(id).await;
            }
        }));
    }

    /// Waits until somebody has taken the next generation, or takes it back.
    async fn await_heir(&self, held @ (id, generation): Held, begun: Instant) -> Result<(), ManageError> {
        let conf = self.inner.conf;
        let Some(storage) = &conf.remote_storage else { return Ok(()) };
        let limit = (conf.lease.takeover_after / 2).max(TAKEN_MIN);
        loop {
            let found = self.in_time(newest(storage, id, generation)).await;
            let is_taken = matches!(&found, Ok(Some(found)) if found.generation > generation);
            if is_taken {
                self.become_standby(id).await?;
                return Ok(());
            }
            let waited = env::clock::now().saturating_duration_since(begun);
            // While the bucket does not answer, nobody knows who the owner is.
            if found.is_ok() && waited >= limit {
                break;
            }
            tokio::select! {
                () = env::clock::sleep(TAKEN) => {}
                // A start looks who the owner is.
                () = self.inner.cancel.cancelled() => return Err(StorageError::Shutdown.into()),
            }
        }
        tracing::warn!(tenant = %id, "the server that it was given to has not taken it: it is taken back");
        if fault::planted(fault::Bug::GoOnInGivenGeneration) {
            self.stay(id).await;
        } else {
            self.retake_locked(held).await?;
        }
        if self.remote_of(id).is_none_or(|remote| remote.fenced().is_some()) {
            self.become_standby(id).await?;
            return Ok(());
        }
        self.go_on_receiving(id);
        Err(ManageError::Busy(format!("it was given for {limit:?}, and not taken: its owner has it back")))
    }

    /// Another server has taken it. Whoever asks for it is told so from now on.
    async fn become_standby(&self, id: TenantShardId) -> Result<(), ManageError> {
        self.inner.standbys.write().entry(id).or_default();
        let tenant = self.inner.tenants.write().remove(&id);
        for timeline in tenant.into_iter().flat_map(|tenant| tenant.timelines.into_values()) {
            timeline.shutdown().await;
        }
        if let Some(Kept(journals)) = self.inner.journals.get() {
            journals.step_down(id);
        }
        let mark = self.inner.conf.tenant_path(&id).join(STANDBY_NAME);
        virtual_file::write_file_durably(&mark, b"this server has handed the tenant over").await?;
        self.inner.conf.resources.lease.forget(id);
        self.inner.standbys_changed.notify_one();
        self.go_on_receiving(id);
        tracing::info!(tenant = %id, "this server is a standby of it");
        Ok(())
    }
}

async fn upload_one(timeline: &Timeline, limit: Duration, to_the_end: bool) -> Result<(), ManageError> {
    let (id, ctx) = (timeline.timeline_id(), RequestContext::new(TaskKind::TenantManager, DownloadBehavior::Error));
    timeline.flush(&ctx).await?;
    let is_whole = || !to_the_end || timeline.disk_consistent_lsn() >= timeline.last_record_lsn();
    let is_there = timeline.wait_uploaded(limit).await && is_whole();
    let late = || ManageError::Busy(format!("timeline {id} is not uploaded to its end within {limit:.1?}"));
    is_there.then_some(()).ok_or_else(late)
}
