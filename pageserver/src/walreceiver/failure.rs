//! Why a session ended, and what follows from that.

use pq_proto::client::ClientError;
use pq_proto::sqlstate::SqlState;
use wal_decoder::stream::WalError;

use errors::{ErrorKind, StorageError};
use pgdata::ingest::IngestError;
use pgdata::ingest::pipeline::IntakeError;

/// What to do after a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Come back soon.
    Retry,
    /// Somebody must do something: look again now and then.
    Wait,
    /// The timeline takes no more.
    Stop,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Connection or server.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// It will not get better by itself.
    #[error("{0}")]
    Wrong(String),
    /// It may get better by itself.
    #[error("{0}")]
    Transient(String),
    /// The bytes are no WAL that continues what is stored.
    #[error(
        "the server's WAL cannot be read on: {0}. If the server was put back to an earlier state, its history is no \
         longer the one stored here: attach it anew"
    )]
    Wal(#[from] WalError),
    /// A record could not be taken in.
    #[error("{0}")]
    Ingest(#[from] IngestError),
    /// The store.
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
    /// The needed WAL is gone from the server.
    pub(super) fn is_wal_removed(&self) -> bool {
        self.sqlstate() == Some(SqlState::UNDEFINED_FILE)
    }

    /// The server's code, if it is the server that reports the error.
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
