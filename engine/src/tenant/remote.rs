//! The bucket as the source of truth about a tenant: who may write to it, what it contains, and how data gets there.
//!
//! A server that takes a tenant first takes a new generation of it ([`generation`]): an object that only one server
//! can create. Everything a server writes carries its generation in the name, so that no server overwrites another's
//! objects. A server reports data as safe only after it has checked, *after* writing it, that no newer generation
//! exists; and a new owner reads only after its own generation exists. All later owners therefore see whatever was
//! reported safe. A server makes the same check before it removes anything.

mod decision;
mod deletion;
mod generation;
mod index_part;
mod layer_list;
pub(crate) mod outdated;
mod plan;
mod uploader;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use tokio::sync::watch;
use utils::id::TimelineId;

use crate::config::ServerIdentity;
use crate::lease::Lease;
use crate::tenant::storage_layer::RemoteObject;
pub(crate) use decision::{Decision, decide};
pub use deletion::{bury_timeline, mark_import, remove_tenant, remove_timeline};
use errors::StorageError;
pub(crate) use generation::{
    Holder, MAX_LEN as MAX_GENERATION, Newest, Purpose, Taken, defect, mend, newest, parse as parse_generation,
    server_of, trace,
};
pub use index_part::check_new;
pub(crate) use index_part::{
    IndexPart, MAX_LEN as MAX_INDEX_PART, Own, Said, lost as lost_index_part, read as read_index_part, said_of,
};
pub(crate) use layer_list::{LayerList, Spare};
pub use plan::layer_names;
use remote_storage::{RemotePath, RemoteStorage, RequestClass};
pub use uploader::{Uploader, Wanted};

/// A tenant as held by this server: its bucket and the generation that was taken.
#[derive(Debug)]
pub struct TenantRemote {
    storage: RemoteStorage,
    tenant: TenantShardId,
    generation: u32,
    /// Index parts up to this generation belong to a deleted tenant of the same name.
    void_through: u32,
    /// This server's identity.
    server: ServerIdentity,
    /// Until when it may act as the owner without asking.
    lease: Arc<Lease>,
    /// The newer generation, once one has been seen.
    fenced: watch::Sender<Option<u32>>,
    checked: Mutex<Instant>,
    /// Locked while a check is under way.
    looking: tokio::sync::Mutex<()>,
}

impl TenantRemote {
    /// Takes the tenant over: its current owner is fenced from here on.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if it was deleted; those of the bucket.
    pub async fn attach(storage: RemoteStorage, tenant: TenantShardId) -> Result<Arc<Self>, StorageError> {
        match Self::take(storage, tenant, Purpose::Attach, &ServerIdentity::default(), Arc::default()).await? {
            (Taken::Mine, remote) => Ok(remote),
            (Taken::Deleted | Taken::Foreign(_), remote) => {
                let object = remote.storage.name_of(&RemotePath::generation(&tenant, remote.generation));
                Err(StorageError::Invalid(format!("tenant {tenant} was deleted, as {object} says")))
            }
        }
    }

    /// Takes a generation. If the tenant was deleted or belongs to another server, none is taken, and the returned
    /// generation is the one that records this.
    pub(crate) async fn take(
        storage: RemoteStorage,
        tenant: TenantShardId,
        purpose: Purpose,
        server: &ServerIdentity,
        lease: Arc<Lease>,
    ) -> Result<(Taken, Arc<Self>), StorageError> {
        let (taken, generation, void_through) = generation::take(&storage, tenant, purpose, server).await?;
        assert!(generation > 0, "generations begin at 1");
        let (fenced, checked) = (watch::Sender::new(None), Mutex::new(env::clock::now()));
        let looking = tokio::sync::Mutex::default();
        let server = server.clone();
        let remote = Self { storage, tenant, generation, void_through, server, lease, fenced, checked, looking };
        Ok((taken, Arc::new(remote)))
    }

