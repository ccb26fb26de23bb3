//! The storage engine: ingests values by key and LSN, stores them in layers, and rebuilds pages as of any LSN.
//!
//! `docs/architecture.md` maps the modules and their ranks.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod block_cache;
pub mod config;
pub mod context;
pub mod disk_budget;
pub mod l0_flush;
pub mod lease;
pub mod live_keys;
pub mod observer;
pub mod page_cache;
pub mod placement;
pub mod resources;
pub mod slow_reads;
pub mod task_mgr;
pub mod tenant;
mod turns;
