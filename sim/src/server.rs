//! A pageserver of the simulation: the production code as tasks of one process, on a simulated disk, over its own view
//! of the bucket.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use engine::config::{AttachOnStart, CompactionPolicy, PageServerConf, RetentionPolicy, ServerIdentity};
use engine::context::{DownloadBehavior, RequestContext};
use engine::resources::Resources;
use engine::task_mgr::TaskKind;
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::Timeline;
use env::process::Process;
use errors::{ErrorKind, StorageError};
use journal::Journal;
use pageserver::auth::Auth;
use pageserver::page_service::{PageService, PageServiceSettings};
use pageserver::walreceiver::{NewWriter, WalReceivers, Writer};
use pageserver_api::shard::TenantShardId;
use pgdata::PostgresKeys;
use pgdata::size_changes::SizeChanges;
use pq_proto::stream::BoxStream;
use remote_storage::{RemoteOptions, RemoteStorage};
use simulated::aged::AgedStore;
use simulated::bucket::FaultyStore;
use simulated::disk::SimDisk;
use simulated::platter::{Effect, Platter, Survival};
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use virtual_file::fs::TEMP_SUFFIX;
use virtual_file::simulated::Mounted;

use crate::network::Link;
use crate::origin::{Origin, Record};
use crate::plan::Setting;
use crate::story::{Story, tell, violation};
use crate::walsender::connstr;

/// Longer than this no step of an operator waits for a server.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// Longer than this nobody tries to reach the bucket.
const LAST_REQUESTS: Duration = Duration::from_secs(100);
/// Number of times that the scheduler goes around until all tasks of a killed process are gone.
const LAST_ROUNDS: usize = 10_000;
/// Small enough to be full soon.
const JOURNAL: journal::Options =
    journal::Options { segment_bytes: 64 << 10, bytes: 512 << 10, pending_bytes: 64 << 10 };
/// The simulation's own task, which stands for a receiver where values come as from a decoder.
const FEED: &str = "source of values";

/// A server, whether it runs or not.
pub struct Server {
    /// Its name.
    pub name: &'static str,
    /// Its view of the bucket.
    pub bucket: Arc<FaultyStore>,
    /// Its disk.
    pub disk: SimDisk,
    mounted: Option<Mounted>,
    life: Option<Life>,
    conf: &'static PageServerConf,
    root: Utf8PathBuf,
    is_postgres: bool,
    has_journal: bool,
    /// Up to which record its timelines were durable in the journal; of which life, and which of its instances.
    journaled: BTreeMap<(TenantShardId, TimelineId), ((u64, u64), Lsn)>,
    /// Whether its journal gave up, in an earlier life, what its layers had and the bucket did not.
    trimmed_early: bool,
    /// How often it was started.
    starts: u64,
    story: Story,
}

/// From a start to an end.
struct Life {
    process: Process,
    manager: TenantManager,
    page_service: PageService,
    receivers: WalReceivers,
    journal: Option<Journal>,
    /// Ends connections.
    cancel: CancellationToken,
    /// The number of this life.
    number: u64,
    /// The sources whose WAL is being fed to timelines of this instance.
    fed: BTreeMap<TimelineId, u64>,
}

/// What a caller of the engine says it is.
pub fn context() -> RequestContext {
    RequestContext::new(TaskKind::PageRequestHandler, DownloadBehavior::Error)
}

