//! The disk's throughput for the bytes of `bench_ingest`, measured directly: the yardstick for its results.
//!
//! Writes 128 MiB in blocks of the buffered writer's size to a fresh file in the current directory: with direct I/O
//! through io_uring at several depths, and through the page cache with one sync at the end. Prints medians in MiB/s
//! and writes them as JSON for the report. What both ways have written is read back once and compared.

#[path = "common/artifact.rs"]
mod artifact;
#[path = "common/device.rs"]
mod device;

use std::path::{Path, PathBuf};

use artifact::{Setting, Topology, Unit, Validity};
use device::{Device, Way};

const VOLUME: usize = 128 << 20;
const RUNS: usize = 10;
const WAYS: [Way; 4] = [Way::Direct(1), Way::Direct(2), Way::Direct(4), Way::Buffered];

/// Median MiB/s of writing the volume.
fn median(runtime: &tokio::runtime::Runtime, device: &Device, way: Way, sync: bool) -> f64 {
    let mut rates: Vec<f64> = (0..RUNS).map(|_| runtime.block_on(device.write(way, sync))).collect();
    rates.sort_by(f64::total_cmp);
    rates[RUNS / 2]
}

fn main() {
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let device = Device::new(PathBuf::from(format!("device-limit-{}", std::process::id())), VOLUME);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    let topology = Topology::take(Setting::one_process(Path::new("."), "tokio-epoll-uring", "direct, buffered"));
    let (mut results, mut validity) = (Vec::new(), Validity::of(Unit::Bytes));
    for way in WAYS {
        for sync in [false, true] {
            let name = way.name() + if sync { "_fdatasync" } else { "" };
            results.push((name, median(&runtime, &device, way, sync)));
            validity.add(device.compare());
            device.remove();
        }
    }
    let best = results.iter().filter(|(name, _)| name.starts_with("direct")).map(|(_, rate)| *rate);
    results.push(("device_limit".to_owned(), best.fold(0.0, f64::max)));
    for (name, rate) in &results {
        println!("{name:<28} {rate:>8.0} MiB/s");
    }
    let json: serde_json::Map<_, _> = results.into_iter().map(|(name, rate)| (name, rate.into())).collect();
    artifact::write("device_limit", &topology, validity, json.into()).expect("write results");
}
