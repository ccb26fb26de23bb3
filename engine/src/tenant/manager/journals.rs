//! What a server has of WAL beside its layers, as far as those who attach tenants have to do with it.

use futures_util::future::BoxFuture;
use pageserver_api::shard::TenantShardId;

use crate::tenant::timeline::Timeline;
use errors::StorageError;

/// WAL that is kept beside layers.
pub trait Journals: Send + Sync {
    /// Makes void what there is of a tenant that is about to be attached, or followed: it is of the time when this
    /// server had it, and another one may have gone on since.
    fn forget(&self, tenant: TenantShardId) -> BoxFuture<'static, Result<(), StorageError>>;

    /// Nothing more is added for a tenant of which this server is a standby, as it is about to become its owner.
    fn stand_still(&self, tenant: TenantShardId) -> BoxFuture<'static, ()>;

    /// Takes in what there is of these timelines behind their layers, which are open and not served yet: here, if this
    /// server was a standby of the tenant, and in the bucket.
    fn take_in(&self, timelines: Vec<Timeline>, was_standby: bool) -> BoxFuture<'static, Result<(), StorageError>>;

    /// The attempt to attach the tenant is over.
    fn go_on(&self, tenant: TenantShardId);
}

/// See [`Journals`].
pub(super) struct Kept(pub(super) Box<dyn Journals>);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Kept")
    }
}