fn config(root: &Utf8PathBuf, name: &str, storage: RemoteStorage, setting: &Setting) -> &'static PageServerConf {
    let compaction = CompactionPolicy {
        l0_layers: 2,
        l0_layers_max: 4,
        file_bytes: 20_000,
        height: 2,
        fold_percent: 10,
        thin_after: Duration::from_secs(60),
        records: 3,
        job_bytes: 200_000,
        memory: setting.memory.job,
        l0_slow: setting.l0_slow,
        l0_wait: if setting.l0_slow > 0 { setting.l0_slow * 3 } else { 0 },
        ..CompactionPolicy::ON
    };
    let retention = RetentionPolicy {
        pitr_interval: setting.pitr_interval,
        gc_horizon: setting.gc_horizon,
        gc_period: setting.gc_period,
        quiet_after_attach: setting.quiet_after_attach,
        history_max_bytes: 0,
    };
    let conf = PageServerConf {
        checkpoint_distance: setting.checkpoint_distance,
        checkpoint_timeout: Duration::from_secs(60),
        rebuild_bytes: 100,
        page_cache_size: setting.memory.pages,
        block_cache_memory: setting.memory.blocks,
        open_ahead_max: setting.memory.blocks / 24,
        ephemeral_keep_bytes: setting.memory.kept,
        ephemeral_memory: setting.memory.values,
        copied_layer_min: setting.memory.copied,
        block_cache_disk: 1 << 20,
        l0_flush_max_concurrency: NonZeroUsize::MIN.saturating_add(setting.memory.flushes - 1),
        compaction,
        retention,
        lease: setting.lease,
        bucket_tail_interval: setting.tail,
        remote_storage: Some(storage),
        attach_on_start: AttachOnStart::Own,
        live_keys: setting.is_postgres.then_some(&PostgresKeys),
        observer: setting.is_postgres.then_some(SizeChanges::observer),
        server: ServerIdentity { id: name.to_owned(), ..ServerIdentity::default() },
        ..PageServerConf::dummy_conf(root.clone())
    };
    Box::leak(Box::new(conf))
}

impl Server {
    /// A server with an empty disk, which does not run yet.
    pub fn new(
        name: &'static str,
        root: Utf8PathBuf,
        bucket: &Arc<AgedStore>,
        setting: &Setting,
        story: &Story,
    ) -> Self {
        let faults = FaultyStore::new(Arc::clone(bucket) as _);
        let calls = story.clone();
        faults.observe(Box::new(move |op, path| calls.call(format_args!("  {name}: {op:?} {path}"))));
        faults.set_latency(Duration::from_micros(setting.bucket_micros));
        let storage = RemoteStorage::with_options(Arc::clone(&faults) as _, "sim://bucket", RemoteOptions::default());
        let disk = SimDisk::new(&root);
        let conf = config(&root, name, storage, setting);
        disk.die_of_failed_syncs();
        let mounted = Some(disk.mount());
        let (is_postgres, has_journal) = (setting.is_postgres, setting.has_journal);
        Self {
            name,
            bucket: faults,
            disk,
            mounted,
            life: None,
            conf,
            root,
            is_postgres,
            has_journal,
            journaled: BTreeMap::new(),
            trimmed_early: false,
            starts: 0,
            story: story.clone(),
        }
    }

    /// Whether it runs.
    pub fn is_alive(&self) -> bool {
        self.life.is_some()
    }

    /// Whether it has ended by itself, and nobody has cleared up behind it.
    pub fn is_dying(&self) -> bool {
        self.life.as_ref().is_some_and(|life| life.process.is_dead() || self.disk.crashed())
    }

    /// Its tenants and timelines, if it runs.
    pub fn manager(&self) -> Option<TenantManager> {
        Some(self.life.as_ref()?.manager.clone())
    }

    /// What receives WAL for it, if it runs.
    pub fn receivers(&self) -> Option<WalReceivers> {
        Some(self.life.as_ref()?.receivers.clone())
    }

    /// Its process, if it runs.
    pub fn process(&self) -> Option<&Process> {
        Some(&self.life.as_ref()?.process)
    }

    /// Which of its lives it is, if it runs.
    pub fn life(&self) -> Option<u64> {
        Some(self.life.as_ref()?.number)
    }

    /// Where its disk has files of a tenant.
    pub fn dir_of(&self, tenant: TenantShardId) -> Utf8PathBuf {
        self.conf.tenant_path(&tenant)
    }

    /// One of its timelines.
    pub fn timeline(&self, tenant: TenantShardId, id: TimelineId) -> Option<Timeline> {
        self.life.as_ref()?.manager.get(tenant, id).ok()
    }

