//! Configuration of the engine.

use std::num::NonZeroUsize;
use std::time::Duration;

use camino::Utf8PathBuf;
use pageserver_api::models::virtual_file::{IoEngineKind, IoMode};
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

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
    /// Most page requests of one connection that are served by one read.
    pub page_service_max_batch_size: NonZeroUsize,
}

impl PageServerConf {
    /// Default settings for tests and benchmarks, with `workdir` as the directory; it need not contain anything.
    pub fn dummy_conf(workdir: Utf8PathBuf) -> Self {
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
            max_get_vectored_keys: NonZeroUsize::new(32).expect("not zero"),
            page_service_max_batch_size: NonZeroUsize::new(32).expect("not zero"),
        }
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
