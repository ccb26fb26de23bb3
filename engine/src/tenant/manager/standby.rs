//! Standbys: tenants that another server owns, and that this one takes over by itself when that is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use pageserver_api::shard::TenantShardId;
use tokio::sync::watch;

use super::inventory::{DETACHED_NAME, STANDBY_NAME};
use super::journals::{Journals, Kept};
use super::standbys::{Standby, StandbyInfo};
use super::{ManageError, TenantManager};
use crate::lease::objects::Objects;
use crate::lease::{Held, LeaseState, Verdict, Watch};
use crate::tenant::ahead;
use crate::tenant::remote::{Newest, Purpose, newest};
use errors::StorageError;
use metrics::METRICS;
use remote_storage::RemoteStorage;
use virtual_file::fs;

/// A lease is looked at so often in the interval in which it is renewed.
const LOOKS: u32 = 4;
/// After so many intervals it is looked whether the tenant has another owner, and a lease asked for.
const LOCATE_INTERVALS: u32 = 15;
/// How often it is looked whether this server's lease is renewed.
const LEASE_PAUSE: Duration = Duration::from_millis(10);
/// Maximum number of tenants taken over concurrently.
const PARALLEL_TENANTS: usize = 16;

/// The leases of the owners of this server's standbys, by server id.
type Watches = BTreeMap<String, Watch>;

impl TenantManager {
    /// From now on owners of other tenants are followed, and whoever attaches tenants asks `journals`. Only the first
    /// call counts: one server has one journal.
    pub fn begin_to_follow(&self, journals: Option<Box<dyn Journals>>) {
        if let Some(journals) = journals {
            // See above.
            let _ = self.inner.journals.set(Kept(journals));
        }
        self.inner.may_follow.cancel();
    }

    /// Has this server follow a tenant that another one owns, and take it over when that is gone. It stays so over
    /// restarts.
    ///
    /// # Errors
    /// [`ManageError::Precondition`] if this server owns the tenant, or has no bucket, or leases are off.
    pub async fn make_standby(&self, id: TenantShardId) -> Result<(), ManageError> {
        let conf = self.inner.conf;
        let Some(storage) = conf.remote_storage.as_ref().filter(|_| !conf.lease.interval.is_zero()) else {
            let reason = "a standby needs a bucket that several servers share, and a lease_interval";
            return Err(ManageError::Precondition(reason.to_owned()));
        };
        let changing = self.change(id).await?;
        self.leave_lost(id).await?;
        if self.inner.tenants.read().contains_key(&id) {
            let reason = format!(
                "tenant {id} is attached to this server. To have it as a standby, set it AttachedSingle at another \
                 server first"
            );
            return Err(ManageError::Precondition(reason));
        }
        if newest(storage, id, 0).await?.is_none_or(|found| found.is_deleted) {
            return Err(ManageError::NotFound(format!("tenant {id} is not in the bucket {}", storage.url())));
        }
        let is_known = self.inner.standbys.read().contains_key(&id);
        if let Some(Kept(journals)) = self.inner.journals.get().filter(|_| !is_known) {
            if fault::planted(fault::Bug::ForgetWhenSteppingDown) {
                journals.forget(id).await?;
            }
            journals.step_down(id);
        }
        let dir = conf.tenant_path(&id);
        fs::create_dir_durably(&dir, &conf.workdir).await?;
        let said = "this server follows the tenant's owner, to take its place";
        virtual_file::write_file_durably(&dir.join(STANDBY_NAME), said.as_bytes()).await?;
        self.inner.standbys.write().entry(id).or_default();
        drop(changing);
        tracing::info!(tenant = %id, "this server is a standby of it");
        self.inner.standbys_changed.notify_one();
        Ok(())
    }

    /// Ends that. False if it is no standby.
    pub async fn end_standby(&self, id: TenantShardId) -> Result<bool, ManageError> {
        let _changing = self.change(id).await?;
        let is_known = self.inner.standbys.read().contains_key(&id);
        if is_known {
            let dir = self.inner.conf.tenant_path(&id);
            fs::unlink(&dir.join(STANDBY_NAME)).await?;
            // A restart must not attach what may be left of an earlier time.
            self.mark_detached(id, "this server was a standby").await?;
            ahead::forget(self.inner.conf, id).await?;
            self.inner.standbys.write().remove(&id);
            if let Some(Kept(journals)) = self.inner.journals.get() {
                journals.forget(id).await?;
            }
        }
        Ok(is_known)
    }

    /// The tenants of which this server is a standby.
    pub fn standbys(&self) -> Vec<(TenantShardId, StandbyInfo)> {
        self.inner.standbys.read().iter().map(|(id, standby)| (*id, standby.info())).collect()
    }

    /// Counts the tenants that this server has taken over by itself.
    pub fn watch_taken_over(&self) -> watch::Receiver<u64> {
        self.inner.taken_over.subscribe()
    }

