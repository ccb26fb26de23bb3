//! How errors are reported to the client.

use std::io;

use pq_proto::backend::ErrorFields;
use pq_proto::error::{ProtocolError, ReadError};
use pq_proto::server::ConnectionError;
use pq_proto::sqlstate::SqlState;

use crate::auth::AuthError;
use engine::tenant::manager::ManageError;
use errors::{ErrorKind, StorageError};

/// Why a command failed.
#[derive(Debug)]
pub(super) enum CommandError {
    /// Reported to the client; the connection continues.
    Failed(ErrorFields),
    /// Reported to the client; the connection ends.
    Closing(ErrorFields),
    /// Cannot be reported to the client.
    Connection(ConnectionError),
}

impl CommandError {
    /// An error without a specific code.
    pub(super) fn failed(message: impl Into<String>) -> Self {
        CommandError::Failed(ErrorFields::new(SqlState::INTERNAL_ERROR, message))
    }

    /// The server or the timeline is shutting down: the client may retry.
    pub(super) fn shutdown() -> Self {
        CommandError::Closing(ErrorFields::new(SqlState::ADMIN_SHUTDOWN, "shutdown"))
    }

    /// The client violated the protocol.
    pub(super) fn protocol(error: impl std::fmt::Display) -> Self {
        CommandError::Closing(ErrorFields::new(SqlState::PROTOCOL_VIOLATION, error.to_string()))
    }
}

impl From<ConnectionError> for CommandError {
    fn from(error: ConnectionError) -> Self {
        CommandError::Connection(error)
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        CommandError::Connection(error.into())
    }
}

impl From<ProtocolError> for CommandError {
    fn from(error: ProtocolError) -> Self {
        CommandError::protocol(error)
    }
}

impl From<ReadError> for CommandError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => error.into(),
            ReadError::Protocol(error) => error.into(),
        }
    }
}

impl From<AuthError> for CommandError {
    fn from(error: AuthError) -> Self {
        CommandError::failed(error.to_string())
    }
}

impl From<StorageError> for CommandError {
    fn from(error: StorageError) -> Self {
        if error.kind() == ErrorKind::Shutdown { CommandError::shutdown() } else { Self::failed(error.to_string()) }
    }
}

impl From<ManageError> for CommandError {
    fn from(error: ManageError) -> Self {
        match error {
            ManageError::Storage(error) => error.into(),
            other => CommandError::failed(other.to_string()),
        }
    }
}
