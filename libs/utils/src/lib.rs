//! Identifiers, LSNs, the fixed-width binary encoding, shutdown gates and durable file helpers.
//!
//! Rank 0: everything else may use this crate, it uses nothing of ours but `env`.
#![forbid(unsafe_code)]

pub mod bin_ser;
pub mod durable;
pub mod excerpt;
pub mod id;
pub mod lsn;
pub mod shard;
pub mod sync;
