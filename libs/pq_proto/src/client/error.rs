//! Why a client did not get what it asked for. No password is ever part of it.

use std::io;

use crate::backend::ErrorFields;
use crate::error::{ProtocolError, ReadError};
use crate::sqlstate::SqlState;

/// Why a client did not get what it asked for.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection string asks for something impossible.
    #[error("invalid connection settings: {0}")]
    Config(String),
    /// No connection to this host.
    #[error("cannot connect to {host}: {source}")]
    Connect {
        /// Host and port, or the socket's path.
        host: String,
        /// What the system says.
        source: io::Error,
    },
    /// TLS could not be set up.
    #[error("cannot use TLS: {0}")]
    Tls(String),
    /// It took too long.
    #[error("timed out while {0}")]
    Timeout(&'static str),
    /// The server wants to be convinced in a way that is not possible.
    #[error("cannot authenticate: {0}")]
    Authentication(String),
    /// The connection failed.
    #[error("connection failed: {0}")]
    Io(io::Error),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The server said something that is no message, or not now.
    #[error("protocol violation: {0}")]
    Protocol(#[from] ProtocolError),
    /// The server is of a version that cannot do it.
    #[error("not supported by this server: {0}")]
    Unsupported(String),
    /// The server reports an error.
    #[error("{0}")]
    Server(ErrorFields),
}

impl ClientError {
    /// The server's code, if it is the server that reports the error.
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
