//! The disk's throughput for the bytes of `bench_ingest`, measured directly: the yardstick for its results.
//!
//! Writes 128 MiB in blocks of the buffered writer's size to a fresh file in the current directory: with direct I/O
//! through io_uring at several depths, and through the page cache with one sync at the end. Prints medians in MiB/s
//! and writes them as JSON for the report. What both ways have written is read back once and compared.

#[path = "common/artifact.rs"]
mod artifact;

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use artifact::{Setting, Topology, Unit, Validity};
use rustix::fs::{Mode, OFlags, fdatasync, open};
use tokio_epoll_uring::{SystemHandle, thread_local_system};
use virtual_file::AlignedBuf;

const VOLUME: usize = 128 << 20;
const BLOCK: usize = 1 << 20;
const RUNS: usize = 10;

fn create(path: &Path, flags: OFlags) -> Arc<OwnedFd> {
    let flags = flags | OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    Arc::new(open(path, flags, Mode::from_raw_mode(0o600)).expect("create file"))
}

fn filled() -> Arc<AlignedBuf> {
    let mut buf = AlignedBuf::with_capacity(BLOCK);
    buf.whole_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 31) as u8);
    Arc::new(buf)
}

/// Writes the volume with `depth` writes in flight.
async fn write_direct(system: &SystemHandle, file: &Arc<OwnedFd>, depth: usize, buf: &Arc<AlignedBuf>) {
    let mut in_flight = VecDeque::new();
    for offset in (0..VOLUME).step_by(BLOCK) {
        if in_flight.len() == depth {
            finish(in_flight.pop_front()).await;
        }
        in_flight.push_back(system.write(Arc::clone(file), offset as u64, Arc::clone(buf)));
    }
    while !in_flight.is_empty() {
        finish(in_flight.pop_front()).await;
    }
}

/// Counts the bytes of the file that equal those of `filled`.
fn compare(path: &Path, validity: &mut Validity) {
    let (wanted, found) = (filled(), std::fs::read(path).expect("read"));
    validity.add(Validity {
        unit: Unit::Bytes,
        expected: VOLUME as u64,
        seen: found.len() as u64,
        compared: found.len() as u64,
        different: found.chunks(BLOCK).filter(|block| *block != &wanted[..]).map(|block| block.len() as u64).sum(),
    });
}

type WriteOp = tokio_epoll_uring::Op<tokio_epoll_uring::Write<Arc<OwnedFd>, Arc<AlignedBuf>>>;

async fn finish(op: Option<WriteOp>) {
    if let Some(op) = op {
        assert_eq!(op.await.1.expect("write"), BLOCK);
    }
}

/// Median MiB/s of `run`, which writes the volume once to a new file at `path`.
fn median(path: &Path, mut run: impl FnMut()) -> f64 {
    let mut rates: Vec<f64> = (0..RUNS)
        .map(|_| {
            // The file may be absent; truncating an existing one would be timed.
            let _ = std::fs::remove_file(path);
            let start = Instant::now();
            run();
            (VOLUME >> 20) as f64 / start.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[RUNS / 2]
}

fn direct(runtime: &tokio::runtime::Runtime, path: &Path, depth: usize, sync: bool, validity: &mut Validity) -> f64 {
    let buf = filled();
    let rate = median(path, || {
        runtime.block_on(async {
            let file = create(path, OFlags::DIRECT);
            let system = thread_local_system().expect("io_uring");
            write_direct(&system, &file, depth, &buf).await;
            if sync {
                fdatasync(file.as_ref()).expect("sync");
            }
        });
    });
    compare(path, validity);
    std::fs::remove_file(path).expect("remove");
    rate
}

fn buffered(path: &Path, sync: bool, validity: &mut Validity) -> f64 {
    let buf = filled();
    let rate = median(path, || {
        let file = create(path, OFlags::empty());
        let mut writer = std::fs::File::from(file.try_clone().expect("clone"));
        (0..VOLUME / BLOCK).for_each(|_| writer.write_all(&buf).expect("write"));
        if sync {
            fdatasync(file.as_ref()).expect("sync");
        }
    });
    compare(path, validity);
    std::fs::remove_file(path).expect("remove");
    rate
}

fn main() {
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let path = PathBuf::from(format!("device-limit-{}", std::process::id()));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("runtime");
    let topology = Topology::take(Setting::one_process(Path::new("."), "tokio-epoll-uring", "direct, buffered"));
    let (mut results, mut validity) = (Vec::new(), Validity::of(Unit::Bytes));
    for depth in [1, 2, 4] {
        results.push((format!("direct_depth_{depth}"), direct(&runtime, &path, depth, false, &mut validity)));
        let synced = direct(&runtime, &path, depth, true, &mut validity);
        results.push((format!("direct_depth_{depth}_fdatasync"), synced));
    }
    results.push(("buffered".to_owned(), buffered(&path, false, &mut validity)));
    results.push(("buffered_fdatasync".to_owned(), buffered(&path, true, &mut validity)));
    let best = results.iter().filter(|(name, _)| name.starts_with("direct")).map(|(_, rate)| *rate);
    results.push(("device_limit".to_owned(), best.fold(0.0, f64::max)));
    for (name, rate) in &results {
        println!("{name:<28} {rate:>8.0} MiB/s");
    }
    let json: serde_json::Map<_, _> = results.into_iter().map(|(name, rate)| (name, rate.into())).collect();
    artifact::write("device_limit", &topology, validity, json.into()).expect("write results");
}
