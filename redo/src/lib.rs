//! Replay of PostgreSQL 14-18 WAL, page by page: `(page, record, block reference) -> page`.
//!
//! Redo of a page needs the record's main data, the block reference's own data and the *numbers* of the record's other
//! blocks, never the content of another page. So any page can be brought forward alone, from any older version of it.
//! Everything here is pure: no I/O, no state, and errors instead of panics whatever the bytes.
//!
//! * [`Chain`] brings a page through many records, [`apply_record`] through one: full-page images, LSN rules, then one
//!   module per resource manager. A failed apply leaves the page as it was, or takes it away with the chain.
//! * [`vm`] and [`slru`] hold the page changes that records make without a block reference.
//! * [`mask`] blanks what PostgreSQL itself does not log, to compare pages with those of a server.

#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::unwrap_used))]

mod apply;
mod brin;
mod btree;
mod chain;
mod context;
mod data;
mod error;
mod generic;
mod gin;
mod gist;
mod hash;
mod heap;
mod heap2;
mod index_tuple;
pub mod mask;
mod op;
mod page;
mod sequence;
pub mod slru;
mod spgist;
#[cfg(test)]
mod testing;
pub mod vm;

pub use apply::{Applied, apply_record};
pub use chain::Chain;
pub use context::RedoContext;
pub use error::{Fault, RecordContext, RedoError};
