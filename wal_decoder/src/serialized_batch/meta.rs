//! What is known of a value without its bytes.

use pageserver_api::key::CompactKey;
use utils::lsn::Lsn;

/// What an index needs to know of one serialized value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueMeta {
    /// The value's key.
    pub key: CompactKey,
    /// The value's version.
    pub lsn: Lsn,
    /// Where the value starts in the batch's bytes.
    pub offset: u32,
    /// Length of the serialized value in bytes.
    pub len: u32,
    /// Whether no earlier version is needed.
    pub will_init: bool,
}
