//! Establishes a session from a connection string: hosts in order, TLS, authentication.

use std::path::Path;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::config::{ChannelBinding, Host, SslMode, SslNegotiation};

use super::config::Config;
use super::error::ClientError;
use super::session::{Client, unexpected};
use super::simulated::connect as connect_simulated;
use super::{auth, tls};
use crate::backend::BackendMessage;
use crate::frontend::{StartupPacket, StartupParameters};
use crate::sqlstate::SqlState;
use crate::stream::BoxStream;

const DEFAULT_PORT: u16 = 5432;
/// Time limit for one host, from the first packet until the server is ready, unless the connection string sets one.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Where to connect: one host of a connection string.
enum Address {
    /// The address to connect to, and the host name, which TLS sends to the server.
    Tcp {
        address: String,
        name: String,
        port: u16,
    },
    Unix {
        socket: String,
    },
}

impl Client {
    /// Connects and authenticates. `session` are additional startup parameters, such as `replication`.
    ///
    /// Hosts are tried in order. TLS follows `sslmode` and `sslrootcert` as in libpq: `prefer` and `require` do not
    /// verify the server's certificate.
    pub async fn connect(config: &Config, session: &[(&str, &str)]) -> Result<Self, ClientError> {
        connect(config, session).await
    }

    /// As [`Client::connect`], over a stream that leads to the server already.
    pub async fn start(stream: BoxStream, config: &Config, session: &[(&str, &str)]) -> Result<Self, ClientError> {
        start(stream, config, session).await
    }
}

async fn connect(config: &Config, session: &[(&str, &str)]) -> Result<Client, ClientError> {
    if config.get_channel_binding() == ChannelBinding::Require {
        return Err(ClientError::Config("channel_binding=require is not supported".into()));
    }
    let limit = config.get_connect_timeout().copied().filter(|limit| !limit.is_zero()).unwrap_or(DEFAULT_TIMEOUT);
    let mut last = ClientError::Config("no host given".into());
    for address in addresses(config)? {
        let attempt = connect_host(config, &address, session);
        last = match env::clock::timeout(limit, attempt).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(error)) => error,
            Err(_) => ClientError::Timeout("connecting"),
        };
    }
    Err(last)
}

/// As in libpq: there is one port for all hosts, or one for each; `hostaddr` takes precedence over `host`.
fn addresses(config: &Config) -> Result<Vec<Address>, ClientError> {
    let (hosts, literal, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let count = hosts.len().max(literal.len());
    if (!hosts.is_empty() && !literal.is_empty() && hosts.len() != literal.len())
        || (ports.len() > 1 && ports.len() != count)
    {
        return Err(ClientError::Config("numbers of hosts, addresses and ports differ".into()));
    }
    let address = |i: usize| {
        let port = ports.get(i).or(ports.first()).copied().unwrap_or(DEFAULT_PORT);
        match (hosts.get(i), literal.get(i)) {
            (Some(Host::Unix(dir)), _) => Address::Unix { socket: socket_path(dir, port) },
            (Some(Host::Tcp(name)), literal) => {
                let address = literal.map_or_else(|| name.clone(), ToString::to_string);
                Address::Tcp { address, name: name.clone(), port }
            }
            (None, literal) => {
                let address = literal.map_or_else(|| "localhost".to_owned(), ToString::to_string);
                Address::Tcp { name: address.clone(), address, port }
            }
        }
    };
    Ok((0..count).map(address).collect())
}

fn socket_path(dir: &Path, port: u16) -> String {
    dir.join(format!(".s.PGSQL.{port}")).display().to_string()
}

async fn connect_host(config: &Config, address: &Address, session: &[(&str, &str)]) -> Result<Client, ClientError> {
    let mode = match address {
        Address::Tcp { .. } => config.get_ssl_mode(),
        Address::Unix { .. } => SslMode::Disable,
    };
    let stream = match address {
        Address::Tcp { address, name, port } => connect_tcp(config, mode, address, name, *port).await?,
        Address::Unix { socket } => connect_unix(socket).await?,
    };
    match start(stream, config, session).await {
        // A server may accept this client only without TLS. libpq's `prefer` tries that as well.
        Err(error) if mode == SslMode::Prefer && error.sqlstate() == Some(SqlState::INVALID_AUTHORIZATION) => {
            let Address::Tcp { address, name, port } = address else { return Err(error) };
            let stream = connect_tcp(config, SslMode::Disable, address, name, *port).await?;
            start(stream, config, session).await
        }
        result => result,
    }
}

async fn connect_unix(socket: &str) -> Result<BoxStream, ClientError> {
    let stream = match connect_simulated(socket) {
        Some(stream) => stream,
        None => UnixStream::connect(socket).await.map(|stream| Box::new(stream) as BoxStream),
    };
    stream.map_err(|source| ClientError::Connect { host: socket.to_owned(), source })
}

async fn connect_tcp(
    config: &Config,
    mode: SslMode,
    address: &str,
    name: &str,
    port: u16,
) -> Result<BoxStream, ClientError> {
    let failed = |source| ClientError::Connect { host: format!("{address}:{port}"), source };
    let mut stream = TcpStream::connect((address, port)).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    if mode == SslMode::Disable {
        return Ok(Box::new(stream));
    }
    if config.get_ssl_negotiation() == SslNegotiation::Direct {
        return tls::start(stream, name, true, &config.trust).await;
    }
    let mut request = BytesMut::new();
    StartupPacket::Ssl.encode(&mut request);
    stream.write_all(&request).await?;
    // Exactly one byte: whatever follows belongs to TLS.
    match stream.read_u8().await? {
        b'S' => tls::start(stream, name, false, &config.trust).await,
        b'N' if mode == SslMode::Prefer => Ok(Box::new(stream)),
        b'N' => Err(ClientError::Tls("the server does not offer it, but sslmode requires it".into())),
        _ => Err(ClientError::Tls("the server did not understand the request".into())),
    }
}

/// The user name: as in libpq, the operating system's user by default.
fn user(config: &Config) -> String {
    let system = || std::env::var("USER").unwrap_or_else(|_| "postgres".to_owned());
    config.get_user().map_or_else(system, str::to_owned)
}

fn parameters(config: &Config, session: &[(&str, &str)]) -> StartupParameters {
    let mut parameters = vec![("user".to_owned(), user(config)), ("client_encoding".to_owned(), "UTF8".to_owned())];
    let named = [
        ("database", config.get_dbname()),
        ("options", config.get_options()),
        ("application_name", config.get_application_name()),
    ];
    let given = named.into_iter().filter_map(|(name, value)| Some((name, value?)));
    parameters.extend(given.chain(session.iter().copied()).map(|(n, v)| (n.to_owned(), v.to_owned())));
    StartupParameters { minor: 0, parameters }
}

/// Sends the startup packet, authenticates, and collects the server's parameters.
async fn start(stream: BoxStream, config: &Config, session: &[(&str, &str)]) -> Result<Client, ClientError> {
    let mut client = Client::over(stream);
    StartupPacket::Startup(parameters(config, session)).encode(client.writer.buffer());
    client.writer.flush().await?;
    auth::authenticate(&mut client, &user(config), config.get_password()).await?;
    loop {
        match client.receive().await? {
            BackendMessage::BackendKeyData | BackendMessage::NegotiateProtocolVersion => {}
            BackendMessage::ReadyForQuery => return Ok(client),
            other => return Err(unexpected(&other, "starting a session")),
        }
    }
}
