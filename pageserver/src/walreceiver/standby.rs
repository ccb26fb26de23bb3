//! Standbys: what this server receives of timelines that another one owns (decision 0033).
//!
//! Each follower has a connection of its own to the server that writes its timeline, without a slot: what the bucket
//! does not have, the owner's slots keep. It appends what comes to the journal of this server and says `flush` as soon
//! as that is synced; layers are none of its business. Where its timeline's WAL comes from, and what of it the bucket
//! has, is in the owner's index part, which is read every few seconds.
//!
//! What there is of a timeline's WAL here continues what the bucket has, without a gap, and is all of one writer: a
//! mark says of which. When this server becomes the owner, that is taken in as after a start. A former owner's journal
//! is no different: it has a mark as well, and is gone on with.

mod follower;
mod following;
mod position;
mod session;
mod status;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use journal::{Journal, Need};
use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use self::follower::Follower;
use self::following::Running;
pub use self::status::StandbyStatus;
use super::mark::{self, Mark};
use super::source::WalSource;
use super::stored::Stored;
use super::{journaled, tail};
use engine::config::PageServerConf;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::manager::{Elsewhere, Journals, TimelineElsewhere};
use engine::tenant::timeline::Timeline;
use errors::StorageError;
use virtual_file::fs;

type Id = (TenantShardId, TimelineId);

/// How long a writer is not followed whose place is about to be taken.
const SEALED: Duration = Duration::from_secs(60);

/// What this server receives as a standby.
pub(super) struct Standing {
    pub(super) conf: &'static PageServerConf,
    journal: Journal,
    followers: Mutex<HashMap<Id, Running>>,
    /// What the bucket had of each tenant at the last look.
    pub(super) seen: Mutex<HashMap<TenantShardId, Elsewhere>>,
    /// Tenants that this server is about to own.
    held: Mutex<HashSet<TenantShardId>>,
    /// Writers whose places are about to be taken: until then they are not followed.
    sealed: Mutex<HashMap<Id, (String, Instant)>>,
    pub(super) cancel: CancellationToken,
}

impl Standing {
    pub(super) fn new(conf: &'static PageServerConf, journal: Journal, cancel: CancellationToken) -> Self {
        let (followers, seen, held, sealed) = Default::default();
        Self { conf, journal, followers, seen, held, sealed, cancel }
    }

    /// What the journal has to keep of a timeline, if this server is a standby of its tenant.
    pub(super) fn need(&self, id: &journal::Id, standbys: &HashSet<TenantShardId>) -> Option<Need> {
        // As long as it is not known what the bucket has, all may be needed.
        let all = Need::From(Lsn(0));
        if self.held.lock().contains(&id.tenant) {
            return Some(all);
        }
        standbys.contains(&id.tenant).then(|| match self.seen.lock().get(&id.tenant) {
            None => all,
            Some(seen) => match seen.get(&id.timeline) {
                None => Need::Nothing,
                Some(None) => all,
                Some(Some(known)) => Need::From(known.end.last),
            },
        })
    }

    /// Gives up what the journal has of a timeline, for want of room. It is followed anew from what the bucket has. Not
    /// while the tenant is being attached: it is taken in then, and has room as what is this server's own.
    pub(super) async fn give_up(&self, id: Id) {
        if self.held.lock().contains(&id.0) {
            return;
        }
        self.end(|other| *other == id).await;
        tracing::error!(
            tenant = %id.0, timeline = %id.1,
            "the journal is full: what this standby has of the timeline is given up, so that WAL of this server's own \
             timelines has room. Raise journal_size, or see to it that its owner reaches the bucket"
        );
        metrics::METRICS.standby_given_up.inc();
        // An error is the end of the process.
        let _ = self.lane(id).void(Lsn(0)).await;
    }

    /// Receives nothing more from the compute `writer`. False if what the journal has of the timeline is of another
    /// one.
    pub(super) async fn seal(&self, id: Id, writer: &str) -> Result<bool, StorageError> {
        let known = Mark::of(self.conf, id).read().await?;
        let Some(known) = known.filter(|known| WalSource::is_mark_of(known, writer)) else { return Ok(false) };
        self.sealed.lock().insert(id, (known, env::clock::now() + SEALED));
        self.end(|other| *other == id).await;
        Ok(true)
    }

