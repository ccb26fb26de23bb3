//! Configuration of the engine.

use std::num::NonZeroUsize;
use std::time::Duration;

use camino::Utf8PathBuf;
use pageserver_api::models::virtual_file::{IoEngineKind, IoMode};
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use crate::block_cache::BlockLimits;
use crate::disk_budget::DiskBudget;
use crate::observer::NewObserver;
use crate::resources::Resources;
use remote_storage::RemoteStorage;

/// Which tenants a start attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachOnStart {
    /// Those of which this server was the last owner, and those that nobody has owned as yet.
    Own,
    /// All that object storage has, and those that this disk has, whoever owns them.
    All,
    /// Those that this disk has.
    Local,
}

/// Who a server is, as object storage remembers the owners of tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerIdentity {
    /// What tells it from all others. Empty: nobody in particular, who owns nothing.
    pub id: String,
    /// Earlier ids of the same server.
    pub former: Vec<String>,
    /// The name of its machine, for people.
    pub host: String,
}

impl ServerIdentity {
    /// All its ids, that in use first.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.id.as_str()).chain(self.former.iter().map(String::as_str))
    }

    /// Whether `id` is one of them.
    pub fn is(&self, id: &str) -> bool {
        !id.is_empty() && self.all().any(|own| own == id)
    }
}

/// All settings of one process.
#[derive(Clone, Debug)]
pub struct PageServerConf {
    /// Directory that holds everything stored locally.
    pub workdir: Utf8PathBuf,
    /// Memory for index pages of layers, in pages of 8 KiB.
    pub page_cache_size: usize,
    /// When files bypass the kernel's page cache.
    pub virtual_file_io_mode: IoMode,
    /// Which system interface does file I/O; `None` picks the best that works.
    pub virtual_file_io_engine: Option<IoEngineKind>,
    /// An open in-memory layer of this many bytes is frozen.
    pub checkpoint_distance: u64,
    /// An open in-memory layer of this age is frozen once its LSN has advanced.
    pub checkpoint_timeout: Duration,
    /// How many frozen layers may be written to disk at once.
    pub l0_flush_max_concurrency: NonZeroUsize,
    /// Bytes of an in-memory layer's newest values that stay in memory although they are on disk already.
    pub ephemeral_keep_bytes: u64,
    /// How long a read waits for WAL that has not arrived.
    pub wait_lsn_timeout: Duration,
    /// How long a lease keeps an LSN readable.
    pub lsn_lease_length: Duration,
    /// Most keys in one vectored read.
    pub max_get_vectored_keys: NonZeroUsize,
    /// Most bytes of records that one page is rebuilt from at once: a page with more is rebuilt piece by piece.
    pub rebuild_bytes: u64,
    /// Most page requests of one connection that are served by one read.
    pub page_service_max_batch_size: NonZeroUsize,
    /// Where everything stored is kept in the end; `None` if this disk is all there is.
    pub remote_storage: Option<RemoteStorage>,
    /// How long a start waits for object storage that does not answer.
    pub remote_storage_start_timeout: Duration,
    /// Which tenants a start attaches.
    pub attach_on_start: AttachOnStart,
    /// Who this server is.
    pub server: ServerIdentity,
    /// Memory for blocks of layers that are not on this disk, cached or on their way, in bytes.
    pub block_cache_memory: u64,
    /// Local disk for blocks of layers that are not there as a whole, in bytes.
    pub block_cache_disk: u64,
    /// Most bytes that one request fetches ahead of a sequential read.
    pub read_ahead_max: u64,
    /// Percent of a layer which, once read, make it be fetched as a whole; never if above 100.
    pub prefetch_whole_after: u64,
    /// Most local disk for everything stored, in bytes; 0 is the whole disk.
    pub disk_budget_bytes: u64,
    /// Local disk that stays free, in bytes; 0 is 2 GiB or 5 % of the file system, whichever is less.
    pub disk_reserve: u64,
    /// How much more the local disk may take, as was last measured; not a setting.
    pub disk_budget: DiskBudget,
    /// Makes what is told of the values that come into a timeline; not a setting.
    pub observer: Option<NewObserver>,
    /// What all tenants share; not a setting.
    pub resources: Resources,
}

impl PageServerConf {
    /// Default settings for tests and benchmarks, with `workdir` as the directory; it need not contain anything.
    pub fn dummy_conf(workdir: Utf8PathBuf) -> Self {
        let blocks = BlockLimits::default();
        Self {
            workdir,
            page_cache_size: 8192,
            virtual_file_io_mode: IoMode::default(),
            virtual_file_io_engine: None,
            checkpoint_distance: 256 << 20,
            checkpoint_timeout: Duration::from_secs(600),
            l0_flush_max_concurrency: NonZeroUsize::MIN,
            ephemeral_keep_bytes: 0,
            wait_lsn_timeout: Duration::from_secs(300),
            lsn_lease_length: Duration::from_secs(600),
            max_get_vectored_keys: NonZeroUsize::MIN.saturating_add(31),
            rebuild_bytes: 16 << 20,
            page_service_max_batch_size: NonZeroUsize::MIN.saturating_add(31),
            remote_storage: None,
            remote_storage_start_timeout: Duration::from_secs(60),
            attach_on_start: AttachOnStart::Own,
            server: ServerIdentity { id: "test".to_owned(), ..ServerIdentity::default() },
            block_cache_memory: blocks.memory,
            block_cache_disk: blocks.disk,
            read_ahead_max: blocks.read_ahead_max,
            prefetch_whole_after: blocks.whole_after,
            disk_budget_bytes: 0,
            disk_reserve: 0,
            disk_budget: DiskBudget::default(),
            observer: None,
            resources: Resources::default(),
        }
    }

    /// Has the caches keep to the limits that stand here.
    pub fn configure_caches(&self) {
        self.resources.pages.configure(self.page_cache_size);
        self.resources.blocks.configure(BlockLimits {
            memory: self.block_cache_memory,
            disk: self.block_cache_disk,
            read_ahead_max: self.read_ahead_max,
            whole_after: self.prefetch_whole_after,
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
