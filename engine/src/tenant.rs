//! Tenants and their timelines.

pub(crate) mod ahead;
pub mod eviction;
pub mod layer_map;
mod locate;
pub mod manager;
pub mod remote;
pub mod scrub;
pub mod storage_layer;
pub mod timeline;
pub mod warm;

pub use locate::{find_single_timeline, list_timelines};
