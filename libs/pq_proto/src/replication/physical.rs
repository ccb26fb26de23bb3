//! START_REPLICATION: streams WAL as the server writes it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes};
use utils::lsn::Lsn;

use super::command::{identifier, parse};
use super::connection::ReplicationClient;
use crate::backend::{BackendMessage, Row};
use crate::client::ClientError;
use crate::client::unexpected;
use crate::error::ProtocolError;
use crate::fields::Fields;
use crate::frontend::put;

/// From the Unix epoch to the Postgres epoch, 2000-01-01.
const POSTGRES_EPOCH: Duration = Duration::from_secs(946_684_800);

/// An event of the WAL stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PhysicalEvent {
    /// WAL starting at `start`. It need not end at the end of a record or page.
    XLogData {
        /// LSN of the first byte. Adding the number of bytes does not overflow.
        start: Lsn,
        /// End of the server's WAL.
        server_end: Lsn,
        /// The bytes, at most 128 KiB.
        bytes: Bytes,
    },
    /// No new WAL.
    KeepAlive {
        /// End of the server's WAL.
        server_end: Lsn,
        /// The server wants a status now, otherwise it considers the client dead.
        reply_requested: bool,
    },
    /// The requested timeline ends here and was sent completely. The connection can be used for other commands.
    EndOfTimeline {
        /// The timeline with which the server continued.
        next_timeline: u32,
        /// Where the two diverge: the first LSN to request of the next one.
        switch_lsn: Lsn,
    },
}

/// The client's progress. All LSNs are those of the last byte plus one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StandbyStatus {
    /// Received.
    pub write: Lsn,
    /// Durable: the server may discard WAL below it, and commits wait for it.
    pub flush: Lsn,
    /// Visible to readers.
    pub apply: Lsn,
    /// Ask the server for a keepalive.
    pub reply_requested: bool,
}

/// A stream of WAL.
pub struct PhysicalStream {
    client: ReplicationClient,
    state: State,
}

enum State {
    /// Waiting for the answer to the command: a COPY, or only the end of the timeline.
    Starting,
    Streaming,
    /// No more data: result set and end of the command follow.
    Ending {
        /// Our own CopyDone has been sent completely.
        done_sent: bool,
        next: Option<(u32, Lsn)>,
    },
    Ended,
}

impl ReplicationClient {
    /// Starts streaming WAL of `timeline` from `lsn`, with `slot` if given. Receivers should request the start of a
    /// segment or page, as Postgres itself does.
    ///
    /// # Errors
    /// Those of the server: no such slot, or a timeline that is not in its history. If `lsn` is ahead of its WAL, or
    /// the WAL was removed ([`crate::sqlstate::SqlState::UNDEFINED_FILE`]), only [`PhysicalStream::next`] reports it.
    pub async fn start_physical(
        mut self,
        slot: Option<&str>,
        lsn: Lsn,
        timeline: u32,
    ) -> Result<PhysicalStream, ClientError> {
        let slot = slot.map(|name| format!("SLOT {} ", identifier(name))).unwrap_or_default();
        self.client.send_query(&format!("START_REPLICATION {slot}PHYSICAL {lsn} TIMELINE {timeline}")).await?;
        let mut stream = PhysicalStream { client: self, state: State::Starting };
        let first = stream.client.client.receive().await?;
        stream.take(first)?;
        Ok(stream)
    }
}

impl PhysicalStream {
    /// The next event. Cancellation safe. After [`PhysicalEvent::EndOfTimeline`] it returns [`ClientError::Closed`].
    ///
    /// A server that shuts down cleanly sends all its WAL, and then ends the connection: [`ClientError::Closed`].
    pub async fn next(&mut self) -> Result<PhysicalEvent, ClientError> {
        loop {
            if let State::Ending { done_sent: done_sent @ false, .. } = &mut self.state {
                self.client.client.writer().flush().await?;
                *done_sent = true;
            }
            if matches!(self.state, State::Ended) {
                return Err(ClientError::Closed);
            }
            let message = self.client.client.receive().await?;
            if let Some(event) = self.take(message)? {
                return Ok(event);
            }
        }
    }

    /// Reports the client's progress. Cancellation safe: unsent bytes go out with the next status.
    pub async fn send_status(&mut self, status: StandbyStatus) -> Result<(), ClientError> {
        if !matches!(self.state, State::Streaming) {
            return Ok(());
        }
        put::copy_data(self.client.client.writer().buffer(), |buf| {
            buf.put_u8(b'r');
            buf.put_u64(status.write.0);
            buf.put_u64(status.flush.0);
            buf.put_u64(status.apply.0);
            buf.put_i64(postgres_micros(env::clock::system_now()));
            buf.put_u8(status.reply_requested.into());
        });
        Ok(self.client.client.writer().flush().await?)
    }

    /// The connection, for other commands; `None` before the end of the timeline.
    pub fn into_client(self) -> Option<ReplicationClient> {
        matches!(self.state, State::Ended).then_some(self.client)
    }

    fn take(&mut self, message: BackendMessage) -> Result<Option<PhysicalEvent>, ClientError> {
        match (&mut self.state, message) {
            (State::Starting, BackendMessage::CopyBothResponse) => self.state = State::Streaming,
            (State::Starting, BackendMessage::RowDescription(_)) => {
                self.state = State::Ending { done_sent: true, next: None };
            }
            (State::Streaming, BackendMessage::CopyData(bytes)) => return decode(bytes).map(Some).map_err(Into::into),
            (State::Streaming, BackendMessage::CopyDone) => {
                put::copy_done(self.client.client.writer().buffer());
                self.state = State::Ending { done_sent: false, next: None };
            }
            // The server is shutting down: it closes the connection next.
            (State::Streaming, BackendMessage::CommandComplete(_)) => return Err(ClientError::Closed),
            (State::Ending { .. }, BackendMessage::RowDescription(_) | BackendMessage::CommandComplete(_)) => {}
            (State::Ending { next, .. }, BackendMessage::DataRow(row)) => *next = Some(next_timeline(&row)?),
            (State::Ending { next, .. }, BackendMessage::ReadyForQuery) => {
                let (next_timeline, switch_lsn) = next.ok_or(ProtocolError::Malformed("end of a timeline"))?;
                self.state = State::Ended;
                return Ok(Some(PhysicalEvent::EndOfTimeline { next_timeline, switch_lsn }));
            }
            (_, other) => return Err(unexpected(&other, "receiving WAL")),
        }
        Ok(None)
    }
}

fn next_timeline(row: &Row) -> Result<(u32, Lsn), ClientError> {
    Ok((parse(row, 0, "next timeline")?, parse(row, 1, "start of the next timeline")?))
}

pub(super) fn decode(bytes: Bytes) -> Result<PhysicalEvent, ProtocolError> {
    let mut fields = Fields::new(bytes, "message of the WAL stream");
    match fields.u8()? {
        b'w' => {
            let (start, server_end, _sent) = (Lsn(fields.u64()?), Lsn(fields.u64()?), fields.u64()?);
            let malformed = fields.malformed();
            let bytes = fields.rest();
            start.0.checked_add(bytes.len() as u64).ok_or(malformed)?;
            Ok(PhysicalEvent::XLogData { start, server_end, bytes })
        }
        b'k' => {
            let (server_end, _sent) = (Lsn(fields.u64()?), fields.u64()?);
            let reply_requested = fields.u8()? != 0;
            fields.end()?;
            Ok(PhysicalEvent::KeepAlive { server_end, reply_requested })
        }
        _ => Err(fields.malformed()),
    }
}

fn postgres_micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH + POSTGRES_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
