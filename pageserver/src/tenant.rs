//! Tenants and their timelines.

pub mod layer_map;
pub mod storage_layer;
pub mod timeline;
