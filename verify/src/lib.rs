//! Comparisons with what Postgres itself made: of a store with a stopped server's files, of redo with the images in
//! WAL, and of two stores with each other.
#![forbid(unsafe_code)]

pub mod consistency;
pub mod digest;
pub mod files;
mod parallel;
