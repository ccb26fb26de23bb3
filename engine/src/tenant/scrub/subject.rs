//! The subject of a scrub, and the changes that it may make.

use std::time::Duration;

use pageserver_api::shard::TenantShardId;

use crate::config::PageServerConf;
use crate::tenant::timeline::Timeline;

/// The changes that a scrub may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Repair local files from the bucket.
    pub repair: bool,
    /// Repair objects from good local files.
    pub repair_bucket: bool,
    /// Remove orphans.
    pub delete_orphans: bool,
    /// Younger objects are not considered orphans: somebody may be about to name them.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { repair: false, repair_bucket: false, delete_orphans: false, grace: Duration::from_secs(3600) }
    }
}

/// The subject of a scrub.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The settings, with the working directory and the bucket if there is one.
    pub conf: &'static PageServerConf,
    /// The tenant.
    pub tenant: TenantShardId,
    /// Its timelines that are open in this process.
    pub open: Vec<Timeline>,
    /// The generation that this process holds; `None` if it holds none.
    pub generation: Option<u32>,
    /// Nobody else uses the directory, so files that nothing names are not work in progress.
    pub exclusive: bool,
}
