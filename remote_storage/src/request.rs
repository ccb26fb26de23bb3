//! Requests to a bucket.

use super::path::RemotePath;
use metrics::RequestClass;

/// The parameters of a request that all its attempts share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) class: RequestClass,
    pub(super) operation: &'static str,
    pub(super) path: &'a RemotePath,
    /// Bytes that it transfers, as far as known.
    pub(super) bytes: u64,
}
