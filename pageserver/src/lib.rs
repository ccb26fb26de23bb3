//! The storage engine: takes in values by key and LSN, keeps them as layers, and rebuilds pages as of any LSN.
//!
//! `docs/architecture.md` is the map of the modules and their ranks.

pub mod attach;
pub mod auth;
pub mod basebackup;
pub mod block_cache;
pub mod config;
pub mod context;
pub mod datadir;
pub mod disk_budget;
pub mod errors;
pub mod http;
pub mod import;
pub mod ingest;
pub mod l0_flush;
pub mod metrics;
pub mod page_cache;
pub mod page_service;
pub mod pgdata;
pub(crate) mod places;
pub mod remote_storage;
pub mod settings;
pub mod task_mgr;
pub mod tenant;
pub mod tls;
#[allow(clippy::disallowed_methods, reason = "this is the seam that everything else must use")]
pub mod virtual_file;
pub mod walreceiver;
