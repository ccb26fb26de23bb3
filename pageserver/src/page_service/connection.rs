//! One client connection.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use pq_proto::backend::put;
use pq_proto::server::{Connection, ConnectionError, Query};
use pq_proto::stream::BoxStream;
use tokio_util::sync::CancellationToken;
use utils::excerpt::Excerpt;
use utils::id::{TenantId, TimelineId};
use utils::shard::TenantShardId;

use super::auth::Gate;
use super::command::{self, Command};
use super::errors::CommandError;
use super::reading::{self, Read};
use super::session::Session;
use super::shared::Shared;
use super::{backup, stream};
use crate::places::Place;
use engine::tenant::timeline::Timeline;
use metrics::METRICS;
use pgdata::basebackup::Extent;

/// Numbers of clients since the start.
static CLIENTS: AtomicU64 = AtomicU64::new(1);

/// Command tag for commands that return no rows.
const DONE: &str = "SELECT 1";

pub(super) async fn run(shared: &Shared, stream: BoxStream, peer: &str, place: &Place, cancel: &CancellationToken) {
    METRICS.live_connections_started.inc();
    let _live = Live;
    let gate = Gate { shared, place };
    let accepted = tokio::select! {
        biased;
        () = cancel.cancelled() => return,
        () = place.gives_way() => return tracing::debug!(%peer, "not let in yet, it gives way to another client"),
        accepted = Connection::accept(stream, shared.server_options(), &gate) => accepted,
    };
    let (mut connection, (grant, _turn)) = match accepted {
        Ok(accepted) => accepted,
        Err(error) => return tracing::info!(%peer, "client of the page service not let in: {error}"),
    };
    let application = connection.startup().get("application_name").unwrap_or_default();
    let client = CLIENTS.fetch_add(1, Ordering::Relaxed);
    tracing::debug!(client, %peer, application, "client of the page service let in");
    let reads_standbys = reading::reads_standbys(connection.startup());
    let session = Session { shared, number: client, grant, reads_standbys, cancel };
    match session.serve(&mut connection).await {
        Ok(()) => tracing::debug!(client, %peer, "client left"),
        Err(CommandError::Connection(error)) => log_end(client, peer, &error),
        Err(CommandError::Failed(error) | CommandError::Closing(error)) => {
            tracing::info!(client, %peer, "connection closed: {error}");
            connection.fail_and_close(&error).await;
        }
    }
}

/// Counts the connection as finished when dropped.
struct Live;

impl Drop for Live {
    fn drop(&mut self) {
        METRICS.live_connections_finished.inc();
    }
}

fn log_end(client: u64, peer: &str, error: &ConnectionError) {
    match error {
        // Computes come and go, and do not always say goodbye.
        ConnectionError::Io(error) => tracing::debug!(client, %peer, "client lost: {error}"),
        error => tracing::info!(client, %peer, "connection closed: {error}"),
    }
}

impl Session<'_> {
    /// Serves commands until the client leaves or an error ends the connection.
    async fn serve(&self, connection: &mut Connection) -> Result<(), CommandError> {
        loop {
            let query = tokio::select! {
                biased;
                end = self.must_end() => return Err(end),
                query = connection.next_query() => query?,
            };
            let Some(query) = query else { return Ok(()) };
            match self.run(connection, &query).await {
                Ok(Next::Command) => {}
                Ok(Next::End) => return Ok(()),
                Err(CommandError::Failed(error)) => {
                    tracing::info!(client = self.number, "command {:?} failed: {error}", Excerpt(&query.text));
                    connection.fail(&query, &error).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn run(&self, connection: &mut Connection, query: &Query) -> Result<Next, CommandError> {
        let command = command::parse(&query.text).map_err(CommandError::failed)?;
        if let Some(kind) = command.kind() {
            METRICS.compute_commands.of(kind).inc();
        }
        match command {
            Command::PageStream { version, tenant, timeline } => {
                let timeline = self.to_read(TenantShardId::unsharded(tenant), timeline).await?;
                stream::serve(self, connection, timeline, version).await?;
                return Ok(Next::End);
            }
            Command::BaseBackup { tenant, timeline, lsn, gzip, replica: _ } => {
                let timeline = self.unsharded(tenant, timeline).await?;
                backup::send(self, connection, timeline.timeline(), lsn, Extent::WithoutRelations, gzip).await?;
            }
            Command::FullBackup { tenant, timeline, lsn } => {
                let timeline = self.unsharded(tenant, timeline).await?;
                backup::send(self, connection, timeline.timeline(), lsn, Extent::Full, false).await?;
            }
            Command::BootImage { tenant, timeline, lsn, gzip } => {
                let timeline = self.unsharded(tenant, timeline).await?;
                backup::send(self, connection, timeline.timeline(), lsn, Extent::BootImage, gzip).await?;
            }
            Command::Lease { tenant, timeline, lsn } => {
                let timeline = self.timeline(tenant, timeline)?;
                // The owner has to know of it.
                timeline.remote().map_or(Ok(()), |remote| remote.check_lease())?;
                // That an LSN cannot be leased is a valid answer, not an error.
                let until = timeline.lease(lsn, self.shared.settings.lease_length).await.ok();
                send_lease(connection, query, until);
            }
            Command::Set => {}
        }
        connection.complete(query, DONE).await?;
        Ok(Next::Command)
    }

    async fn unsharded(&self, tenant: TenantId, timeline: TimelineId) -> Result<Read, CommandError> {
        self.to_read(TenantShardId::unsharded(tenant), timeline).await
    }

    /// Looks up a timeline that the client may use, and that this server owns.
    fn timeline(&self, tenant: TenantShardId, timeline: TimelineId) -> Result<Timeline, CommandError> {
        self.check_tenant(tenant)?;
        Ok(self.shared.manager.get(tenant, timeline)?)
    }
}

/// What to do after a command.
enum Next {
    Command,
    /// The client has left.
    End,
}

fn send_lease(connection: &mut Connection, query: &Query, until: Option<SystemTime>) {
    let millis = until.map(|until| until.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().to_string());
    let columns = command::columns(&query.text).unwrap_or_default();
    let buf = connection.writer().buffer();
    if !query.extended {
        put::row_description(buf, columns);
    }
    put::data_row(buf, &[millis.as_deref().map(str::as_bytes)]);
}
