//! The replication connection, and what all commands on it share.

use crate::client::{Client, ClientError, Config, ResultSet};

/// A connection for physical replication.
///
/// Commands are not cancellation safe; the `next` functions of [`BaseBackup`](super::BaseBackup) and
/// [`PhysicalStream`](super::PhysicalStream) are.
pub struct ReplicationClient {
    pub(super) client: Client,
    pub(super) server_major: u32,
}

impl ReplicationClient {
    /// Connects with `replication=true`.
    pub async fn connect(config: &Config) -> Result<Self, ClientError> {
        let client = Client::connect(config, &[("replication", "true")]).await?;
        let version = client.parameter("server_version").unwrap_or_default();
        let server_major = major_version(version)
            .ok_or_else(|| ClientError::Unsupported(format!("cannot read server version {version:?}")))?;
        Ok(Self { client, server_major })
    }

    /// The server's major version: 14, 15...
    pub fn server_major(&self) -> u32 {
        self.server_major
    }

    /// A setting that the server reported at the start, such as `server_version`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.client.parameter(name)
    }

    /// Terminates the session.
    pub async fn close(self) {
        self.client.close().await;
    }

    /// The only result set of `command`.
    pub(super) async fn query_one(&mut self, command: &str) -> Result<ResultSet, ClientError> {
        Ok(self.client.simple_query(command).await?.pop().unwrap_or_default())
    }
}

/// Parses 15 from "15.13 (Debian 15.13-1)", 18 from "18beta1".
pub(super) fn major_version(text: &str) -> Option<u32> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    text.get(..digits)?.parse().ok()
}
