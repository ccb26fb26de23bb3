//! Configuration of the engine.

use std::num::NonZeroUsize;
use std::time::Duration;

use camino::Utf8PathBuf;
use pageserver_api::models::virtual_file::{IoEngineKind, IoMode};
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use crate::block_cache::BlockLimits;
use crate::disk_budget::DiskBudget;
use crate::live_keys::LiveKeys;
use crate::observer::NewObserver;
use crate::resources::{EPHEMERAL_MEMORY, Resources};
use remote_storage::RemoteStorage;

/// Which tenants are attached at startup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachOnStart {
    /// Those whose last owner was this server, and those without a known owner.
    Own,
    /// All tenants in the bucket and on the local disk, whoever owns them.
    All,
    /// Those on the local disk.
    Local,
}

/// When and how layers are compacted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionPolicy {
    /// L0 layers are sorted when there are this many; 0 disables compaction.
    pub l0_layers: usize,
    /// Maximum number of L0 layers sorted together.
    pub l0_layers_max: usize,
    /// Intended size of a sorted layer in bytes.
    pub file_bytes: u64,
    /// Number of delta layers that may lie above an image of the same keys before some are merged.
    pub height: usize,
    /// Images are made of keys whose delta layers have this percentage of the bytes of their newest images.
    pub image_percent: u64,
    /// Images are made at the cutoff where what lies between them and the older ones there is this percentage of the
    /// bytes that have to be kept.
    pub fold_percent: u64,
    /// Images within the history that is kept go when they were not read for so long, unless they are the newest of
    /// their keys, or the oldest.
    pub thin_after: Duration,
    /// Those images may be this percentage of all else that is stored; if they are more, the ones that nobody has read
    /// for longest go at once.
    pub spare_percent: u64,
    /// Sorted layers have an image of a page after so many records of it in a row; 0: never.
    pub records: usize,
    /// Maximum bytes of layers that one job rewrites, if it can be helped,
    pub job_bytes: u64,
    /// and in any case, but for a single L0 layer.
    pub job_bytes_max: u64,
    /// Memory in bytes that one job may take for what it reads, however much that is.
    pub memory: u64,
    /// From this many L0 layers on, ingest is slowed; 0 never slows it.
    pub l0_slow: usize,
    /// At this many L0 layers ingest waits for compaction.
    pub l0_wait: usize,
}

impl CompactionPolicy {
    /// How much less of a processor jobs get than those who wait for pages, where both want all of it: a third. Much
    /// less, and a server that is busy with reads would never do what keeps these short.
    pub const NICENESS: i32 = 5;
    /// No compaction.
    pub const OFF: Self = Self { l0_layers: 0, l0_slow: 0, ..Self::ON };
    /// The defaults of a server.
    pub const ON: Self = Self {
        l0_layers: 4,
        l0_layers_max: 8,
        file_bytes: 128 << 20,
        height: 6,
        image_percent: 50,
        fold_percent: 30,
        thin_after: Duration::from_secs(3600),
        spare_percent: 25,
        records: 32,
        job_bytes: 1 << 30,
        job_bytes_max: u64::MAX,
        memory: 96 << 20,
        l0_slow: 6,
        l0_wait: 12,
    };

    /// The same, with files and jobs for which a disk of so many bytes has room beside everything else.
    #[must_use]
    pub fn within(&self, disk: u64) -> Self {
        Self {
            file_bytes: self.file_bytes.min(disk / 32),
            job_bytes: self.job_bytes.min(disk / 8),
            job_bytes_max: self.job_bytes_max.min(disk / 4),
            ..self.clone()
        }
    }
}

/// How much history is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// What arrived within this time is kept.
    pub pitr_interval: Duration,
    /// This many bytes of WAL up to the last record are kept, whenever they arrived.
    pub gc_horizon: u64,
    /// History goes beyond so many bytes of WAL, however new it is; 0 is no limit. `gc_horizon` wins.
    pub history_max_bytes: u64,
    /// How often history that nothing keeps is removed; zero: only on request.
    pub gc_period: Duration,
    /// How long nothing is removed after a tenant was attached: until then a branch may be unknown, as lists of buckets
    /// lag.
    pub quiet_after_attach: Duration,
}

impl RetentionPolicy {
    /// The defaults of a server.
    pub const DEFAULT: Self = Self {
        pitr_interval: Duration::from_secs(7 * 24 * 3600),
        gc_horizon: 64 << 20,
        history_max_bytes: 0,
        gc_period: Duration::from_secs(600),
        quiet_after_attach: Duration::from_secs(900),
    };
    /// History goes only on request.
    pub const ON_REQUEST: Self = Self { gc_period: Duration::ZERO, ..Self::DEFAULT };
    /// Longer times make no sense.
    pub const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

