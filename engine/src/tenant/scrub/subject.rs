//! What is scrubbed, and what may be done about it.

use std::time::Duration;

use pageserver_api::shard::TenantShardId;

use crate::config::PageServerConf;
use crate::tenant::timeline::Timeline;

/// What a scrub may change, besides looking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Repair local files from the bucket.
    pub repair: bool,
    /// Repair objects from good local files.
    pub repair_bucket: bool,
    /// Remove what nothing names.
    pub delete_orphans: bool,
    /// What is younger than this is no orphan: somebody may be about to name it.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { repair: false, repair_bucket: false, delete_orphans: false, grace: Duration::from_secs(3600) }
    }
}

/// What is scrubbed.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The working directory, and the bucket if there is one.
    pub conf: &'static PageServerConf,
    /// The tenant.
    pub tenant: TenantShardId,
    /// Its timelines that are open in this process.
    pub open: Vec<Timeline>,
    /// The generation that this process holds; `None` if it holds none.
    pub generation: Option<u32>,
    /// Nobody uses the directory: files that nothing names are no work in progress.
    pub exclusive: bool,
}
