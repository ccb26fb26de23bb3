//! Stock Postgres for tests in Rust: its programs, places for its files, servers, checks of their data; and
//! directories that look like Postgres's own.
//!
//! A test must first look for the programs, because they may be missing:
//!
//! ```no_run
//! let postgres = test_needs::need!(test_postgres::Postgres::find());
//! let server = postgres.start("max_connections = 10");
//! assert_eq!(server.sql("SELECT 1"), "1");
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "for tests only, whose files and processes are not the engine's")]

mod checks;
mod clients;
mod command;
pub mod data_directory;
mod place;
pub mod process;
mod programs;
mod server;

pub use command::{run, tar};
pub use place::Place;
pub use programs::Postgres;
pub use server::Server;

#[cfg(test)]
mod tests;
