//! Postgres data on top of the engine: the layout of a data directory as keys; the databases, relations, segments and
//! files that exist at an LSN, and their sizes; import, ingest and base backups.
//!
//! * [`directory`]: the values of directory keys, encoded canonically.
//! * [`listing`]: reads them at an LSN.
//! * [`timestamps`]: commit times by LSN.
//! * [`difference`]: differences between two timelines.
//! * [`settings`]: settings from the cluster's configuration files.
//! * [`size_changes`]: the last changes of relation sizes since a timeline was opened.
//! * [`keys`]: all keys that exist at an LSN.
//! * [`import`]: makes a timeline of a data directory or a base backup.
//! * [`ingest`]: turns WAL into values.
//! * [`basebackup`]: makes a data directory of a timeline, for Postgres to start from.
//! * [`PageStore`]: what reads and ingest need from a timeline; [`TimelineStore`] implements it for a timeline.
//!
//! A relation fork exists if its entry in the sparse key range is not empty. Every block below the fork's size has a
//! version: blocks that no record ever wrote are stored as pages of zeros.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod basebackup;
pub mod difference;
pub mod directory;
pub mod import;
pub mod ingest;
pub mod keys;
pub mod listing;
mod live_keys;
#[cfg(test)]
pub(crate) mod memory;
pub mod settings;
pub mod size_changes;
pub mod store;
mod timeline_store;
pub mod timestamps;

pub use live_keys::PostgresKeys;
pub use store::{PageHistory, PageStore};
pub use timeline_store::TimelineStore;
