//! What brings WAL to timelines, as far as those who hand tenants over have to do with it.

use futures_util::future::BoxFuture;
use pageserver_api::shard::TenantShardId;

/// What brings WAL to the timelines of tenants, or follows them as a standby.
pub trait Receivers: Send + Sync {
    /// Nothing more is taken in for a tenant until `go_on`. What was, is in its timelines then.
    fn halt(&self, tenant: TenantShardId) -> BoxFuture<'static, ()>;

    /// Takes in what comes for a tenant again, or follows it as a standby.
    fn go_on(&self, tenant: TenantShardId) -> BoxFuture<'static, ()>;

    /// Whether all is followed, as far as that is known, that a standby of the tenant can follow.
    fn is_following(&self, tenant: TenantShardId) -> bool;
}

/// See [`Receivers`].
pub(super) struct Receiving(pub(super) Box<dyn Receivers>);

impl std::fmt::Debug for Receiving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Receiving")
    }
}
