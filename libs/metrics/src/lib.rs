//! Metrics of the process, for Prometheus: one registry, which all parts update as they work.
//!
//! Names are those that dashboards for this kind of server expect, as far as both Prometheus and OpenMetrics accept
//! them: counters and nothing else end in `_total`, only histograms have a `_count`, units are base units. Properties
//! of a timeline, such as its LSNs, are collected at each scrape and not kept here. Low ranks use this module, so it
//! knows nothing about the engine.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod exposition;
mod label;
mod per_page;
mod process;
mod stopwatch;
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
    ByLabel, CompactionJob, ComputeCommand, IngestStage, IoOperation, LabelEnum, RequestClass, SmgrQuery,
    StorageOperation, StoreFault,
};
pub use per_page::PerPage;
pub use process::set_allocator;
pub use stopwatch::Stopwatch;

/// The metrics of the process.
pub static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

macro_rules! metrics {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $make:expr;)+) => {
        /// All metrics. Each can be updated cheaply from any task.
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
    /// Values decoded from WAL records and stored in layers.
    wal_ingest_values_committed: Counter = Counter::default();
    /// Bytes of these values.
    wal_ingest_value_bytes: Counter = Counter::default();
    /// Seconds that the tasks of the write path have spent in each stage.
    ingest_stage_seconds: ByLabel<IngestStage, Counter<f64, AtomicU64>> = ByLabel::seconds();
    /// Bytes of layers that flushes wrote.
    flushed_bytes: Counter = Counter::default();
    /// Connections opened to servers that send WAL.
    walreceiver_started_connections: Counter = Counter::default();
    /// Pieces of WAL that the journal has made durable.
    journal_frames: Counter = Counter::default();
    /// Syncs of the journal.
    journal_syncs: Counter = Counter::default();
    /// Bytes written to the journal.
    journal_written_bytes: Counter = Counter::default();
    /// Places of the journal that were found to be damaged at a start.
    journal_damages: Counter = Counter::default();
    /// Page service requests started, by kind.
    smgr_query_started: ByLabel<SmgrQuery, Counter> = ByLabel::counters();
    /// Seconds to serve a page service request, without waiting for its turn.
    smgr_query_seconds: ByLabel<SmgrQuery, Histogram> = ByLabel::histograms(latency);
    /// Number of page requests served by one read.
    page_service_batch_size: Histogram = powers_of_two(8);
    /// Page service commands, by kind.
    compute_commands: ByLabel<ComputeCommand, Counter> = ByLabel::counters();
    /// Page service connections opened.
    live_connections_started: Counter = Counter::default();
    /// Page service connections ended.
    live_connections_finished: Counter = Counter::default();
    /// Requests refused because of a missing or invalid token, or one without the required permission.
    auth_refused: Counter = Counter::default();
    /// Requests to the management interface.
    http_requests: Counter = Counter::default();
    /// Lines that the audit log could not take in: it was written too slowly, or not at all.
    audit_lines_missing: Counter = Counter::default();
    /// Seconds to read one or more keys.
    get_vectored_seconds: Histogram = latency();
    /// Reads that took longer than `slow_read_threshold`.
    slow_reads: Counter = Counter::default();
    /// Number of layers searched for one page: those in memory, and files whose key filters did not end the search.
    layers_per_read_global: PerPage = PerPage::of(1);
    /// Number of key filters of layers asked for one page.
    filters_per_page_read: PerPage = PerPage::of(1);
    /// Number of WAL records applied for one page: 0 if it was in memory, or is stored as an image.
    deltas_per_read_global: PerPage = PerPage::of(1);
    /// Bytes of layers read from the local disk for one page, with their indexes and filters.
    layer_bytes_per_page_read: PerPage = PerPage::of(4096);
    /// Number of requests to the bucket made for one page.
    bucket_requests_per_page_read: PerPage = PerPage::of(1);
    /// Bytes of layers fetched from the bucket for one page.
    bucket_bytes_per_page_read: PerPage = PerPage::of(4096);
    /// Searches for a key in the filter of a delta layer.
    filter_probes: Counter = Counter::default();
    /// Searches that a filter ended, because the layer does not have the key.
    filter_skips: Counter = Counter::default();
    /// Compaction jobs that ended well, by kind.
    compaction_jobs: ByLabel<CompactionJob, Counter> = ByLabel::counters();
    /// Bytes of layers that compaction wrote, by kind of job.
    compaction_written_bytes: ByLabel<CompactionJob, Counter> = ByLabel::counters();
    /// Seconds that compaction jobs took, by kind.
    compaction_seconds: ByLabel<CompactionJob, Counter<f64, AtomicU64>> = ByLabel::seconds();
    /// Compaction jobs that failed; they are tried again.
    compaction_failures: Counter = Counter::default();
    /// Seconds for which ingest was delayed, because too many L0 layers were waiting to be sorted.
    compaction_slowed_seconds: Counter<f64, AtomicU64> = Counter::default();
    /// Layers of history removed because nothing kept them.
    gc_removed_layers: Counter = Counter::default();
    /// Bytes of these layers.
    gc_removed_bytes: Counter = Counter::default();
    /// Seconds that a read waits for WAL.
    wait_lsn_seconds: Histogram = latency();
    /// Reads that started to wait for WAL.
    wait_lsn_started: Counter = Counter::default();
    /// Reads that finished waiting for WAL.
    wait_lsn_finished: Counter = Counter::default();
    /// Seconds to redo one page.
    wal_redo_seconds: Histogram = latency();
    /// Redo failures.
    wal_redo_errors: Counter = Counter::default();
    /// Seconds of an operation on layers, by kind.
    storage_operations_seconds_global: ByLabel<StorageOperation, Histogram> = ByLabel::histograms(latency);
    /// Operations on layers that failed and will be retried, by kind.
    storage_operations_errors: ByLabel<StorageOperation, Counter> = ByLabel::counters();
    /// Bytes read from and written to files, by operation.
    io_operations_bytes: ByLabel<IoOperation, Counter> = ByLabel::counters();
    /// Index pages of layers requested.
    page_cache_read_accesses: Counter = Counter::default();
    /// Index pages of layers found in memory.
    page_cache_read_hits: Counter = Counter::default();
    /// Seconds for which intake was slowed down for lack of room on the local disk.
    intake_slowed_seconds: Counter<f64, AtomicU64> = Counter::default();
    /// Batches of values refused for lack of room on the local disk.
    intake_refused: Counter = Counter::default();
    /// How freely values are taken in: 0 freely, 1 slowly, 2 not at all, for lack of room on the local disk.
    intake_level: Gauge<u64, AtomicU64> = Gauge::default();
    /// Bytes of layers on the local disk, whole and partial.
    resident_bytes: Gauge<u64, AtomicU64> = Gauge::default();
    /// Bytes on the local disk freed by eviction.
    evicted_bytes: Counter = Counter::default();
    /// Blocks of files with a wrong checksum.
    corrupt_blocks: Counter = Counter::default();
    /// Local layer files found damaged or missing and replaced from the bucket.
    layers_healed: Counter = Counter::default();
    /// Whole layers downloaded from the bucket.
    layers_downloaded: Counter = Counter::default();
    /// Layers that are hot at the owner of a tenant and were downloaded to its standby.
    layers_warmed_ahead: Counter = Counter::default();
    /// Layers whose local files were evicted, since the bucket has them.
    layers_evicted: Counter = Counter::default();
    /// Blocks of layers in the bucket requested.
    block_cache_accesses: Counter = Counter::default();
    /// Blocks of layers in the bucket found in memory.
    block_cache_memory_hits: Counter = Counter::default();
    /// Blocks of layers in the bucket found on the local disk.
    block_cache_disk_hits: Counter = Counter::default();
    /// Requests to the bucket for blocks of layers.
    block_requests: Counter = Counter::default();
    /// Bytes of layers fetched from the bucket.
    block_request_bytes: Counter = Counter::default();
    /// Bytes of layers prefetched for sequential reads.
    read_ahead_bytes: Counter = Counter::default();
    /// Tenants that another server took over while this one held them.
    tenants_fenced: Counter = Counter::default();
    /// Times that a standby received nothing more of a timeline since its journal was full.
    standby_full: Counter = Counter::default();
    /// Timelines whose WAL a standby has given up, since WAL of its own timelines had no room.
    standby_given_up: Counter = Counter::default();
    /// Times that a tenant of which this server is a standby was opened to be read here.
    standby_reads_opened: Counter = Counter::default();
    /// Objects with the tail of a timeline's WAL that were put into the bucket.
    tail_objects: Counter = Counter::default();
    /// Bytes of WAL in them.
    tail_bytes: Counter = Counter::default();
    /// Spans of traces that a collector has taken.
    traces_sent_spans: Counter = Counter::default();
    /// Spans of traces that were lost, since the collector was away or too slow.
    traces_lost_spans: Counter = Counter::default();
    /// Attempts to renew this server's lease.
    lease_renewals: Counter = Counter::default();
    /// Attempts to renew this server's lease that failed.
    lease_failures: Counter = Counter::default();
    /// Times that this server's lease ended, so that it acknowledged nothing.
    lease_ends: Counter = Counter::default();
    /// Claims that this server has made to tenants of a server that seemed to be gone.
    takeover_claims: Counter = Counter::default();
    /// Tenants that this server has taken over by itself.
    takeovers: Counter = Counter::default();
    /// Tenants that their owners have handed over to this server.
    handovers: Counter = Counter::default();
    /// Attempted requests to the bucket, by purpose.
    remote_storage_requests: ByLabel<RequestClass, Counter> = ByLabel::counters();
    /// Seconds of an attempted request to the bucket, by purpose.
    remote_storage_request_seconds: ByLabel<RequestClass, Histogram> = ByLabel::histograms(latency);
    /// Failed attempts to reach the bucket, which may have been retried, by kind of failure.
    remote_storage_failures: ByLabel<StoreFault, Counter> = ByLabel::counters();
    /// Bytes received from the bucket, by purpose.
    remote_storage_bytes_in: ByLabel<RequestClass, Counter> = ByLabel::counters();
    /// Bytes sent to the bucket, by purpose.
    remote_storage_bytes_out: ByLabel<RequestClass, Counter> = ByLabel::counters();
    /// Approximate cost of the requests to the bucket, at list prices of a large cloud.
    remote_storage_cost_dollars: Counter<f64, AtomicU64> = Counter::default();
}

impl Metrics {
    /// All metrics, plus those that `more` adds for this scrape, as text in the format `wanted`.
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

/// Records in `histogram` the seconds from now until the timer is dropped.
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

/// A stopwatch for a task of the write path.
pub fn ingest_stopwatch() -> Stopwatch<IngestStage> {
    Stopwatch::of(&METRICS.ingest_stage_seconds)
}

/// Seconds since `start`, which must come from [`env::clock::now`].
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

/// A metric that a registry can share with those who update it.
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

impl Register for PerPage {
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

/// Without the final period, since the registry appends one.
fn help_text(doc: &str) -> &str {
    doc.trim().trim_end_matches('.')
}
