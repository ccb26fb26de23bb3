//! Computes: stock Postgres servers that run on the history of a timeline.
//!
//! A compute is a directory ([`layout`]). Its data directory is a user-space file system, which takes blocks that
//! this compute never wrote from a [`source`] as of one LSN, and keeps what Postgres writes.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod boot;
pub mod catalog;
pub mod descriptors;
pub mod fetch;
pub mod fs;
mod index_scan;
pub mod layout;
pub mod lifecycle;
pub mod manifest;
mod overlay;
mod private;
mod readahead;
pub mod source;
pub mod supervisor;

/// Size of a relation block in bytes.
pub const BLOCK: usize = 8192;

/// Blocks of a full segment: Postgres splits relation files at 1 GiB.
pub const SEGMENT_BLOCKS: u32 = 1 << 17;
