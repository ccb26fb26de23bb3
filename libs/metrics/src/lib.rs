//! Figures about the process, for Prometheus: one registry, which all parts add to as they work.
//!
//! Names are those that dashboards for this kind of server know, where Prometheus and OpenMetrics both accept them:
//! counters end in `_total` and nothing else does, only histograms have a `_count`, units are base units.
//! What is a property of a timeline, such as its LSNs, is asked for at each scrape and not kept here. Low ranks use
//! this module, so it knows nothing of the engine.
#![forbid(unsafe_code)]

mod exposition;
mod label;
mod process;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::LazyLock;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

pub use exposition::Exposition;
pub use label::{
    ByLabel, ComputeCommand, IoOperation, LabelEnum, RequestClass, SmgrQuery, StorageOperation, StoreFault,
};

/// The process's figures.
pub static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

macro_rules! metrics {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $make:expr;)+) => {
        /// All figures that are kept. Each is cheap to add to from any task.
        #[derive(Debug)]
        pub struct Metrics {
            registry: Registry,
            $($(#[doc = $doc])+ pub $name: $type,)+
        }

        impl Metrics {
            fn new() -> Self {
                let mut registry = Registry::with_prefix("pageserver");
                process::register(&mut registry);
                $(let $name = Register::register($make, &mut registry, stringify!($name), concat!($($doc),+));)+
                Self { registry, $($name,)+ }
            }
        }
    };
}

metrics! {
    /// Bytes of WAL received.
    wal_ingest_bytes_received: Counter = Counter::default();
    /// WAL records received.
    wal_ingest_records_received: Counter = Counter::default();
    /// Values that WAL records were turned into and that were put into layers.
    wal_ingest_values_committed: Counter = Counter::default();
    /// Connections made to servers that send WAL.
    walreceiver_started_connections: Counter = Counter::default();
    /// Requests of the page service that were begun, by kind.
    smgr_query_started: ByLabel<SmgrQuery, Counter> = ByLabel::counters();
    /// Seconds that a request of the page service takes, without waiting for its turn.
    smgr_query_seconds: ByLabel<SmgrQuery, Histogram> = ByLabel::histograms(latency);
    /// Page requests that were served by one read.
    page_service_batch_size: Histogram = powers_of_two(8);
    /// Commands of the page service, by kind.
    compute_commands: ByLabel<ComputeCommand, Counter> = ByLabel::counters();
    /// Connections to the page service that were opened.
    live_connections_started: Counter = Counter::default();
    /// Connections to the page service that have ended.
    live_connections_finished: Counter = Counter::default();
    /// Callers without a good token, or with one that does not allow what they wanted.
    auth_refused: Counter = Counter::default();
    /// Requests to the management interface.
    http_requests: Counter = Counter::default();
    /// Seconds that a read of one or more keys takes.
    get_vectored_seconds: Histogram = latency();
    /// Layers that one read looks into.
    layers_per_read_global: Histogram = powers_of_two(11);
    /// WAL records that one page is rebuilt from.
    deltas_per_read_global: Histogram = powers_of_two(9);
    /// Seconds that a read waits for WAL.
    wait_lsn_seconds: Histogram = latency();
    /// Reads that began to wait for WAL.
    wait_lsn_started: Counter = Counter::default();
    /// Reads that have ended waiting for WAL.
    wait_lsn_finished: Counter = Counter::default();
    /// Seconds that redo of one page takes.
    wal_redo_seconds: Histogram = latency();
    /// Redo that failed.
    wal_redo_errors: Counter = Counter::default();
    /// Seconds that work on layers takes, by kind.
    storage_operations_seconds_global: ByLabel<StorageOperation, Histogram> = ByLabel::histograms(latency);
    /// Work on layers that failed and will be tried again, by kind.
    storage_operations_errors: ByLabel<StorageOperation, Counter> = ByLabel::counters();
    /// Bytes read from and written to files, by operation.
    io_operations_bytes: ByLabel<IoOperation, Counter> = ByLabel::counters();
    /// Index pages of layers asked for.
    page_cache_read_accesses: Counter = Counter::default();
    /// Index pages of layers that were in memory.
    page_cache_read_hits: Counter = Counter::default();
    /// Seconds that intake was held back for lack of room on the local disk.
    intake_slowed_seconds: Counter<f64, AtomicU64> = Counter::default();
    /// Batches of values that were refused for lack of room on the local disk.
    intake_refused: Counter = Counter::default();
    /// Whether values are taken in: 0 freely, 1 slowly, 2 not, for lack of room on the local disk.
    intake_level: Gauge<u64, AtomicU64> = Gauge::default();
    /// Bytes of layers on the local disk, whole and partial.
    resident_bytes: Gauge<u64, AtomicU64> = Gauge::default();
    /// Bytes on the local disk that eviction has freed.
    evicted_bytes: Counter = Counter::default();
    /// Blocks of files whose checksum was wrong.
    corrupt_blocks: Counter = Counter::default();
    /// Local layer files that were damaged or missing, and are read from the bucket again.
    layers_healed: Counter = Counter::default();
    /// Layers that were fetched from the bucket as a whole.
    layers_downloaded: Counter = Counter::default();
    /// Layers whose local files were removed, since the bucket has them.
    layers_evicted: Counter = Counter::default();
    /// Blocks of layers in the bucket that were asked for.
    block_cache_accesses: Counter = Counter::default();
    /// Blocks of layers in the bucket that were in memory.
    block_cache_memory_hits: Counter = Counter::default();
    /// Blocks of layers in the bucket that were on local disk.
    block_cache_disk_hits: Counter = Counter::default();
    /// Requests for blocks of layers in the bucket.
    block_requests: Counter = Counter::default();
    /// Bytes of layers fetched from the bucket.
    block_request_bytes: Counter = Counter::default();
    /// Bytes of layers that were fetched ahead of sequential reads.
    read_ahead_bytes: Counter = Counter::default();
    /// Tenants that another server has taken over while this one held them.
    tenants_fenced: Counter = Counter::default();
    /// Attempts to reach object storage, by what for.
    remote_storage_requests: ByLabel<RequestClass, Counter> = ByLabel::counters();
    /// Seconds that an attempt to reach object storage takes, by what for.
    remote_storage_request_seconds: ByLabel<RequestClass, Histogram> = ByLabel::histograms(latency);
    /// Attempts to reach object storage that failed and may have been repeated, by kind of failure.
    remote_storage_failures: ByLabel<StoreFault, Counter> = ByLabel::counters();
    /// Bytes that came from object storage, by what for.
    remote_storage_bytes_in: ByLabel<RequestClass, Counter> = ByLabel::counters();
    /// Bytes sent to object storage, by what for.
    remote_storage_bytes_out: ByLabel<RequestClass, Counter> = ByLabel::counters();
    /// What the requests to object storage cost, roughly, at list prices of a large cloud.
    remote_storage_cost_dollars: Counter<f64, AtomicU64> = Counter::default();
}

impl Metrics {
    /// Everything that is kept, and what `more` adds for this scrape, as text of the kind `wanted`.
    ///
    /// # Errors
    /// If a metric cannot be written as text.
    pub fn scrape(&self, more: &Registry, wanted: Exposition) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        encode_registry(&mut text, more)?;
        encode_eof(&mut text)?;
        Ok(wanted.of(text))
    }
}

