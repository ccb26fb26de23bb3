//! A data directory as keys: which databases, relations, segments and files there are at an LSN, and how large.
//!
//! * [`directory`]: the values of directory keys, encoded canonically.
//! * [`listing`]: reads of them at an LSN.
//! * [`timestamps`]: when was it.
//! * [`difference`]: what differs between two of them.
//! * [`settings`]: what its configuration files said.
//! * [`keys`]: all keys that exist at an LSN.
//! * [`PageStore`]: what reads and ingest need of a timeline; [`TimelineStore`] is a timeline seen that way.
//!
//! A relation fork exists if its entry in the sparse key range is not empty. Every block below its size has a version:
//! what no record ever wrote is stored as a page of zeros.

pub mod difference;
pub mod directory;
pub mod keys;
pub mod listing;
#[cfg(test)]
pub(crate) mod memory;
pub mod settings;
mod store;
mod timeline_store;
pub mod timestamps;

pub use store::{PageHistory, PageStore};
pub use timeline_store::TimelineStore;
