//! What a server knows of a tenant of which it is a standby.

use std::time::Instant;

use pageserver_api::shard::TenantShardId;

use crate::lease::Verdict;
use crate::tenant::remote::Holder;

/// A tenant of another server.
#[derive(Clone, Debug, Default)]
pub(super) struct Standby {
    /// The owner, and the generation in which it holds the tenant.
    pub(super) owner: Option<(Holder, u32)>,
    /// Index parts up to this generation belong to a deleted tenant of the same name.
    pub(super) void_through: u32,
    /// When that was last looked at.
    pub(super) located: Option<Instant>,
    pub(super) verdict: Option<Verdict>,
    /// What went wrong the last time.
    pub(super) error: Option<String>,
}

/// What a standby knows.
#[derive(Clone, Debug)]
pub struct StandbyInfo {
    /// The owner's server id, and the name of its machine.
    pub owner: Option<(String, String)>,
    /// The generation in which it holds the tenant.
    pub generation: Option<u32>,
    /// What is known of its lease.
    pub lease: Option<Verdict>,
    /// What keeps this server from following it, or from taking over.
    pub error: Option<String>,
}

impl Standby {
    pub(super) fn info(&self) -> StandbyInfo {
        StandbyInfo {
            owner: self.owner.as_ref().map(|(holder, _)| (holder.server.clone(), holder.host.clone())),
            generation: self.owner.as_ref().map(|(_, generation)| *generation),
            lease: self.verdict,
            error: self.error.clone(),
        }
    }

    /// Why this server does not serve the tenant.
    pub(super) fn elsewhere(&self, id: TenantShardId) -> String {
        let owner = match &self.owner {
            Some((Holder { server, host }, _)) => format!("which is server {server} (on {host})"),
            None => "which it has not found yet".to_owned(),
        };
        format!("tenant {id}: this server is a standby, and not the owner, {owner}")
    }
}
