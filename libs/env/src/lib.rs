//! Seams for what a test must be able to replace: time, randomness and the spawning of tasks.
//!
//! The rest of the project may not call `Instant::now`, `SystemTime::now`, `thread::spawn`, `tokio::spawn` or a random
//! generator directly; `clippy.toml` forbids it.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)]

pub mod clock;
pub mod planted;
pub mod random;
pub mod spawn;
