//! Faults of the bucket under everything that the engine does with it: 8 operations by 10 faults.
//!
//! Each combination runs a number of operations on a tenant (writes, publications, compaction, removal of history,
//! branches and their deletion, cold reads, restarts with and without the disk, takeovers by other servers), in which
//! every third call of the operation has the fault (every 17th where otherwise no call would succeed).
//! `TEST_FAULT_RUNS` sets the number of runs, each with the faults at other calls: with 17, every call gets each fault.
//! `TEST_FAULT_OPERATIONS` sets the number of operations, 50 by default.

#[path = "../remote_support/mod.rs"]
mod remote_support;
#[path = "../stack/mod.rs"]
mod stack;
mod world;

use std::time::{Duration, Instant};

use remote_storage::RemoteOptions;
use remote_support::{Fault, Op, fast};
use world::{Counts, World};

/// One call of the operation in this many has the fault.
fn stride(op: Op, fault: Fault) -> u64 {
    // A burst spans five calls; and not every call for the parts of a file may fail.
    if fault == Fault::Burst || op == Op::Multipart { 17 } else { 3 }
}

const SEED: u64 = 20_261_121;

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// A pseudorandom number (splitmix64).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `TEST_FAULT_ONLY` may name an operation, such as "Put", a fault, or a combination, such as "Put Timeout".
fn is_wanted(op: Op, fault: Fault) -> bool {
    let names = [format!("{op:?}"), format!("{fault:?}"), format!("{op:?} {fault:?}")];
    std::env::var("TEST_FAULT_ONLY").map_or(true, |only| names.contains(&only))
}

/// What one run did.
struct Run {
    counts: Counts,
    faults: u64,
    calls: u64,
    good_calls: u64,
}

async fn run(operations: u64, seed: u64, fault: Option<(Op, Fault)>, offset: u64) -> Run {
    // An object store on loopback needs longer than a directory.
    let attempt_timeout = Duration::from_millis(if std::env::var("TEST_REMOTE_STORAGE").is_ok() { 1000 } else { 150 });
    let mut options = RemoteOptions { attempt_timeout, ..fast() };
    if std::env::var("TEST_REMOTE_STORAGE").is_err() {
        // Layers here are small, so their parts must be small too; S3 rejects parts this small.
        options.part_size = 16 << 10;
    }
    let mut world = World::new(options).await;
    if let Some((op, fault)) = fault {
        let (stride, mut seen) = (stride(op, fault), 0);
        world.store.faults.set_plan(move |called, _, _| {
            seen += u64::from(called == op);
            (called == op && seen % stride == (offset + 1) % stride).then_some(fault)
        });
    }
    for number in 0..operations {
        world.step(mixed(seed + number)).await;
    }
    world.replace_layers().await;
    let (counts, store) = world.end().await;
    let (calls, failed) = (store.faults.total_calls(), store.faults.failed());
    Run { counts, faults: store.faults.injected().values().sum(), calls, good_calls: calls - failed }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_wrong_whatever_fails() {
    let (runs, operations) = (from_env("TEST_FAULT_RUNS", 1), from_env("TEST_FAULT_OPERATIONS", 50));
    tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR).init();
    let started = Instant::now();
    let plain = run(operations, SEED, None, 0).await;
    println!("without faults: {:?}, {} calls, {:?}", plain.counts, plain.calls, started.elapsed());
    let (mut combinations, mut faults, mut total) = (0, 0, Counts::default());
    for op in Op::ALL {
        for fault in Fault::ALL.into_iter().filter(|fault| is_wanted(op, *fault)) {
            let mut of_this = 0;
            for offset in 0..runs.min(stride(op, fault)) {
                let started = Instant::now();
                let done = run(operations, SEED, Some((op, fault)), offset).await;
                of_this += done.faults;
                let calls = (done.good_calls, plain.calls);
                // Faults may cause retries of single attempts, and a few of whole starts or publications.
                assert!(calls.0 <= calls.1 * 3 + 200, "{op:?} {fault:?}: {calls:?} calls that succeeded");
                total.operations += done.counts.operations;
                total.lost_disks += done.counts.lost_disks;
                total.takeovers += done.counts.takeovers;
                total.fenced += done.counts.fenced;
                total.repeated += done.counts.repeated;
                total.pages += done.counts.pages;
                total.compactions += done.counts.compactions;
                total.removed += done.counts.removed;
                total.detached += done.counts.detached;
                println!("{op:?} {fault:?}: {} faults in {} calls, {:?}", done.faults, done.calls, started.elapsed());
            }
            let possible = op != Op::Multipart || std::env::var("TEST_REMOTE_STORAGE").is_err();
            assert!(of_this > 0 || !possible, "{op:?} {fault:?} never happened");
            combinations += 1;
            faults += of_this;
        }
    }
    assert!(combinations > 0, "TEST_FAULT_ONLY names nothing");
    assert!(total.compactions > 0 && total.removed > 0, "nothing was compacted or removed: {total:?}");
    println!("{combinations} combinations, {faults} faults: {total:?}, {:?}", started.elapsed());
}
