//! Why a session ended, and what to do about it.

use std::time::Duration;

use pq_proto::client::ClientError;
use pq_proto::sqlstate::SqlState;
use wal_decoder::stream::WalError;

use errors::{ErrorKind, StorageError};
use pgdata::ingest::IngestError;
use pgdata::ingest::pipeline::IntakeError;

/// A server that says nothing for this long is considered dead.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Retry interval for errors that need human intervention.
pub(super) const WRONG_PERIOD: Duration = Duration::from_secs(60);

/// What a server is asked for, unless it says nothing for too long: one whose host is gone, or cut off, never says that
/// it will not answer.
pub(super) async fn in_time<T, E: Into<Failure>>(
    what: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    if fault::planted(fault::Bug::WaitForEver) {
        return work.await.map_err(Into::into);
    }
    match env::clock::timeout(SILENCE_MAX, work).await {
        Ok(done) => done.map_err(Into::into),
        Err(_) => Err(ClientError::Timeout(what).into()),
    }
}

/// How to proceed after a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Retry soon.
    Retry,
    /// Someone must intervene: retry now and then.
    Wait,
    /// The timeline takes no more WAL.
    Stop,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// An error of the connection or the server.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// An error that will not go away by itself.
    #[error("{0}")]
    Wrong(String),
    /// An error that may go away by itself.
    #[error("{0}")]
    Transient(String),
    /// The bytes are not WAL that continues what is stored.
    #[error(
        "the server's WAL cannot be read on: {0}. If the server was put back to an earlier state, its history is no \
         longer the one stored here: follow it anew"
    )]
    Wal(#[from] WalError),
    /// A record could not be ingested.
    #[error("{0}")]
    Ingest(#[from] IngestError),
    /// An error of the store.
    #[error("{0}")]
    Storage(#[from] StorageError),
}

impl From<IntakeError> for Failure {
    fn from(error: IntakeError) -> Self {
        match error {
            IntakeError::Wal(error) => Self::Wal(error),
            IntakeError::Ingest { source, .. } => Self::Ingest(source),
            IntakeError::BrokeOff(_) => Self::Storage(StorageError::Internal(error.to_string())),
        }
    }
}

impl Failure {
    /// Whether the server has removed WAL that is still needed.
    pub(super) fn is_wal_removed(&self) -> bool {
        self.sqlstate() == Some(SqlState::UNDEFINED_FILE)
    }

    /// The server's error code, if the server reported the error.
    pub(super) fn sqlstate(&self) -> Option<SqlState> {
        match self {
            Self::Client(error) => error.sqlstate(),
            _ => None,
        }
    }

    pub(super) fn remedy(&self) -> Remedy {
        match self {
            Self::Client(ClientError::Config(_) | ClientError::Unsupported(_)) | Self::Wrong(_) => Remedy::Wait,
            Self::Client(_) | Self::Transient(_) | Self::Wal(_) => Remedy::Retry,
            Self::Ingest(IngestError::Storage(error)) | Self::Storage(error) => of_storage(error),
            Self::Ingest(_) => Remedy::Wait,
        }
    }
}

fn of_storage(error: &StorageError) -> Remedy {
    match error.kind() {
        ErrorKind::Retry => Remedy::Retry,
        ErrorKind::Shutdown | ErrorKind::Fenced | ErrorKind::Internal => Remedy::Stop,
        ErrorKind::Corrupt | ErrorKind::Invalid | ErrorKind::Gone => Remedy::Wait,
    }
}
