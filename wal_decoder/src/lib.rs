//! From raw WAL bytes to per-page values: pure and total, no I/O, no clock.
#![forbid(unsafe_code)]

pub mod serialized_batch;