/// Adds the seconds from now until it is dropped to `histogram`.
pub fn timer(histogram: &Histogram) -> Timer<'_> {
    Timer { histogram, start: env::clock::now() }
}

/// See [`timer`].
#[derive(Debug)]
pub struct Timer<'a> {
    histogram: &'a Histogram,
    start: Instant,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.histogram.observe(seconds_since(self.start));
    }
}

/// Seconds since `start`, which [`env::clock::now`] gave.
pub fn seconds_since(start: Instant) -> f64 {
    env::clock::now().saturating_duration_since(start).as_secs_f64()
}

/// Buckets from 10 microseconds to 84 seconds.
fn latency() -> Histogram {
    Histogram::new(exponential_buckets(1e-5, 2.0, 24))
}

/// Buckets 1, 2, 4...
fn powers_of_two(count: u16) -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, count))
}

/// A metric that a registry can hold while others add to it.
trait Register: Sized {
    fn register(self, registry: &mut Registry, name: &str, help: &str) -> Self;
}

impl Register for Counter {
    fn register(self, registry: &mut Registry, name: &str, help: &str) -> Self {
        registry.register(name, help_text(help), self.clone());
        self
    }
}

impl Register for Gauge<u64, AtomicU64> {
    fn register(self, registry: &mut Registry, name: &str, help: &str) -> Self {
        registry.register(name, help_text(help), self.clone());
        self
    }
}

impl Register for Counter<f64, AtomicU64> {
    fn register(self, registry: &mut Registry, name: &str, help: &str) -> Self {
        registry.register(name, help_text(help), self.clone());
        self
    }
}

impl Register for Histogram {
    fn register(self, registry: &mut Registry, name: &str, help: &str) -> Self {
        registry.register(name, help_text(help), self.clone());
        self
    }
}

impl<L: LabelEnum, M: label::Metric> Register for ByLabel<L, M> {
    fn register(self, registry: &mut Registry, name: &str, help: &str) -> Self {
        registry.register(name, help_text(help), self.family());
        self
    }
}

/// The registry ends the text with a full stop of its own.
fn help_text(doc: &str) -> &str {
    doc.trim().trim_end_matches('.')
}
