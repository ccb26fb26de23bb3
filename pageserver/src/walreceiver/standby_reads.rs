//! Reads from a standby (decision 0040). The standby has a second engine, which opens a tenant as it is in the bucket,
//! behind an overlay that takes what that engine writes, and takes in WAL from this server's journal as it comes. So it
//! serves what the owner would, at every LSN that this server has; and nobody else notices.
//!
//! There is one only for tenants that somebody reads. When the owner removes what was compacted, or the writer changes,
//! it is closed, and the next reader has it opened from what the bucket has then.

mod feed;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use remote_storage::{Overlay, RemotePath};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utils::sync::keyed_lock::KeyedLock;

use super::standby::Standing;
use engine::config::{AttachOnStart, CompactionPolicy, LeasePolicy, PageServerConf, RetentionPolicy};
use engine::resources::Resources;
use engine::tenant::manager::{ManageError, TenantManager};
use engine::tenant::timeline::{Timeline, Told};
use errors::StorageError;
use metrics::METRICS;
use virtual_file::fs;

/// Directory in the working directory: emptied by each start.
const DIRECTORY: &str = "standby-reads";
/// Its caches have this part of what the server's have.
const CACHE_PART: u64 = 4;
/// Nobody has read for so long: what is open is closed.
const IDLE: Duration = Duration::from_secs(300);
/// How often it is looked whether what is open is still as it should be.
const LOOK: Duration = Duration::from_secs(1);
/// So many looks in a row it may be behind what the bucket has.
const BEHIND_MAX: u32 = 3;
/// It is closed when so many times the bytes of an in-memory layer have come in since, if the bucket has them: nothing
/// here compacts.
const DISTANCES: u64 = 4;
/// So many errors of a tenant are remembered, to know those that come again.
const ERRORS: usize = 32;

/// See the module's documentation. Cheap to clone.
#[derive(Clone)]
pub struct StandbyReads {
    inner: Arc<Inner>,
}

struct Inner {
    manager: TenantManager,
    standing: Option<Arc<Standing>>,
    /// Made when somebody reads for the first time.
    engine: OnceCell<Engine>,
    open: Mutex<HashMap<TenantShardId, Arc<Open>>>,
    failed: Mutex<HashMap<TenantShardId, Failed>>,
    /// Held while a tenant is opened or closed.
    turns: KeyedLock<TenantShardId>,
    cancel: CancellationToken,
}

/// The second engine.
struct Engine {
    conf: &'static PageServerConf,
    overlay: Overlay,
    manager: TenantManager,
}

/// A tenant that is open in it.
struct Open {
    /// Who reads has one of these.
    users: Arc<()>,
    used: Mutex<Instant>,
    /// Where each timeline began, and how it was at the last look.
    seen: Mutex<HashMap<TimelineId, Seen>>,
    /// Ends what feeds it.
    cancel: CancellationToken,
}

struct Seen {
    began: Lsn,
    last: Lsn,
    /// For how many looks it was behind what the bucket has.
    behind: u32,
    /// What the bucket said of it at the last look.
    told: Option<Option<Told>>,
}

/// A timeline to read from, for as long as this is there.
pub struct StandbyRead {
    /// The timeline. It may be closed at any moment: the reader comes again then.
    pub timeline: Timeline,
    reads: StandbyReads,
    open: Arc<Open>,
    _user: Arc<()>,
}

impl StandbyRead {
    /// A read has failed. True if the cause may be that the owner has removed what this needed: then it was closed, and
    /// whoever comes again gets what is there now. What has failed in the same way before does not change by that.
    pub async fn has_ended(&self, error: String) -> bool {
        let tenant = self.timeline.tenant_shard_id();
        let is_new = self.reads.inner.failed.lock().entry(tenant).or_default().is_new(error);
        if is_new {
            self.reads.close(tenant, &self.open, "a read failed").await;
        }
        is_new
    }
}

/// The last errors of a tenant's reads.
#[derive(Default)]
struct Failed {
    errors: VecDeque<String>,
}