    fn is_sealed(&self, id: &Id, mark: &str) -> bool {
        let sealed = self.sealed.lock();
        sealed.get(id).is_some_and(|(known, until)| known == mark && *until > env::clock::now())
    }

    pub(super) fn lane(&self, (tenant, timeline): Id) -> journal::Lane {
        self.journal.lane(journal::Id { tenant, timeline })
    }

    /// How all timelines of a tenant are followed.
    pub(super) fn status(&self, tenant: TenantShardId) -> Vec<StandbyStatus> {
        let followers = self.followers.lock();
        let of_tenant = followers.iter().filter(|((of, _), _)| *of == tenant);
        let mut all: Vec<StandbyStatus> = of_tenant.map(|(_, running)| running.follower.read_status()).collect();
        all.sort_by_key(|status| status.timeline_id);
        all
    }

    /// Ends followers.
    pub(super) async fn end(&self, which: impl Fn(&Id) -> bool) {
        let ended: Vec<Running> = self.followers.lock().extract_if(|id, _| which(id)).map(|(_, ended)| ended).collect();
        ended.iter().for_each(|running| running.follower.cancel.cancel());
        for running in ended {
            if let Err(error) = running.task.await {
                tracing::error!("receiving as a standby failed: {error}");
            }
        }
    }

    /// Ends all of them.
    pub(super) async fn shutdown(&self) {
        self.end(|_| true).await;
    }

    /// Follows the writers of a tenant's timelines as the bucket has them.
    pub(super) async fn follow(&self, tenant: TenantShardId, found: Elsewhere) {
        for (timeline, known) in &found {
            let Some(known) = known else { continue };
            match source_of(known) {
                Some(source) => self.follow_one((tenant, *timeline), source, known).await,
                None => self.end(|id| *id == (tenant, *timeline)).await,
            }
        }
        self.end(|(of, timeline)| *of == tenant && !found.contains_key(timeline)).await;
        self.seen.lock().insert(tenant, found);
    }

    async fn follow_one(&self, id: Id, source: WalSource, known: &TimelineElsewhere) {
        let is_same = self.followers.lock().get(&id).is_some_and(|Running { follower, task }| {
            let is_same = follower.source == source && !task.is_finished();
            if is_same {
                follower.learn(known.end);
            }
            is_same
        });
        if is_same || self.is_sealed(&id, &source.writer_mark()) {
            return;
        }
        self.end(|other| *other == id).await;
        let name = match source.standby_name(&self.conf.server.id) {
            Ok(name) => name,
            Err(error) => return tracing::error!(tenant = %id.0, timeline = %id.1, "not followed: {error}"),
        };
        let mark = Mark::of(self.conf, id);
        let follower = Follower::new(id, source, name, mark, self.lane(id), known, self.cancel.child_token());
        // This server may be about to become the owner.
        let held = self.held.lock();
        if !held.contains(&id.0) && !self.cancel.is_cancelled() {
            self.followers.lock().insert(id, Running::begin(follower));
        }
    }

    /// Whether what the journal has of a timeline continues what the bucket has of it.
    pub(super) async fn is_of_its_writer(&self, timeline: &Timeline) -> Result<bool, StorageError> {
        let source = WalSource::of(timeline).ok().flatten();
        let known = Mark::of(self.conf, (timeline.tenant_shard_id(), timeline.timeline_id())).read().await?;
        let is_same = known.is_some() && known == source.map(|source| source.writer_mark());
        Ok(is_same || fault::planted(fault::Bug::ReplayOtherWriter))
    }

    /// Takes in what there is here of some timelines behind their layers, if it is of the writer that the timeline has;
    /// otherwise it is void.
    async fn take_in_own(&self, timelines: &[Timeline]) -> Result<(), StorageError> {
        let mut replays = Vec::new();
        for timeline in timelines {
            let lane = self.lane((timeline.tenant_shard_id(), timeline.timeline_id()));
            if lane.is_empty() {
                continue;
            }
            if self.is_of_its_writer(timeline).await? {
                replays.push(journaled::replay_or_warn(timeline.clone(), lane));
            } else {
                lane.void(Lsn(0)).await?;
            }
        }
        tokio::select! {
            () = journaled::replay_to_the_end(replays) => Ok(()),
            () = self.cancel.cancelled() => Err(StorageError::Shutdown),
        }
    }

