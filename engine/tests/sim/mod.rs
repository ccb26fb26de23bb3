//! A simulated disk, and scenarios that run the engine on it: crashes, damaged bytes, refused writes.
//!
//! Everything is derived from fixed seeds and runs on one thread, so failures are reproducible.
// Each test binary uses only some of it.
#![allow(dead_code, reason = "shared by several test binaries")]

pub mod crash;
pub mod damage;
pub mod detach;
pub mod disk;
pub mod history;
pub mod platter;
pub mod random;
pub mod refusals;
pub mod retention;
pub mod samples;

use std::future::Future;

/// Runs `work` on this thread alone.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
    runtime.block_on(work)
}
