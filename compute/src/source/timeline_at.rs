//! What a compute reads.

use serde::{Deserialize, Serialize};
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

/// Which timeline, as of when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineAt {
    /// The tenant.
    pub tenant: TenantId,
    /// The timeline.
    pub timeline: TimelineId,
    /// The LSN.
    pub lsn: Lsn,
    /// Whether the cluster has data checksums: the page service's pages do not.
    pub data_checksums: bool,
}
