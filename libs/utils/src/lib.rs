//! Identifiers, LSNs, the fixed-width binary encoding, shutdown gates and durable file helpers.
//!
//! Rank 0: every crate may use this one, and it uses none of ours except `env`.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod bin_ser;
pub mod crc32c;
pub mod durable;
pub mod excerpt;
pub mod id;
pub mod lsn;
pub mod shard;
pub mod sync;
