//! Comparisons with what Postgres itself produced: of a timeline with a stopped server's files, of redo with the
//! images in the WAL, and of two timelines with each other.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod consistency;
pub mod digest;
pub mod files;
mod parallel;