    /// Fails if this server is a standby of the tenant.
    pub(super) fn check_not_standby(&self, id: TenantShardId) -> Result<(), ManageError> {
        self.inner.standbys.read().get(&id).map_or(Ok(()), |standby| Err(ManageError::Elsewhere(standby.elsewhere(id))))
    }

    /// Follows the owners of all tenants of which this server is a standby, until shutdown.
    pub(super) async fn follow_owners(self) {
        let Some(storage) = self.inner.conf.remote_storage.clone() else { return };
        let mut watches = Watches::new();
        tokio::select! {
            () = self.inner.may_follow.cancelled() => {}
            () = self.inner.cancel.cancelled() => return,
        }
        loop {
            let pause = self.follow_once(&storage, &mut watches).await;
            tokio::select! {
                () = env::clock::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
                () = self.inner.standbys_changed.notified() => {}
                () = self.inner.cancel.cancelled() => return,
            }
        }
    }

    /// Looks at each owner once, and takes over what is to be taken over. Returns when to look again, if ever.
    async fn follow_once(&self, storage: &RemoteStorage, watches: &mut Watches) -> Option<Duration> {
        self.locate_owners(storage).await;
        let owners = self.owners();
        watches.retain(|server, _| owners.contains_key(server));
        let policy = &self.inner.conf.lease;
        let mut next = policy.interval / LOOKS;
        for (server, tenants) in owners {
            let watch = watches.entry(server.clone()).or_default();
            let objects = Objects::new(storage, &server);
            let verdict = match self.in_time(objects.read()).await {
                Ok(found) => watch.answered(found, env::clock::now(), policy.takeover_after),
                Err(error) => {
                    watch.failed();
                    self.note(&tenants, None, Some(&error));
                    continue;
                }
            };
            self.note(&tenants, Some(verdict), None);
            match verdict {
                Verdict::Believed(left) => next = next.min(left + Duration::from_millis(1)),
                Verdict::None => {}
                Verdict::Overdue => {
                    if let Err(error) = self.succeed(&objects, watch, &server, &tenants).await {
                        tracing::warn!(owner = server, "its tenants were not taken over: {error}");
                        self.note(&tenants, Some(verdict), Some(&error));
                    }
                }
            }
        }
        (!self.inner.standbys.read().is_empty()).then_some(next)
    }

