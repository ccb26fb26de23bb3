//! Errors of the client. They never contain a password.

use std::io;

use crate::backend::ErrorFields;
use crate::error::{ProtocolError, ReadError};
use crate::sqlstate::SqlState;

/// Why a client operation failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection string is invalid.
    #[error("invalid connection settings: {0}")]
    Config(String),
    /// The host could not be reached.
    #[error("cannot connect to {host}: {source}")]
    Connect {
        /// Host and port, or the socket's path.
        host: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// TLS could not be set up.
    #[error("cannot use TLS: {0}")]
    Tls(String),
    /// It took too long.
    #[error("timed out while {0}")]
    Timeout(&'static str),
    /// The server demands an authentication method that is not possible, or authentication failed.
    #[error("cannot authenticate: {0}")]
    Authentication(String),
    /// The connection failed.
    #[error("connection failed: {0}")]
    Io(io::Error),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The server sent an invalid message, or one that is not allowed now.
    #[error("protocol violation: {0}")]
    Protocol(#[from] ProtocolError),
    /// The server's version does not support the operation.
    #[error("not supported by this server: {0}")]
    Unsupported(String),
    /// The server reports an error.
    #[error("{0}")]
    Server(ErrorFields),
}

impl ClientError {
    /// The server's error code, if the server reported the error.
    pub fn sqlstate(&self) -> Option<SqlState> {
        match self {
            ClientError::Server(error) => Some(error.code),
            _ => None,
        }
    }
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        ClientError::Io(error)
    }
}

impl From<ReadError> for ClientError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => ClientError::Io(error),
            ReadError::Protocol(error) => ClientError::Protocol(error),
        }
    }
}
