//! The format of layer files: checksummed blocks, header, index pages, fences, filter and footer. Bytes only, no I/O.
//!
//! `docs/formats.md` shows the layout. A layer file is a sequence of 4 KiB [`block`]s, each with its own checksum;
//! positions above that level are *logical*: they count only payload bytes.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::unwrap_used))]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod block;
pub mod bytes;
pub mod fences;
pub mod filter;
pub mod footer;
pub mod header;
pub mod index;

/// Bytes that violate the format.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct FormatError(pub String);

impl FormatError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}
