//! The server around the engine: its ports and who may use them, settings, and what follows live Postgres servers.
//!
//! `docs/architecture.md` is the map of the crates and modules, and of their ranks. What benchmarks of write paths
//! name by this crate's paths is in the engine and its I/O, and stays reachable here.
#![forbid(unsafe_code)]

pub mod attach;
pub mod auth;
pub mod http;
pub mod page_service;
pub(crate) mod places;
pub mod settings;
pub mod tls;
pub mod walreceiver;

pub use engine::{config, context, l0_flush, page_cache, task_mgr, tenant};
pub use virtual_file;
