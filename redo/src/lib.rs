//! Replay of PostgreSQL 14-18 WAL, page by page: `(page, record, block reference) -> page`.
//!
//! Redo of a page needs the record's main data, the block reference's own data and the *numbers* of the record's
//! other blocks, never the content of another page. So any page can be rolled forward alone, from any older version
//! of it. Everything here is pure: no I/O, no state, and errors instead of panics for any input.
//!
//! * [`Chain`] applies many records to a page, [`apply_record`] a single one: full-page images, LSN rules, then one
//!   module per resource manager. A failed apply leaves the page unchanged, or drops it with the chain.
//! * [`vm`] and [`slru`] make the page changes for which records have no block reference.
//! * [`mask`] blanks what PostgreSQL itself does not log, to compare pages with those of a server.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
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
