//! The objects of a lease, and what is done with them.
//!
//! `lease` is written by its owner only, again and again. `wanted` is written by standbys that find no lease, and taken
//! away by the owner now and then, so that a lease ends for which nobody asks any more. Claims are numbered without a
//! gap and stay, so that the next one is one request; an answer is created by whoever is first.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Held;
use errors::{ErrorKind, StorageError};
use remote_storage::{Creation, RemotePath, RemoteStorage, RequestClass};

/// Upper bound of an object's size in bytes: a claim may name many tenants.
const MAX_LEN: u64 = 4 << 20;

/// The content of a lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renewal {
    /// The server's id.
    pub server: String,
    /// The name of its machine, for people.
    pub host: String,
    /// Which of its processes it is.
    pub life: String,
    /// The number of the renewal in this life.
    pub renewal: u64,
    /// Standbys take over no sooner than so many milliseconds after they have seen it.
    pub takeover_after_ms: u64,
}

impl Renewal {
    /// Whether it is the very same one.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.life, self.renewal) == (&other.life, other.renewal)
    }
}

/// What a standby is about to take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    /// A random value that distinguishes it from all others.
    pub(crate) nonce: String,
    /// The standby's id.
    pub(crate) by: String,
    /// The tenants, with the generations in which the owner holds them.
    pub(crate) held: Vec<Held>,
}

/// Whether a claim is justified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    nonce: String,
    /// The owner was there, and goes on.
    is_alive: bool,
}

/// The objects of one server's lease.
#[derive(Clone, Debug)]
pub(crate) struct Objects {
    storage: RemoteStorage,
    server: String,
}

fn nonce() -> String {
    format!("{:016x}", env::random::u64())
}

fn encoded(content: &impl Serialize) -> Result<Bytes, StorageError> {
    serde_json::to_vec(content).map(Bytes::from).map_err(|error| StorageError::Internal(error.to_string()))
}

impl Objects {
    pub(crate) fn new(storage: &RemoteStorage, server: &str) -> Self {
        Self { storage: storage.clone(), server: server.to_owned() }
    }

    async fn get<T: DeserializeOwned>(&self, path: &RemotePath) -> Result<Option<T>, StorageError> {
        let bytes = match self.storage.get(RequestClass::Control, path, MAX_LEN).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Gone => return Ok(None),
            Err(error) => return Err(error),
        };
        let decoded = serde_json::from_slice(&bytes);
        decoded.map(Some).map_err(|error| {
            let name = self.storage.name_of(path);
            StorageError::Invalid(format!("{name}: this belongs to no lease: {error}. Remove it"))
        })
    }

    /// The lease, if there is one.
    pub(crate) async fn read(&self) -> Result<Option<Renewal>, StorageError> {
        self.get(&RemotePath::lease(&self.server)).await
    }

    /// Renews the lease.
    pub(crate) async fn write(&self, renewal: &Renewal) -> Result<(), StorageError> {
        self.storage.sign(RequestClass::Control, &RemotePath::lease(&self.server), encoded(renewal)?).await
    }

    /// Ends the lease.
    pub(crate) async fn remove(&self) -> Result<(), StorageError> {
        self.storage.delete(&[RemotePath::lease(&self.server)]).await
    }

    /// Asks for a lease.
    pub(crate) async fn want(&self) -> Result<(), StorageError> {
        let path = RemotePath::lease_wanted(&self.server);
        self.storage.sign(RequestClass::Control, &path, Bytes::from_static(b"{}")).await
    }

    /// Whether a lease is asked for.
    pub(crate) async fn is_wanted(&self) -> Result<bool, StorageError> {
        let path = RemotePath::lease_wanted(&self.server);
        Ok(self.storage.head(RequestClass::Control, &path).await?.is_some())
    }

    /// Whoever wants a lease has to ask again.
    pub(crate) async fn forget_wanted(&self) -> Result<(), StorageError> {
        self.storage.delete(&[RemotePath::lease_wanted(&self.server)]).await
    }

    /// How many claims there are.
    pub(crate) async fn claims(&self) -> Result<u32, StorageError> {
        let listed = self.storage.list(RequestClass::Control, &RemotePath::claims(&self.server)).await?;
        let number = |path: &RemotePath| u32::from_str_radix(path.file_name(), 16).ok();
        let mut last = listed.iter().filter_map(|object| number(&object.path)).max().unwrap_or(0);
        // The list may lag, and there are no gaps.
        while self.storage.head(RequestClass::Control, &RemotePath::claim(&self.server, last + 1)).await?.is_some() {
            last += 1;
        }
        Ok(last)
    }

    /// The claim of this number, if there is one yet.
    pub(crate) async fn claim(&self, number: u32) -> Result<Option<Claim>, StorageError> {
        self.get(&RemotePath::claim(&self.server, number)).await
    }

    /// Makes the next claim, and returns its number.
    pub(crate) async fn make_claim(&self, by: &str, held: Vec<Held>) -> Result<u32, StorageError> {
        let mut number = self.claims().await? + 1;
        let claim = encoded(&Claim { nonce: nonce(), by: by.to_owned(), held })?;
        loop {
            let path = RemotePath::claim(&self.server, number);
            match self.storage.create(RequestClass::Control, &path, claim.clone()).await? {
                Creation::New => return Ok(number),
                Creation::Existed => number += 1,
            }
        }
    }

    /// Answers a claim, unless somebody was faster. Returns what counts: whether the owner is there.
    pub(crate) async fn answer(&self, number: u32, is_alive: bool) -> Result<bool, StorageError> {
        let path = RemotePath::answer(&self.server, number);
        let own = encoded(&Answer { nonce: nonce(), is_alive })?;
        if self.storage.create(RequestClass::Control, &path, own).await? == Creation::New {
            return Ok(is_alive);
        }
        let first: Option<Answer> = self.get(&path).await?;
        let gone = || StorageError::Invalid(format!("{} was removed", self.storage.name_of(&path)));
        first.map(|answer| answer.is_alive).ok_or_else(gone)
    }
}
