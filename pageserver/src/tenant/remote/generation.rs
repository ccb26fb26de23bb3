//! The chain of a tenant's generations: objects `1`, `2`, `3`... without a gap, each made by one owner alone.
//!
//! None is ever removed. So the newest is the one without a next, however old the list is that the search begins with.

use pageserver_api::shard::TenantShardId;
use serde::{Deserialize, Serialize};

use crate::errors::{RemoteFailure, StorageError};
use crate::remote_storage::{Creation, RemotePath, RemoteStorage, RequestClass};

/// Others that may get ahead of us one after the other, or that a list may be behind by.
const MAX_STEPS: u32 = 100_000;
/// Contents are far smaller than this, in bytes.
const MAX_LEN: u64 = 4096;

/// What a generation is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To serve what there is.
    Attach,
    /// To serve, and if the tenant was deleted to begin anew.
    Create,
}

/// What came of taking one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is ours.
    Mine {
        /// There was none before.
        first: bool,
    },
    /// The tenant was deleted.
    Deleted,
}

/// What an object of the chain says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Unlike that of any other.
    owner: String,
    /// Seconds since 1970, for people.
    created: u64,
    /// The tenant was deleted.
    pub(super) deleted: bool,
    /// Index parts up to this generation are of an earlier tenant of this name, which was deleted.
    void_through: u32,
}

impl Record {
    fn new(deleted: bool, void_through: u32) -> Self {
        let created = env::clock::system_now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { owner: format!("{:016x}", env::random::u64()), created, deleted, void_through }
    }

    fn encode(&self) -> Result<bytes::Bytes, StorageError> {
        let bytes = serde_json::to_vec(self).map_err(|error| StorageError::Internal(error.to_string()))?;
        Ok(bytes.into())
    }
}

/// The generation after this one.
pub(super) fn after(generation: u32) -> Result<u32, StorageError> {
    generation.checked_add(1).ok_or_else(|| StorageError::Invalid("there are no more generations".to_owned()))
}

/// Takes the next generation. Returns it, and up to which one index parts are void. Of a deleted tenant, unless it is
/// to be created, nothing is taken and the generation is the one that says so.
pub(super) async fn take(
    storage: &RemoteStorage,
    tenant: TenantShardId,
    purpose: Purpose,
) -> Result<(Taken, u32, u32), StorageError> {
    let mut newest = newest_listed(storage, tenant).await?;
    for _ in 0..MAX_STEPS {
        let record = if newest == 0 { Record::default() } else { read(storage, tenant, newest).await? };
        if record.deleted && purpose == Purpose::Attach {
            return Ok((Taken::Deleted, newest, newest));
        }
        let void_through = if record.deleted { newest } else { record.void_through };
        let next = after(newest)?;
        match make(storage, tenant, next, &Record::new(false, void_through)).await? {
            Creation::New => return Ok((Taken::Mine { first: newest == void_through }, next, void_through)),
            Creation::Existed => newest = next,
        }
    }
    Err(StorageError::Invalid(format!("tenant {tenant}: others take one generation after the other")))
}

/// Makes `generation` the one that says that the tenant was deleted. False if another one has it.
pub(super) async fn end(storage: &RemoteStorage, tenant: TenantShardId, generation: u32) -> Result<bool, StorageError> {
    match make(storage, tenant, generation, &Record::new(true, generation)).await? {
        Creation::New => Ok(true),
        Creation::Existed => Ok(read(storage, tenant, generation).await?.deleted),
    }
}

async fn make(
    storage: &RemoteStorage,
    tenant: TenantShardId,
    generation: u32,
    record: &Record,
) -> Result<Creation, StorageError> {
    let path = RemotePath::generation(&tenant, generation);
    storage.create(RequestClass::Control, &path, record.encode()?).await
}

async fn read(storage: &RemoteStorage, tenant: TenantShardId, generation: u32) -> Result<Record, StorageError> {
    let path = RemotePath::generation(&tenant, generation);
    let bytes = storage.get(RequestClass::Control, &path, MAX_LEN).await?;
    serde_json::from_slice(&bytes).map_err(|error| StorageError::Remote {
        operation: "read",
        object: storage.name_of(&path),
        failure: RemoteFailure::Malformed,
        reason: format!("this is no generation: {error}"),
    })
}

/// The newest that a list knows of, 0 if none.
async fn newest_listed(storage: &RemoteStorage, tenant: TenantShardId) -> Result<u32, StorageError> {
    let listed = storage.list(RequestClass::Control, &RemotePath::generations(&tenant)).await?;
    let numbers = listed.iter().filter_map(|object| parse(object.path.file_name()));
    Ok(numbers.max().unwrap_or(0))
}

/// A generation as names have it: 8 hexadecimal digits.
pub(super) fn parse(digits: &str) -> Option<u32> {
    let well_formed = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    well_formed.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}
