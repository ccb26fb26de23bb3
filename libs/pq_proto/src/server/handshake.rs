//! The handshake: from the first byte of a connection until the client is admitted.

use bytes::Bytes;

use super::command::Extended;
use super::{Authenticator, Connection, ConnectionError, MAX_FRONTEND_MESSAGE, MAX_PASSWORD_MESSAGE, ServerOptions};
use crate::backend::{ErrorFields, put};
use crate::error::ProtocolError;
use crate::framing::{MessageReader, MessageWriter};
use crate::frontend::{FrontendMessage, StartupPacket, StartupParameters, is_tls, startup_len};
use crate::sqlstate::SqlState;
use crate::stream::{BoxStream, Rewind};

/// Reported to every client: drivers refuse to work with servers of unknown or very old versions.
const SERVER_VERSION: &str = "14.1";
/// A client may ask for TLS and for GSSAPI encryption, each once, before it starts.
const MAX_NEGOTIATIONS: usize = 2;

impl Connection {
    /// Does the handshake on a new connection. A client that is refused is told why.
    ///
    /// # Errors
    /// The connection is unusable then, and closed.
    pub async fn accept<A: Authenticator>(
        stream: BoxStream,
        options: ServerOptions,
        authenticator: &A,
    ) -> Result<(Self, A::Identity), ConnectionError> {
        let limit = options.handshake_timeout;
        let handshake = handshake(stream, options, authenticator);
        env::clock::timeout(limit, handshake).await.unwrap_or(Err(ConnectionError::Timeout("shaking hands")))
    }

    /// Tells the client why it is refused.
    async fn refuse<T>(&mut self, error: ErrorFields) -> Result<T, ConnectionError> {
        put::error(self.writer.buffer(), &error);
        // If the client does not read it, the reason still holds.
        let _ = self.writer.shutdown().await;
        Err(ConnectionError::Refused(error))
    }
}

async fn handshake<A: Authenticator>(
    stream: BoxStream,
    options: ServerOptions,
    authenticator: &A,
) -> Result<(Connection, A::Identity), ConnectionError> {
    let (mut connection, encrypted) = negotiate(stream, options).await?;
    if connection.options.tls.is_some() && !encrypted {
        let error = ErrorFields::new(SqlState::INVALID_AUTHORIZATION, "must connect with TLS");
        return connection.refuse(error).await;
    }
    answer_version(&mut connection);
    let password = if authenticator.wants_password() { Some(ask_password(&mut connection).await?) } else { None };
    let identity = match authenticator.authenticate(password.as_deref()) {
        Ok(identity) => identity,
        Err(error) => return connection.refuse(error).await,
    };
    let buf = connection.writer.buffer();
    put::authentication_ok(buf);
    put::parameter_status(buf, "client_encoding", "UTF8");
    if password.is_none() {
        put::parameter_status(buf, "integer_datetimes", "on");
        put::parameter_status(buf, "server_version", SERVER_VERSION);
    }
    put::ready_for_query(buf);
    connection.writer.flush().await?;
    connection.reader.set_max_len(MAX_FRONTEND_MESSAGE);
    Ok((connection, identity))
}

/// Negotiates up to the startup packet; true if the connection is encrypted by then.
async fn negotiate(mut stream: BoxStream, options: ServerOptions) -> Result<(Connection, bool), ConnectionError> {
    let mut encrypted = false;
    let mut negotiations = 0;
    loop {
        let (read, write) = tokio::io::split(stream);
        let (mut reader, mut writer) = (MessageReader::new(read, MAX_PASSWORD_MESSAGE), MessageWriter::new(write));
        let packet = loop {
            let Some(packet) = read_packet(&mut reader, options.tls.is_some() && !encrypted).await? else { break None };
            negotiations += usize::from(!matches!(packet, StartupPacket::Startup(_)));
            if negotiations > MAX_NEGOTIATIONS {
                return Err(ProtocolError::Malformed("startup: too many requests before it").into());
            }
            let offer = options.tls.is_some() && !encrypted && packet == StartupPacket::Ssl;
            match packet {
                StartupPacket::Ssl | StartupPacket::GssEnc => {
                    writer.buffer().extend_from_slice(if offer { b"S" } else { b"N" });
                    writer.flush().await?;
                }
                other => break Some(other),
            }
            if offer {
                // Data received before the handshake is not protected by it, so it must not be treated as part of it.
                if !reader.buffered().is_empty() {
                    return Err(ProtocolError::Malformed("startup: data before the TLS handshake").into());
                }
                break None;
            }
        };
        match (packet, &options.tls) {
            (Some(StartupPacket::Startup(startup)), _) => {
                let extended = Extended::default();
                return Ok((Connection { reader, writer, startup, options, extended }, encrypted));
            }
            (None, Some(tls)) => {
                let (read, first) = reader.into_parts();
                let plain = Rewind::new(first, read.unsplit(writer.into_inner()));
                let accepted = tls.accept(plain).await.map_err(ConnectionError::Tls)?;
                stream = Box::new(accepted);
                encrypted = true;
            }
            _ => return Err(ProtocolError::Malformed("startup: cancel requests are not supported").into()),
        }
    }
}

type HandshakeReader = MessageReader<tokio::io::ReadHalf<BoxStream>>;

/// The next startup packet; `None` if TLS begins right away, which is only accepted with `tls`.
async fn read_packet(reader: &mut HandshakeReader, tls: bool) -> Result<Option<StartupPacket>, ConnectionError> {
    let closed = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    if !reader.has(1).await? {
        return Err(closed().into());
    }
    if tls && is_tls(reader.buffered()) {
        return Ok(None);
    }
    let field = reader.read_exact(4).await?.ok_or_else(closed)?;
    let field = field.first_chunk::<4>().copied().ok_or_else(closed)?;
    let body: Bytes = reader.read_exact(startup_len(field)? - 4).await?.ok_or_else(closed)?;
    Ok(Some(StartupPacket::decode(body)?))
}

/// Only 3.0 is supported; a client that requests more is told so, and decides whether that is enough.
fn answer_version(connection: &mut Connection) {
    let StartupParameters { minor, parameters } = &connection.startup;
    let unknown: Vec<&str> = parameters.iter().map(|(n, _)| n.as_str()).filter(|n| n.starts_with("_pq_.")).collect();
    if *minor > 0 || !unknown.is_empty() {
        put::negotiate_protocol_version(connection.writer.buffer(), unknown.into_iter());
    }
}

async fn ask_password(connection: &mut Connection) -> Result<String, ConnectionError> {
    put::authentication_cleartext(connection.writer.buffer());
    connection.writer.flush().await?;
    let closed = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let raw = connection.reader.read().await?.ok_or_else(closed)?;
    match FrontendMessage::decode(raw)? {
        FrontendMessage::Password(bytes) => {
            let text = bytes.strip_suffix(b"\0").and_then(|text| std::str::from_utf8(text).ok());
            Ok(text.ok_or(ProtocolError::Malformed("password"))?.to_owned())
        }
        other => Err(ProtocolError::Unexpected { tag: other.tag(), during: "waiting for a password" }.into()),
    }
}
