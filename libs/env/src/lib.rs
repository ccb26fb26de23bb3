//! Seams for everything that a test must be able to replace: time, randomness, and spawning of tasks and threads.
//!
//! The rest of the project must not call `Instant::now`, `SystemTime::now`, `thread::spawn`, `tokio::spawn` or a
//! random number generator directly; `clippy.toml` forbids it.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod aside;
#[allow(clippy::disallowed_methods, reason = "this is the seam for time")]
pub mod clock;
mod planted;
pub mod process;
#[allow(clippy::disallowed_methods, reason = "this is the seam for chance")]
pub mod random;
#[allow(clippy::disallowed_methods, reason = "this is the seam for tasks and threads")]
pub mod spawn;
