//! Errors, classified by what the caller must do about them.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

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
    /// Nothing is lost: make room or wait, then retry.
    Retry,
    /// Stored bytes are damaged: fetch another copy.
    Corrupt,
    /// The request cannot be served as it stands.
    Invalid,
    /// The requested data is not there (anymore).
    Gone,
    /// Another server has taken over the tenant: this one must not write to the bucket anymore.
    Fenced,
    /// The owner is shutting down.
    Shutdown,
    /// A bug, or a device that no longer works.
    Internal,
}

/// Kinds of bucket failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteFailure {
    /// There is no such object.
    NotFound,
    /// The credentials are missing, have expired, or do not permit this. An operator must fix this; retrying later
    /// loses nothing.
    Denied,
    /// The bucket does not answer, or answers with a temporary error.
    Unavailable,
    /// The answer does not match the request: other bytes, another length.
    Malformed,
}

/// Why the storage engine could not perform an operation.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system refused. Retryable kinds (no space left, interrupted...) lose nothing.
    #[error("{operation} {path} at offset {offset}: {source}")]
    Io {
        /// The operation: "read", "write", "fsync"...
        operation: &'static str,
        /// The file.
        path: Utf8PathBuf,
        /// Byte offset in the file; 0 where it has no meaning.
        offset: u64,
        /// The operating system's error.
        source: io::Error,
    },
    /// Stored bytes fail their checksum or are invalid.
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
        /// The requested LSN.
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
        /// The end of the WAL that has arrived.
        last_record_lsn: Lsn,
        /// The timeline.
        timeline_id: TimelineId,
        /// How long the caller waited.
        waited: Duration,
    },
    /// A page could not be rebuilt from its records.
    #[error("cannot rebuild page {key} at LSN {lsn}: {reason}")]
    Redo {
        /// The page's key.
        key: Key,
        /// The requested LSN.
        lsn: Lsn,
        /// Which record failed and why.
        reason: String,
    },
    /// The bucket did not perform an operation.
    #[error("{operation} {object}: {reason}")]
    Remote {
        /// The operation: "get", "put", "list"...
        operation: &'static str,
        /// The object, with the bucket's URL.
        object: String,
        /// The kind of failure, as far as it matters to callers.
        failure: RemoteFailure,
        /// The bucket's message.
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
        /// A generation that was handed out later.
        newer: u32,
    },
    /// The server's lease has ended: another one may have taken the tenant over.
    #[error(
        "tenant {tenant_shard_id}: this server may be not the owner any more: {reason}. Until that is known nothing is \
         acknowledged, and nothing served but what the bucket had before"
    )]
    Unleased {
        /// The tenant shard.
        tenant_shard_id: TenantShardId,
        /// Why the lease does not hold.
        reason: String,
    },
    /// Generations of this tenant were removed or overwritten: its owner is unknown.
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
    /// The local disk has no room for more, and none can be made right now.
    #[error("{0}")]
    NoRoom(String),
    /// The request contradicts the state of the server.
    #[error("{0}")]
    Invalid(String),
    /// The owner is shutting down.
    #[error("shutting down")]
    Shutdown,
    /// Must not happen.
    #[error("internal error: {0}")]
    Internal(String),
}

impl StorageError {
    /// Whether the file system was full.
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
            StorageError::LsnTimeout { .. } | StorageError::NoRoom(_) | StorageError::Unleased { .. } => {
                ErrorKind::Retry
            }
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