    /// A tenant as somebody sees it who looks on: what the owners up to `generation` have written. Nothing is taken,
    /// and nothing may be written.
    pub(crate) fn onlooker(
        storage: RemoteStorage,
        tenant: TenantShardId,
        generation: u32,
        void_through: u32,
    ) -> Result<Self, StorageError> {
        let (fenced, checked) = (watch::Sender::new(None), Mutex::new(env::clock::now()));
        let (server, lease, looking) = Default::default();
        let generation = generation::after(generation)?;
        Ok(Self { storage, tenant, generation, void_through, server, lease, fenced, checked, looking })
    }

    /// Gives the generation back, because the chain before it is damaged and nobody may continue from it without an
    /// explicit takeover.
    pub(crate) async fn refuse(&self) -> Result<(), StorageError> {
        generation::refuse(&self.storage, self.tenant, self.generation).await
    }

    /// The bucket.
    pub fn storage(&self) -> &RemoteStorage {
        &self.storage
    }

    /// The tenant shard.
    pub fn tenant_shard_id(&self) -> TenantShardId {
        self.tenant
    }

    /// The generation that this server holds.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Checks that no newer generation exists.
    ///
    /// # Errors
    /// [`StorageError::Fenced`] if one does, now and from then on; those of the bucket if this cannot be determined.
    pub async fn check(&self) -> Result<(), StorageError> {
        self.check_known()?;
        let newer = generation::after(self.generation)?;
        let path = RemotePath::generation(&self.tenant, newer);
        match self.storage.head(RequestClass::Control, &path).await? {
            None => {
                *self.checked.lock() = env::clock::now();
                Ok(())
            }
            Some(_) => Err(self.fence(newer)),
        }
    }

    /// As [`TenantRemote::check`], unless a check is already under way.
    pub async fn look(&self) {
        let Ok(_looking) = self.looking.try_lock() else { return };
        // Uploads report whether the bucket answers.
        let _ = self.check().await;
    }

    /// Fails if a newer generation has been seen. Makes no request.
    pub fn check_known(&self) -> Result<(), StorageError> {
        match *self.fenced.borrow() {
            Some(newer) => Err(self.fenced_by(newer)),
            None => Ok(()),
        }
    }

    /// Fails unless this server may act as the owner: always, if it needs no lease. Makes no request.
    ///
    /// # Errors
    /// [`StorageError::Fenced`], [`StorageError::Unleased`].
    pub fn check_lease(&self) -> Result<(), StorageError> {
        if self.lease.is_bound() {
            self.check_known()?;
        }
        self.lease.check((self.tenant, self.generation))
    }

    /// Time since the last check that found no newer generation.
    pub(crate) fn unchecked_for(&self) -> Duration {
        env::clock::now().saturating_duration_since(*self.checked.lock())
    }

    /// Why this server may no longer write, if so.
    pub fn fenced(&self) -> Option<String> {
        self.check_known().err().map(|error| error.to_string())
    }

    /// Watches for a newer generation.
    pub fn watch_fenced(&self) -> watch::Receiver<Option<u32>> {
        self.fenced.subscribe()
    }

    fn fence(&self, newer: u32) -> StorageError {
        assert!(newer > self.generation, "generation {} is fenced by {newer}", self.generation);
        let error = self.fenced_by(newer);
        let first = self.fenced.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(newer);
            first
        });
        if first {
            metrics::METRICS.tenants_fenced.inc();
            tracing::error!(tenant = %self.tenant, "{error}");
        }
        error
    }

    fn fenced_by(&self, newer: u32) -> StorageError {
        StorageError::Fenced { tenant_shard_id: self.tenant, generation: self.generation, newer }
    }

    fn index_part_path(&self, timeline: TimelineId, generation: u32) -> RemotePath {
        RemotePath::index_part(&self.tenant, &timeline, generation)
    }

    /// The object of a layer.
    pub(crate) fn layer_object(&self, timeline: TimelineId, file_name: &str) -> RemoteObject {
        RemoteObject { storage: self.storage.clone(), path: self.layer_path(timeline, file_name) }
    }

    pub(crate) fn layer_path(&self, timeline: TimelineId, file_name: &str) -> RemotePath {
        RemotePath::layer(&self.tenant, &timeline, file_name)
    }
}
