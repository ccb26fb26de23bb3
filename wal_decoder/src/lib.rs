//! Turns raw WAL bytes into per-page values: pure and total, no I/O, no clock.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::unwrap_used))]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod interpret;
pub mod serialized_batch;
pub mod stream;
pub mod tablespaces;
