//! What the system knows about the process, collected at each scrape.

use std::fmt;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Bytes by state, as an allocator tells them.
type Allocator = fn() -> Vec<(&'static str, u64)>;

static ALLOCATOR: OnceLock<Allocator> = OnceLock::new();

/// Has scrapes ask the program's allocator what it takes. Only the first call counts.
pub fn set_allocator(bytes_by_state: fn() -> Vec<(&'static str, u64)>) {
    ALLOCATOR.get_or_init(|| bytes_by_state);
}

#[derive(Debug)]
struct Process {
    started: SystemTime,
}

/// Adds the process's metrics and the build's version.
pub(super) fn register(registry: &mut Registry) {
    registry.register("build", "The program that runs", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
    registry.register_collector(Box::new(Process { started: env::clock::system_now() }));
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        gauge(&mut encoder, "process_start_time_seconds", "Start of the process since 1970", Some(started))?;
        gauge(&mut encoder, "process_resident_memory_bytes", "Memory in use", resident_bytes())?;
        gauge(&mut encoder, "process_open_fds", "Open files and sockets", open_files())?;
        allocator(&mut encoder)
    }
}

fn allocator(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Some(bytes_by_state) = ALLOCATOR.get() else { return Ok(()) };
    let help = "Memory of the allocator by state; what is resident and not allocated it keeps for what comes next";
    let mut metric = encoder.encode_descriptor("allocator_bytes", help, None, MetricType::Gauge)?;
    for (state, bytes) in bytes_by_state() {
        ConstGauge::new(bytes).encode(metric.encode_family(&[("state", state)])?)?;
    }
    Ok(())
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: Option<f64>) -> fmt::Result {
    let Some(value) = value else { return Ok(()) };
    let gauge = ConstGauge::new(value);
    gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

/// Resident memory; `None` if the system does not report it.
fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some((kib * 1024) as f64)
}

fn open_files() -> Option<f64> {
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count() as f64)
}