    /// What makes no sense about how much is kept, if anything does: the setting's name, and why.
    pub fn defect(&self) -> Option<(&'static str, String)> {
        let Self { pitr_interval, gc_horizon, history_max_bytes, .. } = *self;
        if pitr_interval < Duration::from_secs(1) {
            return Some(("pitr_interval", "must be at least 1s".to_owned()));
        }
        if pitr_interval > Self::LONGEST {
            return Some(("pitr_interval", "must not be above 36500days".to_owned()));
        }
        if gc_horizon == 0 {
            let reason = "must not be 0: whoever reads the end would find it gone when the next record comes";
            return Some(("gc_horizon", reason.to_owned()));
        }
        if history_max_bytes > 0 && history_max_bytes < gc_horizon {
            let reason = format!("must be 0, for no limit, or at least gc_horizon, which is {gc_horizon}");
            return Some(("history_max_bytes", reason));
        }
        None
    }
}

/// When a server keeps a lease, for standbys to see that it is there, and when they take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasePolicy {
    /// How often the lease is renewed; zero: there are neither leases nor standbys.
    pub interval: Duration,
    /// A standby takes over after it has seen the same lease for so long.
    pub takeover_after: Duration,
    /// A lease is kept although no standby asks for it.
    pub keep: bool,
}

impl LeasePolicy {
    /// The defaults of a server.
    pub const DEFAULT: Self =
        Self { interval: Duration::from_secs(2), takeover_after: Duration::from_secs(10), keep: false };
    /// No leases.
    pub const OFF: Self = Self { interval: Duration::ZERO, ..Self::DEFAULT };

    /// What makes no sense, if anything does: the setting's name, and why.
    pub fn defect(&self) -> Option<(&'static str, String)> {
        if self.interval.is_zero() {
            return None;
        }
        if self.interval < Duration::from_millis(100) {
            return Some(("lease_interval", "must be 0, for none, or at least 100ms".to_owned()));
        }
        if self.takeover_after < self.interval * 3 {
            let reason = format!("must be at least three times lease_interval, which is {:?}", self.interval);
            return Some(("takeover_after", reason));
        }
        None
    }
}

/// A server's identity, as recorded in the bucket for the owners of tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Unique id of the server. If empty, the server is anonymous and owns nothing.
    pub id: String,
    /// Earlier ids of the same server.
    pub former: Vec<String>,
    /// The name of its machine, for humans.
    pub host: String,
}

impl ServerIdentity {
    /// All its ids, the current one first.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.id.as_str()).chain(self.former.iter().map(String::as_str))
    }

    /// Whether `id` is one of this server's ids.
    pub fn is(&self, id: &str) -> bool {
        !id.is_empty() && self.all().any(|own| own == id)
    }
}

/// All settings of a process.
#[derive(Clone, Debug)]
pub struct PageServerConf {
    /// Directory that holds everything stored locally.
    pub workdir: Utf8PathBuf,
    /// Memory for index pages of layers, in pages of 8 KiB.
    pub page_cache_size: usize,
    /// When file I/O bypasses the kernel's page cache.
    pub virtual_file_io_mode: IoMode,
    /// Which system interface performs file I/O; `None` picks the best one that works.
    pub virtual_file_io_engine: Option<IoEngineKind>,
    /// An open in-memory layer is frozen when it reaches this many bytes.
    pub checkpoint_distance: u64,
    /// An open in-memory layer is frozen at this age if its LSN has advanced.
    pub checkpoint_timeout: Duration,
    /// When and how layers are compacted.
    pub compaction: CompactionPolicy,
    /// How much history is kept.
    pub retention: RetentionPolicy,
    /// How many frozen layers may be flushed concurrently.
    pub l0_flush_max_concurrency: NonZeroUsize,
    /// Bytes of an in-memory layer's newest values that stay in memory even though they are on disk already.
    pub ephemeral_keep_bytes: u64,
    /// Bytes of all in-memory layers together that stay in memory although they are on disk, as long as they are all of
    /// their layer: it is sealed without being read.
    pub ephemeral_memory: u64,
    /// In-memory layers with fewer bytes of values are not copied in order, however scattered these are: whoever needs
    /// them reads the file in one go. 0: all are copied whose values are scattered, also where files are written
    /// through the kernel's cache. Not a setting.
    pub copied_layer_min: u64,
    /// How often WAL that only the journal has is put into the bucket; `None`: never.
    pub bucket_tail_interval: Option<Duration>,
    /// How long a read waits for WAL that has not arrived.
    pub wait_lsn_timeout: Duration,
    /// Reads that take longer are told about in the log; zero: none.
    pub slow_read_threshold: Duration,
    /// How long a lease keeps an LSN readable.
    pub lsn_lease_length: Duration,
    /// Maximum number of keys in one vectored read.
    pub max_get_vectored_keys: NonZeroUsize,
    /// Maximum bytes of records from which one page is rebuilt at once; a page with more is rebuilt in pieces.
    pub rebuild_bytes: u64,
    /// Maximum number of page requests of one connection that are served by one read.
    pub page_service_max_batch_size: NonZeroUsize,
    /// The bucket; `None` if everything is stored on the local disk alone.
    pub remote_storage: Option<RemoteStorage>,
    /// How long startup waits for a bucket that does not answer.
    pub remote_storage_start_timeout: Duration,
    /// Which tenants to attach at startup.
    pub attach_on_start: AttachOnStart,
    /// This server's identity.
    pub server: ServerIdentity,
    /// Leases and standbys.
    pub lease: LeasePolicy,
    /// Memory for blocks of layers that are not on the local disk, cached or in transit, in bytes.
    pub block_cache_memory: u64,
    /// Local disk space for blocks of layers that are not resident, in bytes.
    pub block_cache_disk: u64,
    /// Maximum number of bytes that one request reads ahead of a sequential read.
    pub read_ahead_max: u64,
    /// Percentage of a layer that, once read, causes the whole layer to be fetched; above 100 disables this.
    pub prefetch_whole_after: u64,
    /// Maximum number of bytes that are fetched at once to open a timeline's layers.
    pub open_ahead_max: u64,
    /// Maximum local disk space for everything stored, in bytes; 0 is the whole disk.
    pub disk_budget_bytes: u64,
    /// Local disk space to keep free, in bytes; 0 means 2 GiB or 5 % of the file system, whichever is less.
    pub disk_reserve: u64,
    /// Remaining local disk space as last measured; not a setting.
    pub disk_budget: DiskBudget,
    /// Knows which keys are in use; without it, all are. Not a setting.
    pub live_keys: Option<&'static dyn LiveKeys>,
    /// Creates the observer of values written to a timeline; not a setting.
    pub observer: Option<NewObserver>,
    /// Resources shared by all tenants; not a setting.
    pub resources: Resources,
}

