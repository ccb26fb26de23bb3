//! The chain of a tenant's generations: objects `1`, `2`, `3`... without a gap, each created by exactly one owner.
//!
//! None is ever removed, so the newest is the one without a successor, however stale the listing at which the search
//! starts. If somebody else removes or overwrites one, this is detected, and no server continues from there without
//! an explicit takeover: see [`mend`].

mod mend;

use pageserver_api::shard::TenantShardId;
use serde::{Deserialize, Serialize};

use crate::config::ServerIdentity;
use errors::{ErrorKind, StorageError};
pub(crate) use mend::{mend, trace};
use remote_storage::{Creation, RemotePath, RemoteStorage, RequestClass};

/// Maximum number of generations by which others may get ahead of us, or by which a listing may lag.
const MAX_STEPS: u32 = 100_000;
/// Upper bound of an object's size in bytes; real contents are far smaller.
pub(crate) const MAX_LEN: u64 = 4096;

/// The purpose of taking a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To serve an existing tenant whose last owner was this server, or is not known.
    GoOn,
    /// To serve an existing tenant.
    Attach,
    /// To serve a tenant; if it was deleted, to create it anew.
    Create,
    /// To serve a tenant whose owner, which holds this generation, has not renewed its lease.
    Succeed(u32),
}

/// The result of taking a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is this server's.
    Mine,
    /// The tenant was deleted.
    Deleted,
    /// The tenant belongs to another server.
    Foreign(Holder),
}

/// The server that took a generation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    /// Its id.
    pub(crate) server: String,
    /// The name of its machine.
    pub(crate) host: String,
}

/// The contents of an object of the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// A random value that distinguishes it from all others.
    owner: String,
    /// Seconds since 1970, for humans.
    created: u64,
    /// The tenant was deleted.
    pub(super) deleted: bool,
    /// Index parts up to this generation belong to an earlier, deleted tenant of this name.
    void_through: u32,
    /// The id of the server that created it; empty if unknown, as with earlier versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    server: String,
    /// The name of its machine, for humans.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    host: String,
}

impl Record {
    fn new(deleted: bool, void_through: u32) -> Self {
        let created = env::clock::system_now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
        let (server, host) = Default::default();
        Self { owner: format!("{:016x}", env::random::u64()), created, deleted, void_through, server, host }
    }

    fn of(self, server: &ServerIdentity) -> Self {
        Self { server: server.id.clone(), host: server.host.clone(), ..self }
    }

    /// The record of a generation that nobody holds, because the chain before it is damaged. It counts as damage too,
    /// so that nobody continues from it without an explicit takeover.
    fn refused() -> Self {
        Self { owner: String::new(), ..Self::new(false, 0) }
    }

    fn encode(&self) -> Result<bytes::Bytes, StorageError> {
        let bytes = serde_json::to_vec(self).map_err(|error| StorageError::Internal(error.to_string()))?;
        Ok(bytes.into())
    }

    /// The generation up to which index parts do not count for owners after generation `number`, which has this
    /// record.
    fn void_after(&self, number: u32) -> u32 {
        if self.deleted { number } else { self.void_through }
    }
}

/// The id of the server that took the generation with this content; empty if unknown.
pub(crate) fn server_of(bytes: &[u8]) -> String {
    decode(bytes).map_or_else(|_| String::new(), |record| record.server)
}

/// Why these bytes are not a generation, if so.
pub(crate) fn defect(bytes: &[u8]) -> Option<String> {
    decode(bytes).err()
}

fn decode(bytes: &[u8]) -> Result<Record, String> {
    match serde_json::from_slice::<Record>(bytes) {
        Ok(record) if record.owner.is_empty() => {
            Err("nobody holds it, since the chain before it is damaged".to_owned())
        }
        Ok(record) => Ok(record),
        Err(error) => Err(format!("this is no generation: {error}")),
    }
}

/// The generation after this one.
pub(super) fn after(generation: u32) -> Result<u32, StorageError> {
    generation.checked_add(1).ok_or_else(|| StorageError::Invalid("there are no more generations".to_owned()))
}

