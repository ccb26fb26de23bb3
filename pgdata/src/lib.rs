//! What Postgres data means to the engine, and the ways in and out: a data directory as keys, which databases,
//! relations, segments and files there are at an LSN, and how large.
//!
//! * [`directory`]: the values of directory keys, encoded canonically.
//! * [`listing`]: reads of them at an LSN.
//! * [`timestamps`]: when was it.
//! * [`difference`]: what differs between two of them.
//! * [`settings`]: what its configuration files said.
//! * [`size_changes`]: when sizes of relations changed last, of what came in since a timeline was opened.
//! * [`keys`]: all keys that exist at an LSN.
//! * [`import`]: a data directory or a base backup becomes a timeline.
//! * [`ingest`]: WAL becomes values.
//! * [`basebackup`]: a timeline becomes the data directory that Postgres starts on.
//! * [`PageStore`]: what reads and ingest need of a timeline; [`TimelineStore`] is a timeline seen that way.
//!
//! A relation fork exists if its entry in the sparse key range is not empty. Every block below its size has a version:
//! what no record ever wrote is stored as a page of zeros.
#![forbid(unsafe_code)]

pub mod basebackup;
pub mod difference;
pub mod directory;
pub mod import;
pub mod ingest;
pub mod keys;
pub mod listing;
#[cfg(test)]
pub(crate) mod memory;
pub mod settings;
pub mod size_changes;
pub mod store;
mod timeline_store;
pub mod timestamps;

pub use store::{PageHistory, PageStore};
pub use timeline_store::TimelineStore;
