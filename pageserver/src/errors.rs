//! Errors by what the caller must do about them.

use std::io;
use std::time::Duration;

use camino::Utf8PathBuf;
use pageserver_api::key::Key;
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
    /// The owner is shutting down.
    Shutdown,
    /// A bug, or a device that no longer works.
    Internal,
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
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            StorageError::Io { source, .. } => io_error_kind(source),
            StorageError::Corrupt { .. } => ErrorKind::Corrupt,
            StorageError::MissingKey { .. } => ErrorKind::Gone,
            StorageError::LsnTimeout { .. } => ErrorKind::Retry,
            StorageError::Redo { .. } => ErrorKind::Corrupt,
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