    /// Takes in what there is of a tenant's timelines: here, as far as it counts, and in the bucket.
    async fn take_in(&self, tenant: TenantShardId, timelines: Vec<Timeline>) -> Result<(), StorageError> {
        self.take_in_own(&timelines).await?;
        self.take_in_tails(tenant, timelines).await
    }

    async fn take_in_tails(&self, tenant: TenantShardId, timelines: Vec<Timeline>) -> Result<(), StorageError> {
        if self.conf.bucket_tail_interval.is_some() {
            tail::take_in_all(&timelines).await?;
        }
        mark::settle(&self.conf.tenant_path(&tenant)).await?;
        drop(env::spawn::task("flush after a takeover", write_out(timelines)));
        Ok(())
    }

    /// A start goes on where this server was when it ended, if that was while it became the owner of a tenant.
    pub(super) async fn settle(&self, tenant: TenantShardId, timelines: Vec<Timeline>) -> Result<(), StorageError> {
        let settled = async {
            let is_in_doubt = mark::is_in_doubt(&self.conf.tenant_path(&tenant)).await?;
            if is_in_doubt {
                self.take_in_own(&timelines).await?;
            }
            Ok(is_in_doubt)
        };
        match settled.await {
            Ok(false) => Ok(()),
            Ok(true) => self.take_in_tails(tenant, timelines).await,
            Err(error) => {
                // What may be of another writer must not be taken in.
                let reason = format!("of which writer it is what the journal has of it is not known: {error}");
                timelines.iter().for_each(|timeline| timeline.note_panic(reason.clone()));
                Err(error)
            }
        }
    }
}

fn source_of(known: &TimelineElsewhere) -> Option<WalSource> {
    // What makes no sense its owner reports.
    let stored = known.told.as_ref().filter(|_| !known.is_archived).and_then(|told| Stored::parse(told).ok());
    stored?.source()
}

/// What only this server has now is to be in the bucket soon. A failure was logged where it occurred, and it is tried
/// again when a layer is due.
async fn write_out(timelines: Vec<Timeline>) {
    let ctx = RequestContext::new(TaskKind::WalReceiverConnectionHandler, DownloadBehavior::Error);
    for timeline in timelines {
        let _ = timeline.flush(&ctx).await;
    }
}

/// See [`Journals`].
pub(super) struct Kept(pub(super) Arc<Standing>);

impl Journals for Kept {
    fn forget(&self, tenant: TenantShardId) -> BoxFuture<'static, Result<(), StorageError>> {
        let standing = Arc::clone(&self.0);
        Box::pin(async move {
            standing.end(|(of, _)| *of == tenant).await;
            standing.seen.lock().remove(&tenant);
            standing.journal.forget_tenant(tenant).await?;
            mark::remove_all(&standing.conf.tenant_path(&tenant)).await
        })
    }

    fn step_down(&self, tenant: TenantShardId) {
        // Of what the bucket had when this server was a standby before it may have more timelines now.
        self.0.seen.lock().remove(&tenant);
        self.0.journal.end_lives(tenant);
    }

    fn stand_still(&self, tenant: TenantShardId, is_standby: bool) -> BoxFuture<'static, Result<(), StorageError>> {
        let standing = Arc::clone(&self.0);
        standing.held.lock().insert(tenant);
        Box::pin(async move {
            standing.end(|(of, _)| *of == tenant).await;
            // Receivers of the time when this server was the owner may not have ended yet.
            let known = standing.journal.end_lives(tenant);
            if is_standby || known.is_empty() {
                return Ok(());
            }
            let dir = standing.conf.tenant_path(&tenant);
            fs::create_dir_durably(&dir, &standing.conf.workdir).await?;
            mark::put_in_doubt(&dir).await
        })
    }

    fn take_in(&self, tenant: TenantShardId, timelines: Vec<Timeline>) -> BoxFuture<'static, Result<(), StorageError>> {
        let standing = Arc::clone(&self.0);
        Box::pin(async move { standing.take_in(tenant, timelines).await })
    }

    fn go_on(&self, tenant: TenantShardId) {
        self.0.held.lock().remove(&tenant);
    }
}
