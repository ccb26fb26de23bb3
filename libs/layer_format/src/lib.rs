//! The format of layer files: checked blocks, header, index pages, fences and footer. Bytes only, no I/O.
//!
//! `docs/formats.md` draws the file. A layer file is a sequence of 4 KiB [`block`]s, each with its own checksum; above
//! them positions are *logical*: they count payload bytes only.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::unwrap_used))]

pub mod block;
pub mod bytes;
pub mod fences;
pub mod footer;
pub mod header;
pub mod index;

/// Bytes that do not form what they should.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct FormatError(pub String);

impl FormatError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}
