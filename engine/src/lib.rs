//! The storage engine: takes in values by key and LSN, keeps them as layers, and rebuilds pages as of any LSN.
//!
//! `docs/architecture.md` is the map of the modules and their ranks.
#![forbid(unsafe_code)]

pub mod block_cache;
pub mod config;
pub mod context;
pub mod disk_budget;
pub mod l0_flush;
pub mod observer;
pub mod page_cache;
pub mod resources;
pub mod task_mgr;
pub mod tenant;