impl Failed {
    /// Notes an error. False if it is known.
    fn is_new(&mut self, error: String) -> bool {
        if self.errors.contains(&error) {
            return false;
        }
        self.errors.push_back(error);
        if self.errors.len() > ERRORS {
            self.errors.pop_front();
        }
        true
    }
}

impl StandbyReads {
    /// Reads of the tenants of which a server is a standby. Without a `standing` it has no journal, and serves none.
    pub(super) fn new(manager: TenantManager, standing: Option<Arc<Standing>>, cancel: CancellationToken) -> Self {
        let (engine, open, failed, turns) = Default::default();
        Self { inner: Arc::new(Inner { manager, standing, engine, open, failed, turns, cancel }) }
    }

    /// Removes what an earlier process has left, and looks after what is open from now on.
    pub(super) async fn begin(&self) {
        let dir = self.inner.manager.conf().workdir.join(DIRECTORY);
        if let Err(error) = fs::remove_tree(&dir).await {
            tracing::warn!("{dir}: what is left of reads from standbys takes room: {error}");
        }
        env::spawn::vital("reads from standbys", self.clone().look_after());
    }

    /// A timeline of a tenant of which this server is a standby.
    ///
    /// # Errors
    /// [`ManageError::NotFound`] if it is none; [`ManageError::Precondition`] without a journal; those of opening it.
    pub async fn read(&self, tenant: TenantShardId, timeline: TimelineId) -> Result<StandbyRead, ManageError> {
        if !self.is_standby(tenant) {
            return Err(ManageError::NotFound(format!("tenant {tenant} is not here")));
        }
        if self.inner.standing.is_none() {
            let reason = "a standby serves reads only if it has a journal (durability = \"journal\")";
            return Err(ManageError::Precondition(reason.to_owned()));
        }
        match self.read_once(tenant, timeline).await {
            // It may have been made since.
            Err(ManageError::NotFound(_)) if self.is_known(tenant, timeline) => {
                if let Some(open) = self.opened(tenant) {
                    self.close(tenant, &open, "there is another timeline").await;
                }
                self.read_once(tenant, timeline).await
            }
            read => read,
        }
    }

    /// Opening and closing go on to their end, although whoever asks for them may go away meanwhile: a timeline that
    /// nobody knows any more must not write where it is opened anew.
    async fn read_once(&self, tenant: TenantShardId, timeline: TimelineId) -> Result<StandbyRead, ManageError> {
        let reads = self.clone();
        let reading = async move { reads.read_to_the_end(tenant, timeline).await };
        let read = env::spawn::task("opening for reads from a standby", reading).await;
        read.unwrap_or_else(|error| Err(StorageError::Internal(format!("opening: {error}")).into()))
    }

    async fn read_to_the_end(&self, tenant: TenantShardId, timeline: TimelineId) -> Result<StandbyRead, ManageError> {
        let _turn = self.inner.turns.lock(tenant).await;
        let engine = self.inner.engine.get_or_try_init(|| Engine::make(self.inner.manager.conf())).await?;
        let open = match self.opened(tenant) {
            Some(open) => open,
            None => self.open(engine, tenant).await?,
        };
        *open.used.lock() = env::clock::now();
        let user = Arc::clone(&open.users);
        let timeline = engine.manager.get(tenant, timeline)?;
        Ok(StandbyRead { timeline, reads: self.clone(), open, _user: user })
    }

    fn opened(&self, tenant: TenantShardId) -> Option<Arc<Open>> {
        self.inner.open.lock().get(&tenant).cloned()
    }

    fn is_standby(&self, tenant: TenantShardId) -> bool {
        self.inner.manager.standbys().iter().any(|(id, _)| *id == tenant)
    }

    /// Whether the bucket had the timeline at the last look; true if nobody has looked.
    fn is_known(&self, tenant: TenantShardId, timeline: TimelineId) -> bool {
        let Some(standing) = &self.inner.standing else { return true };
        standing.seen.lock().get(&tenant).is_none_or(|seen| seen.contains_key(&timeline))
    }

