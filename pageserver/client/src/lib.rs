//! Client of the page service: asks a pageserver for pages, sizes and base backups.
#![forbid(unsafe_code)]
