//! Redo in memory, of WAL recorded by `benches/redo/record_wal.py`: the cost of a record of each type, of pages with
//! 1, 10 and 100 records to apply, and of all the WAL, on one thread and on all cores.
//!
//! `REDO_TYPES` names a recording of all record types, `REDO_WAL` one of pgbench; `BENCH_RESULTS` is where the JSON
//! goes. Pages of chains are compared with those of the replay of all WAL. Every figure includes decoding the record,
//! and for chains also copying the image that the page starts from.

#[path = "common/artifact.rs"]
mod artifact;
#[path = "redo/chains.rs"]
mod chains;
#[path = "redo/recorded.rs"]
mod recorded;
#[path = "redo/types.rs"]
mod types;
#[path = "redo/whole.rs"]
mod whole;

use std::path::Path;
use std::time::Duration;

use artifact::{Setting, Topology, Unit, Validity};
use recorded::Recorded;
use serde_json::json;

/// How long each case is measured.
const MEASURED: Duration = Duration::from_secs(1);
const QUICK: Duration = Duration::from_millis(100);

fn main() {
    // `cargo test --benches` only checks that it compiles.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let quick = std::env::var_os("BENCH_REDO_QUICK").is_some();
    let measured = if quick { QUICK } else { MEASURED };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let topology = Topology::take(Setting::one_process(Path::new("."), "none", "none"));
    let mut validity = Validity::of(Unit::Pages);
    let types = types::measure(&open("REDO_TYPES"), measured);
    let wal = open("REDO_WAL");
    let chains = chains::measure(&wal, measured, cores, &mut validity);
    let whole = whole::measure(&wal, if quick { 1 } else { 5 }, cores);
    let results = json!({ "quick": quick, "cores": cores, "types": types, "chains": chains, "whole": whole });
    artifact::write("redo", &topology, validity, results).expect("results can be written");
}

fn open(variable: &str) -> Recorded {
    let dir = std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} names a recording"));
    Recorded::open(Path::new(&dir))
}
