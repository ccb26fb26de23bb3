//! Errors by what the caller must do about them.
#![forbid(unsafe_code)]

use std::io;
use std::time::Duration;

use camino::Utf8PathBuf;
use pageserver_api::key::Key;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;
use utils::lsn::Lsn;

/// What a caller should do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Nothing is lost: make room or wait, then try again.
    Retry,
    /// Stored bytes are damaged: fetch another copy.
    Corrupt,
    /// The request cannot be served as it stands.
    Invalid,
    /// The data asked for is not there (any more).
    Gone,
    /// Another server has taken the tenant over: nothing more may be written to the bucket.
    Fenced,
    /// The owner is shutting down.
    Shutdown,
    /// A bug, or a device that no longer works.
    Internal,
}

/// What is the matter with object storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteFailure {
    /// There is no such object.
    NotFound,
    /// The credentials are missing, have expired, or do not permit this. Somebody must see to it; trying again later
    /// loses nothing.
    Denied,
    /// The store does not answer, or not as it should just now.
    Unavailable,
    /// The answer is not what was asked for: other bytes, another length.
    Malformed,
}

/// Why the storage engine could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused. Retryable kinds (no space left, interrupted...) lose nothing.
    #[error("{operation} {path} at offset {offset}: {source}")]
    Io {
        /// What was being done: "read", "write", "fsync"...
        operation: &'static str,
        /// The file.
        path: Utf8PathBuf,
        /// Byte offset in the file, 0 where it makes no sense.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Stored bytes fail their checksum or make no sense.
    #[error("corrupt file {path} at offset {offset}: {reason}")]
    Corrupt {
        /// The file.
        path: Utf8PathBuf,
        /// Byte offset of the damaged block.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A key that must exist has no version at this LSN.
    #[error("key {key} has no version at or below LSN {lsn}")]
    MissingKey {
        /// The key.
        key: Key,
        /// The LSN asked for.
        lsn: Lsn,
    },
    /// WAL up to this LSN did not arrive in time.
    #[error(
        "timed out after {waited:?} waiting for WAL up to LSN {lsn} on timeline {timeline_id}, which has it up to \
         {last_record_lsn}"
    )]
    LsnTimeout {
        /// The LSN waited for.
        lsn: Lsn,
        /// What has arrived.
        last_record_lsn: Lsn,
        /// The timeline.
        timeline_id: TimelineId,
        /// How long.
        waited: Duration,
    },
    /// A page could not be rebuilt from its records.
    #[error("cannot rebuild page {key} at LSN {lsn}: {reason}")]
    Redo {
        /// The page's key.
        key: Key,
        /// The LSN asked for.
        lsn: Lsn,
        /// Which record failed and why.
        reason: String,
    },
    /// Object storage did not do what it was asked.
    #[error("{operation} {object}: {reason}")]
    Remote {
        /// What was being done: "get", "put", "list"...
        operation: &'static str,
        /// The object, with the store's URL.
        object: String,
        /// What went wrong, as far as it matters to callers.
        failure: RemoteFailure,
        /// What the store said.
        reason: String,
    },
    /// A newer generation of this tenant exists.
    #[error(
        "tenant {tenant_shard_id}: this server holds generation {generation}, but generation {newer} exists: another \
         server has taken the tenant over, and this one uploads and deletes nothing more"
    )]
    Fenced {
        /// The tenant shard.
        tenant_shard_id: TenantShardId,
        /// The generation that this server holds.
        generation: u32,
        /// One that was given out later.
        newer: u32,
    },
    /// Somebody has removed or overwritten generations of this tenant: nobody knows who owns it.
    #[error(
        "tenant {tenant_shard_id}: its chain of generations is damaged: {reason}. Nothing was changed. To take the \
         tenant over, and mend the chain, PUT {{\"mode\": \"AttachedSingle\"}} to its location_config at the server \
         that is to have it"
    )]
    DamagedChain {
        /// The tenant shard.
        tenant_shard_id: TenantShardId,
        /// What was found.
        reason: String,
    },
    /// The local disk has no room for more, and none can be made just now.
    #[error("{0}")]
    NoRoom(String),
    /// The request contradicts the state of the store.
    #[error("{0}")]
    Invalid(String),
    /// The owner is shutting down.
    #[error("shutting down")]
    Shutdown,
    /// Should not happen.
    #[error("internal error: {0}")]
    Internal(String),
}

impl StorageError {
    /// Whether the file system had no room.
    pub fn is_disk_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, StorageError::Io { source, .. } if full.contains(&source.kind()))
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            StorageError::Io { source, .. } => io_error_kind(source),
            StorageError::Corrupt { .. } | StorageError::DamagedChain { .. } => ErrorKind::Corrupt,
            StorageError::MissingKey { .. } => ErrorKind::Gone,
            StorageError::LsnTimeout { .. } | StorageError::NoRoom(_) => ErrorKind::Retry,
            StorageError::Redo { .. } => ErrorKind::Corrupt,
            StorageError::Remote { failure, .. } => match failure {
                RemoteFailure::NotFound => ErrorKind::Gone,
                RemoteFailure::Malformed => ErrorKind::Corrupt,
                RemoteFailure::Denied | RemoteFailure::Unavailable => ErrorKind::Retry,
            },
            StorageError::Fenced { .. } => ErrorKind::Fenced,
            StorageError::Invalid(_) => ErrorKind::Invalid,
            StorageError::Shutdown => ErrorKind::Shutdown,
            StorageError::Internal(_) => ErrorKind::Internal,
        }
    }
}

fn io_error_kind(error: &io::Error) -> ErrorKind {
    match error.raw_os_error() {
        Some(libc::EIO | libc::EROFS | libc::EACCES | libc::EBADF) => ErrorKind::Internal,
        _ if error.kind() == io::ErrorKind::NotFound => ErrorKind::Gone,
        _ => ErrorKind::Retry,
    }
}