    /// Opens a tenant as the bucket has it, and begins to feed it. The caller has its turn.
    async fn open(&self, engine: &Engine, tenant: TenantShardId) -> Result<Arc<Open>, ManageError> {
        let started = env::clock::now();
        engine.clear(tenant).await?;
        engine.manager.attach_tenant(tenant).await?;
        let timelines = engine.manager.timelines(tenant)?;
        let seen = |timeline: &Timeline| {
            let last = timeline.last_record_lsn();
            (timeline.timeline_id(), Seen { began: last, last, behind: 0, told: None })
        };
        let open = Arc::new(Open {
            users: Arc::default(),
            used: Mutex::new(started),
            seen: Mutex::new(timelines.iter().map(seen).collect()),
            cancel: self.inner.cancel.child_token(),
        });
        if let Some(standing) = &self.inner.standing {
            for timeline in timelines {
                let feeding = feed::feed(Arc::clone(standing), timeline, open.cancel.clone());
                drop(env::spawn::task("WAL for reads from a standby", feeding));
            }
        }
        self.inner.open.lock().insert(tenant, Arc::clone(&open));
        METRICS.standby_reads_opened.inc();
        let took = env::clock::now().saturating_duration_since(started);
        tracing::info!(%tenant, ?took, "it is read here, at a standby");
        Ok(open)
    }

    /// Closes what is open of a tenant, if it still is this. Who reads from it comes again.
    async fn close(&self, tenant: TenantShardId, open: &Arc<Open>, why: &'static str) {
        let (reads, open) = (self.clone(), Arc::clone(open));
        let closing = async move { reads.close_to_the_end(tenant, &open, why).await };
        // If it panicked, that was logged.
        let _ = env::spawn::task("closing what is read at a standby", closing).await;
    }

    async fn close_to_the_end(&self, tenant: TenantShardId, open: &Arc<Open>, why: &str) {
        let _turn = self.inner.turns.lock(tenant).await;
        {
            let mut all = self.inner.open.lock();
            if !all.get(&tenant).is_some_and(|known| Arc::ptr_eq(known, open)) {
                return;
            }
            all.remove(&tenant);
        }
        open.cancel.cancel();
        let Some(engine) = self.inner.engine.get() else { return };
        tracing::info!(%tenant, "what is read of it at this standby is closed: {why}");
        if let Err(error) = engine.clear(tenant).await {
            tracing::warn!(%tenant, "what was read of it at this standby is left: {error}");
        }
    }

    async fn look_after(self) {
        loop {
            tokio::select! {
                () = env::clock::sleep(LOOK) => {}
                () = self.inner.cancel.cancelled() => return,
            }
            let all: Vec<_> = self.inner.open.lock().iter().map(|(id, open)| (*id, Arc::clone(open))).collect();
            for (tenant, open) in all {
                if let Some(why) = self.must_close(tenant, &open) {
                    self.close(tenant, &open, why).await;
                }
            }
        }
    }

