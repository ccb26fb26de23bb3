//! The first bytes of a client: requests for encryption, then a startup packet or a cancel request.

use std::io;

use bytes::Bytes;
use pq_proto::error::ProtocolError;
use pq_proto::frontend::{StartupPacket, StartupParameters, startup_len};
use pq_proto::stream::BoxStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// First byte of a TLS handshake: clients may begin with it (`sslnegotiation=direct`).
const TLS_HANDSHAKE: u8 = 0x16;
/// Requests for encryption before the startup packet: one of each kind.
const NEGOTIATIONS_MAX: usize = 2;
/// Length and code of a startup packet.
const LENGTH: usize = 4;
const CODE: usize = 4;

/// What a client begins with.
pub(crate) enum Hello {
    /// It wants another connection's command to end. The key names that connection.
    Cancel(Bytes),
    /// It starts a session.
    Start(Start),
}

/// The start of a session.
pub(crate) struct Start {
    pub(crate) stream: BoxStream,
    pub(crate) startup: StartupParameters,
    pub(crate) is_encrypted: bool,
    /// The name by which the client knows the server, if it uses TLS.
    pub(crate) server_name: Option<String>,
}

/// Why there was no session.
#[derive(Debug)]
pub(crate) enum HelloError {
    Io(io::Error),
    Protocol(ProtocolError),
}

impl From<io::Error> for HelloError {
    fn from(error: io::Error) -> Self {
        HelloError::Io(error)
    }
}

impl From<ProtocolError> for HelloError {
    fn from(error: ProtocolError) -> Self {
        HelloError::Protocol(error)
    }
}

impl std::fmt::Display for HelloError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HelloError::Io(error) => error.fmt(f),
            HelloError::Protocol(error) => error.fmt(f),
        }
    }
}

/// A stream, encrypted or not as yet.
struct Line {
    stream: BoxStream,
    is_encrypted: bool,
    server_name: Option<String>,
}

impl Line {
    async fn encrypt(self, tls: &TlsAcceptor) -> io::Result<Self> {
        let stream = tls.accept(self.stream).await?;
        let server_name = stream.get_ref().1.server_name().map(str::to_owned);
        Ok(Self { stream: Box::new(stream), is_encrypted: true, server_name })
    }
}

/// Hears out a client that has just connected.
pub(crate) async fn hear(client: TcpStream, tls: Option<&TlsAcceptor>) -> Result<Hello, HelloError> {
    let mut first = [0];
    let is_tls = client.peek(&mut first).await? == 1 && first == [TLS_HANDSHAKE];
    let mut line = Line { stream: Box::new(client), is_encrypted: false, server_name: None };
    if let Some(tls) = tls.filter(|_| is_tls) {
        line = line.encrypt(tls).await?;
    }
    for _ in 0..=NEGOTIATIONS_MAX {
        // No byte more than the packet is read: what follows a request for TLS before its answer is taken for a part
        // of the handshake, and makes it fail.
        let body = packet(&mut line.stream).await?;
        match (StartupPacket::decode(body.clone())?, tls) {
            (StartupPacket::Ssl, Some(tls)) if !line.is_encrypted => {
                line.stream.write_all(b"S").await?;
                line = line.encrypt(tls).await?;
            }
            (StartupPacket::Ssl | StartupPacket::GssEnc, _) => {
                line.stream.write_all(b"N").await?;
                line.stream.flush().await?;
            }
            (StartupPacket::Cancel, _) => return Ok(Hello::Cancel(body.slice(CODE.min(body.len())..))),
            (StartupPacket::Startup(startup), _) => {
                let Line { stream, is_encrypted, server_name } = line;
                return Ok(Hello::Start(Start { stream, startup, is_encrypted, server_name }));
            }
        }
    }
    Err(ProtocolError::Malformed("startup: too many requests before it").into())
}

/// Everything of a startup packet after its length.
async fn packet(stream: &mut BoxStream) -> Result<Bytes, HelloError> {
    let mut field = [0; LENGTH];
    stream.read_exact(&mut field).await?;
    let mut body = vec![0; startup_len(field)? - LENGTH];
    stream.read_exact(&mut body).await?;
    Ok(body.into())
}
