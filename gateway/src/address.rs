//! Where a compute listens.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use pq_proto::stream::BoxStream;
use tokio::net::{TcpStream, UnixStream};

/// Where a compute listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// There it asks for a password.
    Tcp(SocketAddr),
    /// A socket, where it trusts whoever reaches it.
    Unix(PathBuf),
}

impl Address {
    pub(crate) async fn connect(&self) -> io::Result<BoxStream> {
        Ok(match self {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
        })
    }
}
