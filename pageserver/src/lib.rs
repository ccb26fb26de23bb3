//! The server around the engine: its ports and their access control, settings, and receivers that follow live
//! Postgres servers.
//!
//! `docs/architecture.md` describes the crates and modules, and their ranks. The engine modules that benchmarks of
//! write paths access under this crate's name are re-exported here.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod auth;
pub mod follow;
pub mod http;
pub mod page_service;
pub(crate) mod places;
pub mod settings;
pub mod tls;
pub mod walreceiver;

pub use engine::{config, context, l0_flush, page_cache, task_mgr, tenant};
pub use virtual_file;
