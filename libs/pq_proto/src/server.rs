//! The server's side of a connection.
//!
//! [`Connection::accept`] does the handshake, [`Connection::next_query`] returns one command after the other, from
//! either protocol; the caller appends its answer to [`Connection::writer`] and ends it with [`Connection::complete`]
//! or [`Connection::fail`].

mod command;
mod handshake;
mod prepared;
mod query;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use tokio::io::{ReadHalf, WriteHalf};
use tokio_rustls::TlsAcceptor;

use crate::backend::ErrorFields;
use crate::error::{ProtocolError, ReadError};
use crate::framing::{MessageReader, MessageWriter};
use crate::frontend::StartupParameters;
use crate::stream::BoxStream;

pub use command::Query;

/// Reads what the client sends.
pub type ServerReader = MessageReader<ReadHalf<BoxStream>>;
/// Writes to the client.
pub type ServerWriter = MessageWriter<WriteHalf<BoxStream>>;

/// Maximum length of an authenticated client's message: commands are short, and COPY data are small requests.
const MAX_FRONTEND_MESSAGE: usize = 1 << 20;
/// Maximum length of a message before that: a password.
const MAX_PASSWORD_MESSAGE: usize = 16 * 1024;
/// How long a client may take to receive the last bytes sent to it.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

/// Decides which clients are admitted.
pub trait Authenticator: Sync {
    /// What is known about an admitted client.
    type Identity: Send;

    /// Whether clients have to send a password, in clear text.
    fn wants_password(&self) -> bool;

    /// Admits a client or refuses it; `password` is `None` if none is required.
    ///
    /// # Errors
    /// The error is sent to the client. It must not contain the password.
    fn authenticate(&self, password: Option<&str>) -> Result<Self::Identity, ErrorFields>;
}

/// Admits every client.
#[derive(Clone, Copy, Debug)]
pub struct Trust;

impl Authenticator for Trust {
    type Identity = ();

    fn wants_password(&self) -> bool {
        false
    }

    fn authenticate(&self, _: Option<&str>) -> Result<(), ErrorFields> {
        Ok(())
    }
}

/// Options for serving connections.
#[derive(Clone)]
pub struct ServerOptions {
    /// If set, TLS is offered, and clients without it are refused.
    pub tls: Option<TlsAcceptor>,
    /// Time limit from the first byte until the client is admitted.
    pub handshake_timeout: Duration,
    /// A client that sends nothing for this long is disconnected.
    pub idle_timeout: Duration,
    /// The text columns that a command returns, if any: clients of the extended protocol ask for them.
    pub describe: fn(&str) -> Option<&'static [&'static str]>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The connection failed.
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    /// The client sent an invalid message, or one that is not allowed now.
    #[error("protocol violation: {0}")]
    Protocol(#[from] ProtocolError),
    /// It took too long.
    #[error("timed out while {0}")]
    Timeout(&'static str),
    /// The client was not admitted.
    #[error("refused: {0}")]
    Refused(ErrorFields),
    /// TLS could not be set up.
    #[error("TLS handshake failed: {0}")]
    Tls(io::Error),
}

impl From<ReadError> for ConnectionError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => ConnectionError::Io(error),
            ReadError::Protocol(error) => ConnectionError::Protocol(error),
        }
    }
}

/// A connection with an admitted client.
pub struct Connection {
    reader: ServerReader,
    writer: ServerWriter,
    startup: StartupParameters,
    options: ServerOptions,
    extended: command::Extended,
}

impl Connection {
    /// The parameters of the client's startup packet.
    pub fn startup(&self) -> &StartupParameters {
        &self.startup
    }

    /// Answers are appended to it.
    pub fn writer(&mut self) -> &mut ServerWriter {
        &mut self.writer
    }

    /// Both directions at once, for a COPY.
    pub fn split(&mut self) -> (&mut ServerReader, &mut ServerWriter) {
        (&mut self.reader, &mut self.writer)
    }

    /// Sends what remains and closes the connection.
    pub async fn close(mut self) {
        // The client may be gone already, and one that does not read must not delay the server's shutdown.
        let _ = env::clock::timeout(FAREWELL_TIMEOUT, self.writer.shutdown()).await;
    }
}
