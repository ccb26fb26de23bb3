//! What a server has of WAL beside its layers, as far as those who attach tenants have to do with it.

use futures_util::future::BoxFuture;
use pageserver_api::shard::TenantShardId;

use crate::tenant::timeline::Timeline;
use errors::StorageError;

/// WAL that is kept beside layers.
pub trait Journals: Send + Sync {
    /// Makes void what there is of a tenant that this server has nothing to do with any more.
    fn forget(&self, tenant: TenantShardId) -> BoxFuture<'static, Result<(), StorageError>>;

    /// Whoever receives WAL of a tenant as its owner adds nothing more: another server owns it, and is followed from
    /// now on. What there is stays, and counts like that of any standby: if it is of the writer that the owner has.
    fn step_down(&self, tenant: TenantShardId);

    /// Nothing more is added for a tenant of which this server is about to become the owner. Unless it `is_standby`, it
    /// is noted on the disk that what there is may be of another writer, until it was taken in or made void.
    fn stand_still(&self, tenant: TenantShardId, is_standby: bool) -> BoxFuture<'static, Result<(), StorageError>>;

    /// Takes in what there is of a tenant's timelines behind their layers, which are open and not served yet: in the
    /// bucket, and here, if it is of the writer that the timeline has; it is void otherwise.
    fn take_in(&self, tenant: TenantShardId, timelines: Vec<Timeline>) -> BoxFuture<'static, Result<(), StorageError>>;

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