    /// Why what is open of a tenant must be closed, if so.
    fn must_close(&self, tenant: TenantShardId, open: &Open) -> Option<&'static str> {
        if !self.is_standby(tenant) {
            return Some("this server is no standby of it any more");
        }
        let idle_for = env::clock::now().saturating_duration_since(*open.used.lock());
        // One is its own.
        if Arc::strong_count(&open.users) == 1 && idle_for >= IDLE {
            return Some("nobody reads it");
        }
        let (standing, engine) = (self.inner.standing.as_ref()?, self.inner.engine.get()?);
        let limit = engine.conf.checkpoint_distance * DISTANCES;
        let elsewhere = standing.seen.lock();
        let found = elsewhere.get(&tenant)?;
        let mut all_seen = open.seen.lock();
        for timeline in engine.manager.timelines(tenant).unwrap_or_default() {
            let (id, last) = (timeline.timeline_id(), timeline.last_record_lsn());
            let Some(seen) = all_seen.get_mut(&id) else { continue };
            let Some(known) = found.get(&id) else { return Some("a timeline of it was deleted") };
            let Some(known) = known else { continue };
            let is_behind = known.end.last > last && last == seen.last;
            (seen.last, seen.behind) = (last, if is_behind { seen.behind + 1 } else { 0 });
            if seen.behind >= BEHIND_MAX {
                return Some("the bucket has more, and the journal does not go on from what it has");
            }
            if seen.told.as_ref() != Some(&known.told) {
                // The first look may have been before what was opened.
                if seen.told.replace(known.told.clone()).is_some() && known.told != timeline.told() {
                    return Some("what the bucket says of a timeline has changed");
                }
            }
            if known.end.last.0.saturating_sub(seen.began.0) > limit {
                return Some("the bucket has layers of what came in");
            }
        }
        None
    }

    /// Closes all.
    pub(super) async fn shutdown(&self) {
        let all: Vec<_> = self.inner.open.lock().drain().collect();
        all.iter().for_each(|(_, open)| open.cancel.cancel());
        if let Some(engine) = self.inner.engine.get() {
            for (tenant, _) in all {
                // The next start removes what is left.
                let _ = engine.manager.close_tenant(tenant).await;
            }
        }
    }
}

impl Engine {
    /// A second engine on the same bucket, which writes into a directory of its own.
    async fn make(conf: &'static PageServerConf) -> Result<Self, ManageError> {
        let Some(storage) = &conf.remote_storage else {
            return Err(ManageError::Precondition("a standby needs a bucket".to_owned()));
        };
        let dir = conf.workdir.join(DIRECTORY);
        fs::create_dir_durably(&dir, &conf.workdir).await?;
        let overlay = Overlay::open(storage, &dir.join("objects")).await?;
        let own = PageServerConf {
            remote_storage: Some(overlay.storage().clone()),
            page_cache_size: conf.page_cache_size / usize::try_from(CACHE_PART).unwrap_or(1),
            block_cache_memory: conf.block_cache_memory / CACHE_PART,
            block_cache_disk: conf.block_cache_disk / CACHE_PART,
            // Nothing here evicts whole layers.
            prefetch_whole_after: 101,
            workdir: dir,
            // Nothing is there yet. The tenants that this server owns are served by its own engine.
            attach_on_start: AttachOnStart::Local,
            compaction: CompactionPolicy::OFF,
            retention: RetentionPolicy::ON_REQUEST,
            bucket_tail_interval: None,
            ephemeral_keep_bytes: 0,
            ephemeral_memory: 0,
            lease: LeasePolicy::OFF,
            resources: Resources::default(),
            ..conf.clone()
        };
        // Leaked once per process, as the server's own is.
        let conf: &'static PageServerConf = Box::leak(Box::new(own));
        let manager = TenantManager::load_idle(conf).await?;
        Ok(Self { conf, overlay, manager })
    }

    /// Closes a tenant, and removes all that is here of it.
    async fn clear(&self, tenant: TenantShardId) -> Result<(), ManageError> {
        self.manager.close_tenant(tenant).await?;
        fs::remove_tree(&self.conf.tenant_path(&tenant)).await?;
        self.overlay.forget(&RemotePath::tenant(&tenant)).await?;
        Ok(())
    }
}

/// An error after which it is worth looking whether what was needed has been removed: not one of the request's.
pub fn may_be_removed(error: &StorageError) -> bool {
    use errors::ErrorKind;
    !matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Retry | ErrorKind::Shutdown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_comes_again_is_known() {
        let mut failed = Failed::default();
        assert!(failed.is_new("one".to_owned()) && failed.is_new("two".to_owned()) && !failed.is_new("one".to_owned()));
        for number in 0..ERRORS {
            assert!(failed.is_new(number.to_string()));
        }
        assert!(failed.is_new("one".to_owned()), "it was long ago");
    }
}