    /// Limits a request: a bucket that hangs must not keep a standby from the others.
    pub(super) async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, StorageError>>,
    ) -> Result<T, StorageError> {
        let limit = self.inner.conf.lease.takeover_after / 4;
        let late = |_| Err(StorageError::Invalid(format!("the bucket has not answered within {limit:?}")));
        env::clock::timeout(limit, work).await.unwrap_or_else(late)
    }

    /// The tenants by owner.
    fn owners(&self) -> BTreeMap<String, Vec<Held>> {
        let mut owners = BTreeMap::<String, Vec<Held>>::new();
        for (id, standby) in self.inner.standbys.read().iter() {
            let Some((holder, generation)) = &standby.owner else { continue };
            if !holder.server.is_empty() && !self.inner.conf.server.is(&holder.server) {
                owners.entry(holder.server.clone()).or_default().push((*id, *generation));
            }
        }
        owners
    }

    fn note(&self, tenants: &[Held], verdict: Option<Verdict>, error: Option<&StorageError>) {
        let mut standbys = self.inner.standbys.write();
        for (id, _) in tenants {
            let Some(standby) = standbys.get_mut(id) else { continue };
            standby.verdict = verdict.or(standby.verdict);
            standby.error = error.map(ToString::to_string);
        }
    }

    /// Finds out who owns the tenants for which that is not known, or was known for some time, and asks for a lease.
    async fn locate_owners(&self, storage: &RemoteStorage) {
        let (now, period) = (env::clock::now(), self.inner.conf.lease.interval * LOCATE_INTERVALS);
        let is_due = |standby: &Standby| standby.located.is_none_or(|at| now.saturating_duration_since(at) >= period);
        let due: Vec<(TenantShardId, Option<u32>)> = {
            let standbys = self.inner.standbys.read();
            let due = standbys.iter().filter(|(_, standby)| is_due(standby));
            due.map(|(id, standby)| (*id, standby.owner.as_ref().map(|(_, generation)| *generation))).collect()
        };
        let mut asked = BTreeMap::<String, ()>::new();
        for (id, known) in due {
            match self.in_time(newest(storage, id, known.unwrap_or(0))).await {
                Ok(Some(found)) if !found.is_deleted => {
                    let server = found.holder.server.clone();
                    self.located(id, found).await;
                    if !self.inner.conf.server.is(&server) && asked.insert(server.clone(), ()).is_none() {
                        let wanted = self.in_time(Objects::new(storage, &server).want()).await;
                        let _ = wanted.inspect_err(|error| self.note(&[(id, 0)], None, Some(error)));
                    }
                }
                Ok(_) => {
                    let gone = StorageError::Invalid(format!("tenant {id} is not in the bucket any more"));
                    self.note(&[(id, 0)], None, Some(&gone));
                }
                Err(error) => self.note(&[(id, 0)], None, Some(&error)),
            }
        }
    }

    /// Notes who owns a tenant. This server itself does if it ended while it took the tenant over: it goes on with it.
    async fn located(&self, id: TenantShardId, found: Newest) {
        let Newest { generation, holder, void_through, .. } = found;
        let is_own = self.inner.conf.server.is(&holder.server);
        let changed = {
            let mut standbys = self.inner.standbys.write();
            let Some(standby) = standbys.get_mut(&id) else { return };
            standby.located = Some(env::clock::now());
            standby.void_through = void_through;
            let before = standby.owner.replace((holder.clone(), generation));
            before.is_none_or(|(before, _)| before != holder)
        };
        if changed {
            tracing::info!(tenant = %id, generation, owner = holder.server, host = holder.host, "its owner");
        }
        if is_own && let Err(error) = self.take_place((id, generation)).await {
            self.inner.standbys.write().entry(id).and_modify(|standby| standby.error = Some(error.to_string()));
        }
    }

    /// Takes the tenants over from an owner whose lease was not renewed for too long.
    async fn succeed(
        &self,
        objects: &Objects,
        watch: &Watch,
        server: &str,
        tenants: &[Held],
    ) -> Result<(), StorageError> {
        if self.in_time(self.look_if_drained()).await? {
            let drained = StorageError::Invalid("this server is drained, and takes nothing over".to_owned());
            self.note(tenants, None, Some(&drained));
            return Ok(());
        }
        let claim = self.in_time(objects.make_claim(&self.inner.conf.server.id, tenants.to_vec())).await?;
        METRICS.takeover_claims.inc();
        // A renewal that came before the claim is seen here; the owner sees the claim after any other.
        let now = self.in_time(objects.read()).await?;
        let is_same = now.is_some_and(|now| watch.seen().is_some_and(|seen| seen.is_same(&now)));
        if !is_same && !fault::planted(fault::Bug::TakeWithoutSecondLook) {
            tracing::info!(owner = server, claim, "it has renewed its lease after all");
            return Ok(());
        }
        if self.in_time(objects.answer(claim, false)).await? {
            tracing::info!(owner = server, claim, "it was there after all");
            return Ok(());
        }
        tracing::warn!(owner = server, claim, tenants = tenants.len(), "it has not renewed its lease: it is replaced");
        let taking: Vec<_> = tenants.iter().map(|held| async { (held.0, self.take_place(*held).await) }).collect();
        let mut taking = futures_util::stream::iter(taking).buffer_unordered(PARALLEL_TENANTS);
        while let Some((id, outcome)) = taking.next().await {
            let Err(error) = outcome else { continue };
            tracing::warn!(tenant = %id, "not taken over: {error}");
            let mut standbys = self.inner.standbys.write();
            // It may be this server's already.
            standbys.entry(id).and_modify(|standby| {
                (standby.located, standby.error) = (None, Some(error.to_string()));
            });
        }
        Ok(())
    }

    /// Takes the generation after this one, and serves the tenant, unless somebody else was faster.
    async fn take_place(&self, (id, generation): Held) -> Result<(), ManageError> {
        let _changing = self.change(id).await?;
        if !self.inner.standbys.read().contains_key(&id) {
            return Ok(());
        }
        self.get_lease().await?;
        if !self.attach_for(id, Purpose::Succeed(generation)).await? {
            tracing::info!(tenant = %id, generation, "another server was faster");
            self.inner.standbys.write().entry(id).and_modify(|standby| standby.located = None);
            return Ok(());
        }
        METRICS.takeovers.inc();
        tracing::warn!(tenant = %id, generation = generation + 1, "this server has taken the tenant over");
        self.inner.taken_over.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Waits until this server has a lease. Other standbys have to see that before they see its generation: from a
    /// lease that was never there nobody sees that its server is gone.
    pub(super) async fn get_lease(&self) -> Result<(), StorageError> {
        let conf = self.inner.conf;
        conf.resources.lease.bind(conf.lease.takeover_after);
        conf.resources.lease.look_soon();
        let waiting = async {
            while !matches!(conf.resources.lease.state(), LeaseState::Held(_)) {
                env::clock::sleep(LEASE_PAUSE).await;
            }
            Ok(())
        };
        self.in_time(waiting).await
    }

    /// A tenant is attached now: it is no standby, and not detached.
    pub(super) async fn unmark_attached(&self, id: TenantShardId) -> Result<(), StorageError> {
        let dir = self.inner.conf.tenant_path(&id);
        for mark in [DETACHED_NAME, STANDBY_NAME] {
            fs::unlink(&dir.join(mark)).await?;
        }
        fs::fsync_dir(&dir).await?;
        ahead::forget(self.inner.conf, id).await?;
        self.inner.standbys.write().remove(&id);
        self.inner.conf.resources.lease.forget(id);
        self.inner.conf.resources.lease.look_soon();
        Ok(())
    }
}
