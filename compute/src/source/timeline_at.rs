//! What a compute reads: a timeline at an LSN.

use serde::{Deserialize, Serialize};
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

/// A timeline as of an LSN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineAt {
    /// The tenant.
    pub tenant: TenantId,
    /// The timeline.
    pub timeline: TimelineId,
    /// The LSN.
    pub lsn: Lsn,
    /// Whether the cluster has data checksums: pages from the page service do not carry them.
    pub data_checksums: bool,
}
