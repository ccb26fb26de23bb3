//! The bucket as the truth about a tenant: who may write it, what is in it, how it gets there.
//!
//! Every server that takes a tenant takes a new generation of it first ([`generation`]): an object that only one can
//! make. Whatever a server writes has its generation in the name, so that no one overwrites what another one wrote. A
//! server calls something safe only after it has seen, *later* than it wrote it, that no newer generation exists; and a
//! new owner reads only after its generation exists. So what was called safe is seen by all later owners. What a server
//! removes, it removes after the same look.

mod decision;
mod deletion;
mod generation;
mod index_part;
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
use crate::tenant::storage_layer::RemoteObject;
pub(crate) use decision::{Decision, decide};
pub use deletion::{bury_timeline, mark_import, remove_tenant, remove_timeline};
use errors::StorageError;
pub(crate) use generation::{
    Holder, MAX_LEN as MAX_GENERATION, Purpose, Taken, defect, mend, parse as parse_generation, server_of, trace,
};
pub use index_part::check_new;
pub(crate) use index_part::{IndexPart, MAX_LEN as MAX_INDEX_PART, Own, Said, lost as lost_index_part, said_of};
pub use plan::layer_names;
use remote_storage::{RemotePath, RemoteStorage, RequestClass};
pub use uploader::{Uploader, Wanted};

/// A tenant as this server holds it: its bucket and the generation that was taken.
#[derive(Debug)]
pub struct TenantRemote {
    storage: RemoteStorage,
    tenant: TenantShardId,
    generation: u32,
    /// Index parts up to this generation are of a tenant of the same name that was deleted.
    void_through: u32,
    /// Who we are.
    server: ServerIdentity,
    /// The newer generation, once one was seen.
    fenced: watch::Sender<Option<u32>>,
    checked: Mutex<Instant>,
    /// Held while somebody looks.
    looking: tokio::sync::Mutex<()>,
}

impl TenantRemote {
    /// Takes the tenant over: whoever has it is fenced from here on.
    ///
    /// # Errors
    /// [`StorageError::Invalid`] if it was deleted; those of the store.
    pub async fn attach(storage: RemoteStorage, tenant: TenantShardId) -> Result<Arc<Self>, StorageError> {
        match Self::take(storage, tenant, Purpose::Attach, &ServerIdentity::default()).await? {
            (Taken::Mine, remote) => Ok(remote),
            (Taken::Deleted | Taken::Foreign(_), remote) => {
                let object = remote.storage.name_of(&RemotePath::generation(&tenant, remote.generation));
                Err(StorageError::Invalid(format!("tenant {tenant} was deleted, as {object} says")))
            }
        }
    }

    /// Takes a generation, and says whether the tenant was deleted, or is another server's; then nothing was taken, and
    /// the generation is the one that says so.
    pub(crate) async fn take(
        storage: RemoteStorage,
        tenant: TenantShardId,
        purpose: Purpose,
        server: &ServerIdentity,
    ) -> Result<(Taken, Arc<Self>), StorageError> {
        let (taken, generation, void_through) = generation::take(&storage, tenant, purpose, server).await?;
        assert!(generation > 0, "generations begin at 1");
        let (fenced, checked) = (watch::Sender::new(None), Mutex::new(env::clock::now()));
        let looking = tokio::sync::Mutex::default();
        let server = server.clone();
        Ok((taken, Arc::new(Self { storage, tenant, generation, void_through, server, fenced, checked, looking })))
    }

    /// Gives the generation back, which was taken although the chain before it is damaged: nobody goes on from it
    /// unasked.
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

    /// Makes sure that no newer generation exists.
    ///
    /// # Errors
    /// [`StorageError::Fenced`] if one does, now and from then on; those of the store if it cannot be known.
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

    /// As [`TenantRemote::check`], unless somebody does it already.
    pub async fn look(&self) {
        let Ok(_looking) = self.looking.try_lock() else { return };
        // Whether the bucket answers is told by uploads.
        let _ = self.check().await;
    }

    /// Fails if a newer generation was seen. Asks nobody.
    pub fn check_known(&self) -> Result<(), StorageError> {
        match *self.fenced.borrow() {
            Some(newer) => Err(self.fenced_by(newer)),
            None => Ok(()),
        }
    }

    /// How long ago it was seen that no newer generation exists.
    pub(crate) fn unchecked_for(&self) -> Duration {
        env::clock::now().saturating_duration_since(*self.checked.lock())
    }

    /// Why this server may not write any more, if so.
    pub fn fenced(&self) -> Option<String> {
        self.check_known().err().map(|error| error.to_string())
    }

    /// Follows the newer generation.
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
