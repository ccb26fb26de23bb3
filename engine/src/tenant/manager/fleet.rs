//! What the bucket says of all servers that share it: who owns which tenant, whose leases there are, and what servers
//! say of themselves. For people; nothing is decided by it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use pageserver_api::shard::TenantShardId;

use super::TenantManager;
use crate::lease::objects::{Objects, Renewal};
use crate::placement::Placements;
use crate::tenant::remote::newest;
use errors::{ErrorKind, StorageError};
use remote_storage::{Listed, RemotePath, RemoteStorage, RequestClass};

/// More tenants than that are not looked at.
const TENANTS_MAX: usize = 1000;
/// More servers than that are not looked at.
const SERVERS_MAX: usize = 200;
/// Upper bound of what a server says of itself.
const CARD_MAX: u64 = 4 << 20;
/// Maximum number of concurrent requests.
const PARALLEL: usize = 16;

/// A tenant, and who owns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantOwner {
    /// The tenant.
    pub id: TenantShardId,
    /// Its newest generation.
    pub generation: u32,
    /// Who took it; empty if that is not known.
    pub server: String,
    /// The name of its machine.
    pub host: String,
}

/// A server's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSeen {
    /// The server.
    pub server: String,
    /// The name of its machine.
    pub host: String,
    /// Standbys take over no sooner than so long after they have seen it.
    pub takeover_after: Duration,
    /// When it was renewed last, in seconds since 1970 by the bucket's clock.
    pub modified: i64,
}

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSaid {
    /// The server.
    pub server: String,
    /// What it says.
    pub card: Bytes,
    /// When it said so, in seconds since 1970 by the bucket's clock.
    pub modified: i64,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct FleetLook {
    /// All tenants that were not deleted.
    pub tenants: Vec<TenantOwner>,
    /// Tenants that were not looked at, as there are too many.
    pub tenants_left_out: usize,
    /// All leases.
    pub leases: Vec<LeaseSeen>,
    /// What servers say.
    pub said: Vec<ServerSaid>,
    /// Servers that are to own nothing.
    pub drained: BTreeSet<String>,
}

impl TenantManager {
    /// Looks at what the bucket says of all servers; `None` without a bucket. `known` has generations that exist, which
    /// saves requests.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn look_at_fleet(&self, known: &BTreeMap<TenantShardId, u32>) -> Result<Option<FleetLook>, StorageError> {
        let Some(storage) = &self.inner.conf.remote_storage else { return Ok(None) };
        let names = storage.list_dirs(RequestClass::Control, &RemotePath::tenants()).await?;
        let ids: Vec<TenantShardId> = names.iter().filter_map(|name| name.parse().ok()).collect();
        let tenants_left_out = ids.len().saturating_sub(TENANTS_MAX);
        let looking = ids.into_iter().take(TENANTS_MAX).map(|id| owner(storage, id, known.get(&id).copied()));
        let tenants: Vec<_> = futures_util::stream::iter(looking).buffered(PARALLEL).try_collect().await?;
        let (leases, said) = (leases(storage).await?, said(storage).await?);
        let drained = Placements::new(storage).list().await?.drained;
        let tenants = tenants.into_iter().flatten().collect();
        Ok(Some(FleetLook { tenants, tenants_left_out, leases, said, drained }))
    }

    /// Has the bucket say this of this server: one attempt.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn say_of_this_server(&self, card: Bytes) -> Result<(), StorageError> {
        let Some(storage) = &self.inner.conf.remote_storage else { return Ok(()) };
        storage.sign(RequestClass::Control, &RemotePath::server_card(&self.inner.conf.server.id), card).await
    }

    /// Has the bucket say nothing of this server.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn say_nothing_of_this_server(&self) -> Result<(), StorageError> {
        let Some(storage) = &self.inner.conf.remote_storage else { return Ok(()) };
        storage.delete(&[RemotePath::server_card(&self.inner.conf.server.id)]).await
    }
}

/// The owner of a tenant; `None` if it was deleted, or cannot be told since its chain of generations is damaged.
async fn owner(
    storage: &RemoteStorage,
    id: TenantShardId,
    known: Option<u32>,
) -> Result<Option<TenantOwner>, StorageError> {
    match newest(storage, id, known.unwrap_or(0)).await {
        Ok(found) => Ok(found.filter(|found| !found.is_deleted).map(|found| TenantOwner {
            id,
            generation: found.generation,
            server: found.holder.server,
            host: found.holder.host,
        })),
        Err(StorageError::DamagedChain { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn leases(storage: &RemoteStorage) -> Result<Vec<LeaseSeen>, StorageError> {
    let servers = storage.list_dirs(RequestClass::Control, &RemotePath::leases()).await?;
    let looking = servers.into_iter().take(SERVERS_MAX).map(|server| async move {
        // Claims and answers, of which there may be many, sort before it.
        let after = RemotePath::claim(&server, u32::MAX);
        let listed = storage.list_after(RequestClass::Control, &RemotePath::leases_of(&server), &after).await?;
        let path = RemotePath::lease(&server);
        let Some(listed) = listed.into_iter().find(|object| object.path == path) else { return Ok(None) };
        // One that cannot be read is told of by those who need it.
        let read = Objects::new(storage, &server).read().await.ok().flatten();
        Ok(read.map(|Renewal { host, takeover_after_ms, .. }| LeaseSeen {
            server,
            host,
            takeover_after: Duration::from_millis(takeover_after_ms),
            modified: listed.modified,
        }))
    });
    let found: Vec<Option<LeaseSeen>> = futures_util::stream::iter(looking).buffered(PARALLEL).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

async fn said(storage: &RemoteStorage) -> Result<Vec<ServerSaid>, StorageError> {
    let listed = storage.list(RequestClass::Control, &RemotePath::server_cards()).await?;
    let looking = listed.into_iter().take(SERVERS_MAX).map(|Listed { path, modified, .. }| async move {
        match storage.get(RequestClass::Control, &path, CARD_MAX).await {
            Ok(card) => Ok(Some(ServerSaid { server: path.file_name().to_owned(), card, modified })),
            // It has just been removed, or is too large to be one.
            Err(error) if matches!(error.kind(), ErrorKind::Gone | ErrorKind::Corrupt | ErrorKind::Invalid) => Ok(None),
            Err(error) => Err(error),
        }
    });
    let found: Vec<Option<ServerSaid>> = futures_util::stream::iter(looking).buffered(PARALLEL).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}