impl PageServerConf {
    /// Default settings for tests and benchmarks, with `workdir` as the working directory, which may be empty.
    pub fn dummy_conf(workdir: Utf8PathBuf) -> Self {
        let blocks = BlockLimits::default();
        Self {
            workdir,
            page_cache_size: 8192,
            virtual_file_io_mode: IoMode::default(),
            virtual_file_io_engine: None,
            checkpoint_distance: 256 << 20,
            checkpoint_timeout: Duration::from_secs(600),
            compaction: CompactionPolicy::OFF,
            retention: RetentionPolicy::ON_REQUEST,
            l0_flush_max_concurrency: NonZeroUsize::MIN,
            ephemeral_keep_bytes: 0,
            ephemeral_memory: EPHEMERAL_MEMORY,
            copied_layer_min: 4 << 20,
            bucket_tail_interval: None,
            wait_lsn_timeout: Duration::from_secs(300),
            slow_read_threshold: Duration::ZERO,
            lsn_lease_length: Duration::from_secs(600),
            max_get_vectored_keys: NonZeroUsize::MIN.saturating_add(127),
            rebuild_bytes: 16 << 20,
            page_service_max_batch_size: NonZeroUsize::MIN.saturating_add(127),
            remote_storage: None,
            remote_storage_start_timeout: Duration::from_secs(60),
            attach_on_start: AttachOnStart::Own,
            server: ServerIdentity { id: "test".to_owned(), ..ServerIdentity::default() },
            lease: LeasePolicy::OFF,
            block_cache_memory: blocks.memory,
            block_cache_disk: blocks.disk,
            read_ahead_max: blocks.read_ahead_max,
            prefetch_whole_after: blocks.whole_after,
            open_ahead_max: blocks.open_ahead_max,
            disk_budget_bytes: 0,
            disk_reserve: 0,
            disk_budget: DiskBudget::default(),
            live_keys: None,
            observer: None,
            resources: Resources::default(),
        }
    }

    /// Applies these settings to the caches.
    pub fn configure_caches(&self) {
        self.resources.pages.configure(self.page_cache_size);
        self.resources.kept.set_limit(self.ephemeral_memory);
        self.resources.blocks.configure(BlockLimits {
            memory: self.block_cache_memory,
            disk: self.block_cache_disk,
            read_ahead_max: self.read_ahead_max,
            whole_after: self.prefetch_whole_after,
            open_ahead_max: self.open_ahead_max,
        });
    }

    /// Directory of all tenants.
    pub fn tenants_path(&self) -> Utf8PathBuf {
        self.workdir.join("tenants")
    }

    /// Directory of one tenant shard.
    pub fn tenant_path(&self, tenant_shard_id: &TenantShardId) -> Utf8PathBuf {
        self.tenants_path().join(tenant_shard_id.to_string())
    }

    /// Directory of all timelines of a tenant shard.
    pub fn timelines_path(&self, tenant_shard_id: &TenantShardId) -> Utf8PathBuf {
        self.tenant_path(tenant_shard_id).join("timelines")
    }

    /// Directory of one timeline.
    pub fn timeline_path(&self, tenant_shard_id: &TenantShardId, timeline_id: &TimelineId) -> Utf8PathBuf {
        self.timelines_path(tenant_shard_id).join(timeline_id.to_string())
    }
}
