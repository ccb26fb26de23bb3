//! Byte layouts of PostgreSQL 14-18: pages, WAL records, WAL pages, the control file, SLRUs, relation maps.
//!
//! Bytes only: nothing here opens a file or knows of keys and layers.

pub mod record;
pub mod version;
