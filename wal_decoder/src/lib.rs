//! From raw WAL bytes to per-page values: pure and total, no I/O, no clock.
#![forbid(unsafe_code)]

pub mod interpret;
pub mod serialized_batch;
pub mod stream;
pub mod tablespaces;
