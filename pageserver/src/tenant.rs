//! Tenants and their timelines.

pub mod storage_layer;