    /// Starts it with what is on its disk. False if it gives up.
    pub async fn start(&mut self) -> bool {
        // Caches go with the process, as all that it has in memory.
        let fresh = PageServerConf { resources: Resources::default(), ..self.conf.clone() };
        let (process, conf): (_, &'static PageServerConf) = (Process::new(), Box::leak(Box::new(fresh)));
        let dir = self.has_journal.then(|| self.root.join("journal"));
        let load = env::clock::timeout(PATIENCE, async move {
            let journal = match dir {
                Some(dir) => {
                    virtual_file::fs::create_dir_durably(&dir, &conf.workdir).await?;
                    Some(Journal::open(&dir, JOURNAL).await?)
                }
                None => None,
            };
            let manager = TenantManager::load(conf).await?;
            let receivers = match journal.clone() {
                Some(journal) => WalReceivers::with_journal(manager.clone(), journal),
                None => WalReceivers::new(manager.clone()),
            };
            let is_whole = receivers.recover().await;
            Ok::<_, StorageError>((manager, journal, receivers, is_whole))
        });
        match process.enter(|| env::spawn::task("start of a server", load)).await {
            Ok(Ok(Ok((manager, journal, receivers, is_whole)))) => {
                tell!(self.story, "{} has started", self.name);
                if is_whole {
                    self.check_journal(&manager);
                }
                for (_, timeline, reason) in manager.broken() {
                    tell!(self.story, "{}: timeline {timeline} could not be opened: {reason}", self.name);
                }
                let page_service = PageService::new(manager.clone(), Auth::trust(), PageServiceSettings::default());
                let (fed, cancel) = (BTreeMap::new(), CancellationToken::new());
                if self.is_postgres {
                    let receivers = receivers.clone();
                    let start = async move { receivers.start_all().await };
                    drop(process.enter(|| env::spawn::task("start of receivers", start)));
                }
                self.starts += 1;
                let number = self.starts;
                self.life = Some(Life { process, manager, page_service, receivers, journal, cancel, number, fed });
                return true;
            }
            Ok(Ok(Err(error))) => tell!(self.story, "{} does not start: {error}", self.name),
            Ok(Err(_)) => tell!(self.story, "{} does not start in time", self.name),
            Err(error) => violation!(self.story, "{} does not start: {error}", self.name),
        }
        self.end(process).await;
        false
    }

    /// Does `work` as tasks of this server. `None` if the server is killed, or it takes longer than `limit`.
    pub async fn run<F>(&self, name: &'static str, limit: Duration, work: F) -> Option<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let process = self.life.as_ref()?.process.clone();
        let mut task = process.enter(|| env::spawn::task(name, work));
        match env::clock::timeout(limit, &mut task).await {
            Ok(Ok(done)) => return Some(done),
            Ok(Err(error)) if error.is_panic() => violation!(self.story, "{}: {name} panicked", self.name),
            Ok(Err(_)) => {}
            Err(_) => {
                tell!(self.story, "{}: {name} takes too long", self.name);
                task.abort();
            }
        }
        None
    }

    /// A connection to its page service, if it runs.
    pub fn connect(&self, link: Link, chance: u64) -> Option<BoxStream> {
        let Life { process, page_service, cancel, .. } = self.life.as_ref()?;
        Some(link.connect(process, page_service, cancel, chance))
    }

    /// Feeds the WAL of `origin` to the server's timeline of that name, if it has that and nobody does so yet.
    pub fn feed(&mut self, tenant: TenantShardId, origin: &Origin) {
        let Some(timeline) = self.timeline(tenant, origin.id) else { return };
        let Some(life) = &mut self.life else { return };
        if timeline.fenced().is_some() || life.fed.insert(origin.id, timeline.instance()) == Some(timeline.instance()) {
            return;
        }
        let (origin, story, name) = (origin.clone(), self.story.clone(), self.name);
        if self.is_postgres {
            let follow = follow(life.receivers.clone(), timeline, origin, story);
            drop(life.process.enter(|| env::spawn::task("registration of a writer", follow)));
            return;
        }
        drop(life.process.enter(|| env::spawn::task(FEED, feed(timeline, origin, story, name))));
    }

    /// Kills it. `survival` says what its disk has afterwards.
    pub async fn kill(&mut self, survival: Survival) {
        tell!(self.story, "{} is killed; of its disk survives: {survival:?}", self.name);
        self.disk.crash_in(0);
        self.note_journal();
        self.trimmed_early = self.has_trimmed_early();
        if let Some(Life { process, manager, .. }) = self.life.take() {
            process.kill();
            drop(manager);
            self.end(process).await;
        }
        self.replace_disk(self.disk.survivor(survival));
    }

    /// Kills it and gives it an empty disk.
    pub async fn lose_disk(&mut self) {
        self.kill(Survival::Synced).await;
        tell!(self.story, "{} has an empty disk", self.name);
        let empty = SimDisk::new(&self.root);
        self.journaled.clear();
        self.replace_disk(empty.platter());
    }

    /// Ends it as an operator does.
    pub async fn shut_down(&mut self) {
        let Some(Life { manager, receivers, cancel, .. }) = &self.life else { return };
        let (manager, receivers) = (manager.clone(), receivers.clone());
        cancel.cancel();
        let shutdown = async move {
            receivers.shutdown().await;
            manager.shutdown().await;
        };
        if self.run("shutdown", PATIENCE, shutdown).await.is_none() {
            if self.is_dying() {
                return self.kill(Survival::Synced).await;
            }
            violation!(self.story, "{} does not shut down in time", self.name);
        }
        self.note_journal();
        self.trimmed_early = self.has_trimmed_early();
        let Some(Life { process, .. }) = self.life.take() else { return };
        // Those who were told to end do so, and those who ask the bucket once more give up.
        env::clock::sleep(LAST_REQUESTS).await;
        let left: Vec<&str> = process.tasks().into_iter().filter(|name| *name != FEED).collect();
        if !left.is_empty() {
            violation!(self.story, "{} has shut down, but has tasks: {left:?}", self.name);
        }
        tell!(self.story, "{} has shut down", self.name);
        self.disk.crash_in(0);
        process.kill();
        self.end(process).await;
        self.replace_disk(self.disk.survivor(Survival::Everything));
    }

    /// Whether its journal has ever given up, for want of room, what its layers had and the bucket did not.
    pub fn has_trimmed_early(&self) -> bool {
        let journal = self.life.as_ref().and_then(|life| life.journal.as_ref());
        self.trimmed_early || journal.is_some_and(|journal| journal.stats().gone_early > 0)
    }

    /// Notes what the journal has made durable.
    pub fn note_journal(&mut self) {
        let Some(Life { manager, journal: Some(journal), number, .. }) = &self.life else { return };
        let before = std::mem::take(&mut self.journaled);
        for timeline in manager.all_timelines() {
            let id = (timeline.tenant_shard_id(), timeline.timeline_id());
            let instance = (*number, timeline.instance());
            let synced = journal.lane(journal::Id { tenant: id.0, timeline: id.1 }).synced();
            let known = before.get(&id).filter(|(of, _)| *of == instance).map_or(Lsn::INVALID, |(_, lsn)| *lsn);
            // What is durable may end in the middle of a record.
            let whole = Some(timeline.last_record_lsn()).filter(|last| *last <= synced).unwrap_or_default();
            self.journaled.insert(id, (instance, known.max(whole)));
        }
    }

    /// What was durable in the journal is there again.
    fn check_journal(&self, manager: &TenantManager) {
        for ((tenant, id), (_, before)) in &self.journaled {
            let Ok(timeline) = manager.get(*tenant, *id) else { continue };
            let now = timeline.last_record_lsn();
            if now < *before {
                let name = self.name;
                violation!(self.story, "{name}: {id} was in the journal up to {before}, and begins again at {now}");
            }
        }
    }

    async fn end(&self, process: Process) {
        process.kill();
        for _ in 0..LAST_ROUNDS {
            if process.tasks().is_empty() {
                return;
            }
            tokio::task::yield_now().await;
        }
        violation!(self.story, "{} was killed, but these tasks do not end: {:?}", self.name, process.tasks());
    }

    /// Tells what was done to its disk since the last time.
    pub fn tell_of_disk(&self) {
        for entry in self.disk.take_journal() {
            let name = self.name;
            match entry.effect {
                // The names of some files are those of this process.
                Effect::Create { inode, .. } => self.story.call(format_args!("  {name}: new file {inode}")),
                Effect::CreateDir { path } => self.story.call(format_args!("  {name}: new directory {path}")),
                Effect::Write { inode, offset, bytes } => {
                    self.story.call(format_args!("  {name}: {} bytes at {offset} of {inode}", bytes.len()));
                }
                Effect::SetLen { inode, len } => self.story.call(format_args!("  {name}: length of {inode} is {len}")),
                Effect::Sync { inode } => self.story.call(format_args!("  {name}: sync of {inode}")),
                Effect::Rename { to, .. } if to.as_str().ends_with(TEMP_SUFFIX) => {
                    self.story.call(format_args!("  {name}: rename"));
                }
                Effect::Rename { to, .. } => self.story.call(format_args!("  {name}: rename to {to}")),
                Effect::Unlink { .. } => self.story.call(format_args!("  {name}: a file goes")),
                Effect::SyncDir { path } => self.story.call(format_args!("  {name}: sync of {path}")),
            }
        }
    }

    fn replace_disk(&mut self, platter: Platter) {
        self.tell_of_disk();
        self.disk = SimDisk::of(&self.root, platter);
        self.disk.die_of_failed_syncs();
        self.mounted = None;
        self.mounted = Some(self.disk.mount());
    }
}

/// Registers the Postgres that writes a timeline, from which its WAL is received from then on, however often it has to
/// be tried.
async fn follow(receivers: WalReceivers, timeline: Timeline, origin: Origin, story: Story) {
    let id = timeline.timeline_id();
    let cancelled = timeline.cancelled();
    while !cancelled.is_cancelled() && timeline.fenced().is_none() {
        if receivers.status(timeline.tenant_shard_id(), id).is_some() {
            return;
        }
        let writer = Writer { id: id.to_string(), name: "postgres".to_owned(), start_lsn: origin.begins };
        let new = NewWriter { writer, connstr: connstr(&origin), slot: "slot".to_owned(), replace: false };
        match receivers.register_writer(&timeline, new).await {
            Ok(()) => return tell!(story, "{id} has a writer"),
            Err(error) => tell!(story, "{id} has no writer: {error}"),
        }
        env::clock::sleep(Duration::from_secs(1)).await;
    }
}

/// What a WAL receiver does: everything after the timeline's last record goes in, and the source is told what it need
/// not keep.
async fn feed(timeline: Timeline, origin: Origin, story: Story, name: &'static str) {
    let mut end = origin.watch();
    let cancelled = timeline.cancelled();
    while !cancelled.is_cancelled() && timeline.fenced().is_none() {
        let last = timeline.last_record_lsn();
        for record in origin.after(last, 4) {
            let (lsn, prev) = (record.lsn, record.prev);
            origin.note_sent(lsn);
            if let Err(error) = put(&timeline, record).await {
                tell_unless_ended(&story, name, &timeline, &error);
                env::clock::sleep(Duration::from_secs(1)).await;
                break;
            }
            timeline.finish_write(lsn, prev);
        }
        origin.acknowledge(timeline.durable_lsn());
        if origin.last() == timeline.last_record_lsn() {
            let _ = env::clock::timeout(Duration::from_secs(1), end.changed()).await;
        }
    }
}

/// Puts a record. What was refused is put again, not the parts before it.
async fn put(timeline: &Timeline, record: Record) -> Result<(), StorageError> {
    for (number, batch) in record.batches.into_iter().enumerate() {
        loop {
            match timeline.put_batch(batch.clone(), &context()).await {
                Ok(()) => break,
                Err(error) if number == 0 || error.kind() != ErrorKind::Retry => return Err(error),
                Err(_) => env::clock::sleep(Duration::from_secs(1)).await,
            }
        }
    }
    Ok(())
}

fn tell_unless_ended(story: &Story, name: &str, timeline: &Timeline, error: &StorageError) {
    if !matches!(error, StorageError::Shutdown) {
        let (id, last): (TimelineId, Lsn) = (timeline.timeline_id(), timeline.last_record_lsn());
        tell!(story, "{name}: timeline {id} takes in nothing after {last}: {error}");
    }
}
