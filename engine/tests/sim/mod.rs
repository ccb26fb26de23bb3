//! Scenarios that run the engine on a simulated disk: crashes, damaged bytes, refused writes.
//!
//! Everything is derived from fixed seeds and runs on one thread, so failures are reproducible.
// Each test binary uses only some of it.
#![allow(dead_code, reason = "shared by several test binaries")]

pub mod crash;
pub mod damage;
pub mod detach;
pub mod history;
pub mod l0_limit;
pub mod refusals;
pub mod retention;
pub mod samples;

use std::future::Future;

pub use simulated::{disk, platter, random};

/// Runs `work` on this thread alone.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
    runtime.block_on(work)
}

/// As [`block_on`], with a clock that stands still while anything can go on: delays cost no time.
pub fn block_on_paused<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime with a clock").block_on(work)
}
