//! Sending base backups.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use pq_proto::backend::put;
use pq_proto::server::{Connection, ServerWriter};
use utils::lsn::Lsn;

use super::errors::CommandError;
use super::lsn::wait_for;
use super::session::Session;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::timeline::Timeline;
use pgdata::TimelineStore;
use pgdata::basebackup::{self, BackupError, BackupRequest, Extent, Sink};

/// Number of bytes collected before they are sent.
const SEND_ABOVE: usize = 256 * 1024;

/// Sends the bytes of the archive as COPY data.
struct CopyOut<'a> {
    writer: &'a mut ServerWriter,
    limit: Duration,
}

impl Sink for CopyOut<'_> {
    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        put::copy_data(self.writer.buffer(), |buf| buf.extend_from_slice(&bytes));
        let sent = env::clock::timeout(self.limit, self.writer.flush_above(SEND_ABOVE)).await;
        sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Sends a backup as of `lsn`, or of the last record.
pub(super) async fn send(
    session: &Session<'_>,
    connection: &mut Connection,
    timeline: &Timeline,
    lsn: Option<Lsn>,
    extent: Extent,
    gzip: bool,
) -> Result<(), CommandError> {
    let gone = timeline.cancelled();
    let work = send_all(session, connection, timeline, lsn, extent, gzip);
    tokio::select! {
        biased;
        end = session.must_end() => Err(end),
        () = gone.cancelled() => Err(CommandError::shutdown()),
        done = work => done,
    }
}

async fn send_all(
    session: &Session<'_>,
    connection: &mut Connection,
    timeline: &Timeline,
    lsn: Option<Lsn>,
    extent: Extent,
    gzip: bool,
) -> Result<(), CommandError> {
    // Older clients use 0/0 for the latest.
    let lsn = lsn.filter(|lsn| lsn.is_valid());
    if let Some(lsn) = lsn {
        wait_for(timeline, lsn, session.shared.manager.conf().wait_lsn_timeout).await?;
    }
    let lsn = lsn.unwrap_or_else(|| timeline.last_record_lsn());
    timeline.check_owned(lsn)?;
    let record = timeline.record_lsn();
    let prev = if record.last == lsn { record.prev } else { Lsn::INVALID };
    // It may take longer than history is kept.
    let pinned = timeline.pin(lsn);
    let _pin = pinned.map_err(|error| CommandError::failed(format!("invalid basebackup lsn: {error}")))?;
    put::copy_out(connection.writer().buffer());
    connection.writer().flush().await?;
    let ctx = RequestContext::new(TaskKind::BaseBackup, DownloadBehavior::Download);
    let store = TimelineStore::new(timeline.clone(), ctx);
    let mut sink = CopyOut { writer: connection.writer(), limit: session.shared.settings.idle_timeout };
    match basebackup::write(&store, BackupRequest { lsn, prev, extent, gzip }, &mut sink).await {
        Ok(()) => {}
        Err(BackupError::Sink(error)) => return Err(error.into()),
        Err(BackupError::Storage(error)) => {
            tracing::error!(timeline = %timeline.timeline_id(), %lsn, "base backup failed: {error}");
            return Err(error.into());
        }
    }
    put::copy_done(connection.writer().buffer());
    Ok(())
}