/// Takes the next generation. Returns it, and the generation up to which index parts are void. If the tenant was
/// deleted (unless it is to be created) or belongs to another server, nothing is taken and the returned generation is
/// the one that records this.
pub(super) async fn take(
    storage: &RemoteStorage,
    tenant: TenantShardId,
    purpose: Purpose,
    server: &ServerIdentity,
) -> Result<(Taken, u32, u32), StorageError> {
    let mut newest = match purpose {
        Purpose::Succeed(generation) => generation,
        _ => newest_listed(storage, tenant).await?,
    };
    for _ in 0..MAX_STEPS {
        let record = if newest == 0 { Record::default() } else { read(storage, tenant, newest).await? };
        if record.deleted && purpose != Purpose::Create {
            return Ok((Taken::Deleted, newest, newest));
        }
        let is_foreign = match purpose {
            Purpose::GoOn => !record.server.is_empty() && !server.is(&record.server),
            // Somebody was faster, even if it was the owner itself.
            Purpose::Succeed(generation) => newest != generation,
            Purpose::Attach | Purpose::Create => false,
        };
        if is_foreign {
            let holder = Holder { server: record.server, host: record.host };
            return Ok((Taken::Foreign(holder), newest, newest));
        }
        let void_through = record.void_after(newest);
        let next = after(newest)?;
        if void_through >= next {
            let reason =
                format!("generation {newest} says that all up to {void_through} is void, which are yet to come");
            return Err(StorageError::DamagedChain { tenant_shard_id: tenant, reason });
        }
        match make(storage, tenant, next, &Record::new(false, void_through).of(server)).await? {
            Creation::Existed if !fault::planted(fault::Bug::TakeTakenGeneration) => newest = next,
            Creation::New | Creation::Existed => return Ok((Taken::Mine, next, void_through)),
        }
    }
    Err(StorageError::Invalid(format!("tenant {tenant}: others take one generation after the other")))
}

/// The newest generation of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Newest {
    /// Its number.
    pub(crate) generation: u32,
    /// Who took it.
    pub(crate) holder: Holder,
    /// It says that the tenant was deleted.
    pub(crate) is_deleted: bool,
    /// Index parts up to this generation do not count for its owner.
    pub(crate) void_through: u32,
}

/// The newest generation of a tenant, if it has any; none is taken. `known` is one that exists, or 0.
pub(crate) async fn newest(
    storage: &RemoteStorage,
    tenant: TenantShardId,
    known: u32,
) -> Result<Option<Newest>, StorageError> {
    let mut newest = if known == 0 { newest_listed(storage, tenant).await? } else { known };
    while storage.head(RequestClass::Control, &RemotePath::generation(&tenant, after(newest)?)).await?.is_some() {
        newest += 1;
    }
    if newest == 0 {
        return Ok(None);
    }
    let record = read(storage, tenant, newest).await?;
    let void_through = record.void_after(newest);
    let Record { server, host, deleted, .. } = record;
    Ok(Some(Newest { generation: newest, holder: Holder { server, host }, is_deleted: deleted, void_through }))
}

/// Creates `generation` as the one that marks the tenant as deleted. Returns false if another server has it.
pub(super) async fn end(
    storage: &RemoteStorage,
    tenant: TenantShardId,
    generation: u32,
    server: &ServerIdentity,
) -> Result<bool, StorageError> {
    match make(storage, tenant, generation, &Record::new(true, generation).of(server)).await? {
        Creation::New => Ok(true),
        Creation::Existed => Ok(read(storage, tenant, generation).await?.deleted),
    }
}

/// Gives back `generation`, which this server holds but will not use, because the chain before it is damaged.
pub(super) async fn refuse(
    storage: &RemoteStorage,
    tenant: TenantShardId,
    generation: u32,
) -> Result<(), StorageError> {
    let path = RemotePath::generation(&tenant, generation);
    storage.put(RequestClass::Control, &path, Record::refused().encode()?).await
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
    let damaged = |reason: String| {
        let reason = format!("{}: {reason}", storage.name_of(&path));
        StorageError::DamagedChain { tenant_shard_id: tenant, reason }
    };
    match storage.get(RequestClass::Control, &path, MAX_LEN).await {
        Ok(bytes) => decode(&bytes).map_err(damaged),
        // It existed, or a listing named it, and none is ever removed.
        Err(error) if error.kind() == ErrorKind::Gone => Err(damaged("it was removed".to_owned())),
        Err(error) => Err(error),
    }
}

/// The listed generations.
async fn listed(storage: &RemoteStorage, tenant: TenantShardId) -> Result<Vec<u32>, StorageError> {
    let listed = storage.list(RequestClass::Control, &RemotePath::generations(&tenant)).await?;
    Ok(listed.iter().filter_map(|object| parse(object.path.file_name())).collect())
}

/// The newest listed generation; 0 if none.
async fn newest_listed(storage: &RemoteStorage, tenant: TenantShardId) -> Result<u32, StorageError> {
    Ok(listed(storage, tenant).await?.into_iter().max().unwrap_or(0))
}

/// Parses a generation as it appears in names: 8 hexadecimal digits.
pub(crate) fn parse(digits: &str) -> Option<u32> {
    let well_formed = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    well_formed.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}
