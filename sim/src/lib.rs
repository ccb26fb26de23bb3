//! Years in an hour: whole servers, their disks, the bucket and those who use them in one thread, with one virtual
//! clock and one source of chance. Every decision is drawn from a seed, so whatever goes wrong goes wrong again.
//!
//! The production code runs unchanged, above its seams: tasks, clocks and chance of [`env`], disks of [`virtual_file`],
//! the store of [`remote_storage`].
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod acts;
mod checks;
#[allow(unsafe_code, reason = "it takes the place of a function of C")]
mod entropy;
mod faults;
mod finale;
pub mod fleet;
mod heap;
pub mod kind;
mod leftovers;
pub(crate) mod moving;
mod neighbours;
mod network;
mod origin;
pub mod plan;
mod postgres;
mod quorum;
mod reader;
pub mod run;
mod server;
mod settle;
pub mod shrink;
pub mod story;
mod succession;
pub mod tally;
mod tenant;
mod wal;
mod walsender;
mod weather;
mod wire;
mod world;
