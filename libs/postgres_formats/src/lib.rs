//! Byte layouts of PostgreSQL 14-18: pages, WAL records, WAL pages, the control file, SLRUs, relation maps.
//!
//! Bytes only: nothing here opens a file or knows about keys and layers. Every parser is total: invalid external
//! bytes yield typed errors, never panics.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::unwrap_used))]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod btree;
pub mod checkpoint;
pub mod clog;
pub mod commit_ts;
pub mod conf_file;
pub mod control_file;
pub mod cursor;
pub mod dbase;
mod fields;
pub mod heap;
pub mod image;
pub mod main_data;
pub mod multixact;
pub mod page;
pub mod record;
pub mod relmap;
pub mod replorigin;
pub mod rmgr;
pub mod slru;
pub mod smgr;
pub mod standby;
pub mod tblspc;
pub mod twophase;
pub mod version;
pub mod wal_file;
pub mod wal_page;
pub mod xact;
pub mod xlog;

/// Size of a data page and of a WAL page in bytes (`BLCKSZ`, `XLOG_BLCKSZ`; the default build).
pub const BLCKSZ: usize = 8192;

/// Rounds `len` up to a multiple of 8 (`MAXALIGN`); saturates at the type's maximum.
pub const fn maxalign(len: usize) -> usize {
    len.saturating_add(7) & !7
}
