//! Tenants and their timelines.

pub mod layer_map;
mod locate;
pub mod manager;
pub mod storage_layer;
pub mod timeline;

pub use locate::{find_single_timeline, list_timelines};
