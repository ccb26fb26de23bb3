//! Information about a value that does not require its bytes.

use pageserver_api::key::CompactKey;
use utils::lsn::Lsn;

/// What an index needs to know about one serialized value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueMeta {
    /// The value's key.
    pub key: CompactKey,
    /// The LSN of the value's version.
    pub lsn: Lsn,
    /// Where the value starts in the batch's bytes.
    pub offset: u32,
    /// Length of the serialized value in bytes.
    pub len: u32,
    /// Whether no earlier version is needed.
    pub will_init: bool,
}
