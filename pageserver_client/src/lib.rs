//! Client of the page service: requests pages, sizes and base backups from a pageserver.
//!
//! ```no_run
//! # async fn example() -> Result<(), pageserver_client::ClientError> {
//! use pageserver_api::pagestream::{ProtocolVersion, Query, Request, RequestHeader};
//! use utils::lsn::Lsn;
//! # let (tenant, timeline) = (utils::id::TenantId::generate(), utils::id::TimelineId::generate());
//! # let rel: pageserver_api::reltag::RelTag = "1663/5/16384".parse().unwrap();
//!
//! let server = pageserver_client::PageServer::new("host=127.0.0.1 port=64000", None)?;
//! let mut stream = server.pagestream(ProtocolVersion::V3, tenant, timeline).await?;
//! let header = RequestHeader { reqid: 1, request_lsn: Lsn::MAX, not_modified_since: Lsn(0x16B3748) };
//! let answer = stream.request(&Request { header, query: Query::GetPage(rel, 0) }).await?;
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod backup;
mod pagestream;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pageserver_api::pagestream::ProtocolVersion;
use pq_proto::backend::BackendMessage;
use pq_proto::client::{Client, Config};
use pq_proto::error::ProtocolError;
use pq_proto::stream::BoxStream;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use utils::shard::TenantShardId;

pub use backup::BackupStream;
pub use pagestream::{PageReceiver, PageSender, PageStream};
pub use pq_proto::client::ClientError;

/// How to reach a pageserver. Every stream and every command uses its own connection.
#[derive(Clone, Debug)]
pub struct PageServer {
    config: Config,
}

/// Options of a base backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupOptions {
    /// The LSN; `None` for the latest.
    pub lsn: Option<Lsn>,
    /// Compress with gzip.
    pub gzip: bool,
    /// For a standby.
    pub replica: bool,
}

impl PageServer {
    /// Takes a libpq connection string; `token` takes precedence over a password in it.
    ///
    /// # Errors
    /// The string is malformed, or asks for what is not supported. The error does not repeat it, because it may contain
    /// a password.
    pub fn new(connection_string: &str, token: Option<&str>) -> Result<Self, ClientError> {
        let mut config: Config = connection_string.parse()?;
        if let Some(token) = token {
            config.password(token);
        }
        Ok(Self { config })
    }

    /// Starts a stream of page requests for a timeline.
    pub async fn pagestream(
        &self,
        version: ProtocolVersion,
        tenant: TenantId,
        timeline: TimelineId,
    ) -> Result<PageStream, ClientError> {
        let client = self.connect().await?;
        pages(client, version, tenant, timeline).await
    }

    /// As [`PageServer::pagestream`], over a stream that leads to the server already.
    pub async fn pagestream_over(
        &self,
        stream: BoxStream,
        version: ProtocolVersion,
        tenant: TenantId,
        timeline: TimelineId,
    ) -> Result<PageStream, ClientError> {
        let client = Client::start(stream, &self.config, &[]).await?;
        pages(client, version, tenant, timeline).await
    }

    /// A data directory without relations, as a tar stream.
    pub async fn basebackup(
        &self,
        tenant: TenantId,
        timeline: TimelineId,
        options: BackupOptions,
    ) -> Result<BackupStream, ClientError> {
        let mut command = format!("basebackup {tenant} {timeline}");
        options.lsn.iter().for_each(|lsn| command.push_str(&format!(" {lsn}")));
        let flags = [(options.gzip, " --gzip"), (options.replica, " --replica")];
        flags.iter().filter(|(wanted, _)| *wanted).for_each(|(_, flag)| command.push_str(flag));
        self.start_copy(&command, &BackendMessage::CopyOutResponse).await.map(BackupStream::new)
    }

    /// The boot image of a compute, as a tar stream: see [`pageserver_api::boot_image`].
    pub async fn boot_image(
        &self,
        tenant: TenantId,
        timeline: TimelineId,
        lsn: Lsn,
        gzip: bool,
    ) -> Result<BackupStream, ClientError> {
        let flag = if gzip { " --gzip" } else { "" };
        let command = format!("bootimage {tenant} {timeline} {lsn}{flag}");
        self.start_copy(&command, &BackendMessage::CopyOutResponse).await.map(BackupStream::new)
    }

    /// A whole data directory, as a tar stream.
    pub async fn fullbackup(
        &self,
        tenant: TenantId,
        timeline: TimelineId,
        lsn: Option<Lsn>,
    ) -> Result<BackupStream, ClientError> {
        let lsn = lsn.map(|lsn| format!(" {lsn}")).unwrap_or_default();
        let command = format!("fullbackup {tenant} {timeline}{lsn}");
        self.start_copy(&command, &BackendMessage::CopyOutResponse).await.map(BackupStream::new)
    }

    /// Requests that `lsn` stay readable. Returns until when it does, or `None` if the server makes no promise.
    pub async fn lease_lsn(
        &self,
        tenant: TenantShardId,
        timeline: TimelineId,
        lsn: Lsn,
    ) -> Result<Option<SystemTime>, ClientError> {
        let mut client = self.connect().await?;
        let sets = client.simple_query(&format!("lease lsn {tenant} {timeline} {lsn}")).await?;
        client.close().await;
        let malformed = || ClientError::Protocol(ProtocolError::Malformed("answer to lease lsn"));
        let row = sets.first().and_then(|set| set.rows.first()).ok_or_else(malformed)?;
        let Some(millis) = row.first().ok_or_else(malformed)? else { return Ok(None) };
        let millis = std::str::from_utf8(millis).ok().and_then(|text| text.parse().ok()).ok_or_else(malformed)?;
        UNIX_EPOCH.checked_add(Duration::from_millis(millis)).map(Some).ok_or_else(malformed)
    }

    async fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.config, &[]).await
    }

    /// Runs a command that starts a COPY.
    async fn start_copy(&self, command: &str, expected: &BackendMessage) -> Result<Client, ClientError> {
        start_copy(self.connect().await?, command, expected).await
    }
}

async fn pages(
    client: Client,
    version: ProtocolVersion,
    tenant: TenantId,
    timeline: TimelineId,
) -> Result<PageStream, ClientError> {
    let command = format!("{} {tenant} {timeline}", version.command());
    let client = start_copy(client, &command, &BackendMessage::CopyBothResponse).await?;
    Ok(PageStream::new(version, client))
}

async fn start_copy(mut client: Client, command: &str, expected: &BackendMessage) -> Result<Client, ClientError> {
    client.send_query(command).await?;
    match client.receive().await? {
        started if started == *expected => Ok(client),
        BackendMessage::ErrorResponse(error) => Err(ClientError::Server(error)),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(message: &BackendMessage) -> ClientError {
    ClientError::Protocol(ProtocolError::Unexpected { tag: message.tag(), during: "in a COPY" })
}
