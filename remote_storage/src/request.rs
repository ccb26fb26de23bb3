//! What is asked of a store.

use super::path::RemotePath;
use metrics::RequestClass;

/// What is asked of a store, besides what the attempt itself knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) class: RequestClass,
    pub(super) operation: &'static str,
    pub(super) path: &'a RemotePath,
    /// Bytes that it moves, as far as is known.
    pub(super) bytes: u64,
}
