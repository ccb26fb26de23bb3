//! The server's side of a connection.
//!
//! [`Connection::accept`] does the handshake, [`Connection::next_query`] gives one command after the other, whichever
//! protocol it came by; who serves it appends its answer to [`Connection::writer`] and ends it with
//! [`Connection::complete`] or [`Connection::fail`].

mod command;
mod handshake;
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

/// Longest message that a client may send once it is let in: commands are short, and COPY data are small requests.
const MAX_FRONTEND_MESSAGE: usize = 1 << 20;
/// Longest message before that: a password.
const MAX_PASSWORD_MESSAGE: usize = 16 * 1024;
/// How long a client has to take the last that is sent to it.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

/// Decides who is let in.
pub trait Authenticator: Sync {
    /// What is known of a client that was let in.
    type Identity: Send;

    /// Whether clients have to send a password, in clear text.
    fn wants_password(&self) -> bool;

    /// Lets a client in or not; `password` is `None` when none is wanted.
    ///
    /// # Errors
    /// What the client is told. It must not contain the password.
    fn authenticate(&self, password: Option<&str>) -> Result<Self::Identity, ErrorFields>;
}

/// Everybody is let in.
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

/// How connections are served.
#[derive(Clone)]
pub struct ServerOptions {
    /// With it, TLS is offered, and clients without it are refused.
    pub tls: Option<TlsAcceptor>,
    /// From the first byte until the client is let in.
    pub handshake_timeout: Duration,
    /// A client that says nothing for so long is disconnected.
    pub idle_timeout: Duration,
    /// The columns of text that a command gives, if any: asked by clients of the extended protocol.
    pub describe: fn(&str) -> Option<&'static [&'static str]>,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The connection failed.
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    /// The client said something that is no message, or not now.
    #[error("protocol violation: {0}")]
    Protocol(#[from] ProtocolError),
    /// It took too long.
    #[error("timed out while {0}")]
    Timeout(&'static str),
    /// The client was not let in.
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

/// A client that was let in.
pub struct Connection {
    reader: ServerReader,
    writer: ServerWriter,
    startup: StartupParameters,
    options: ServerOptions,
    extended: command::Extended,
}

impl Connection {
    /// What the client said of itself.
    pub fn startup(&self) -> &StartupParameters {
        &self.startup
    }

    /// Where answers go.
    pub fn writer(&mut self) -> &mut ServerWriter {
        &mut self.writer
    }

    /// Both directions at once, during a COPY.
    pub fn split(&mut self) -> (&mut ServerReader, &mut ServerWriter) {
        (&mut self.reader, &mut self.writer)
    }

    /// Sends what is left and closes the connection.
    pub async fn close(mut self) {
        // A client that is gone already does not mind, and one that does not read must not hold up a server that ends.
        let _ = env::clock::timeout(FAREWELL_TIMEOUT, self.writer.shutdown()).await;
    }
}
