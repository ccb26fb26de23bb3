//! Status of a receiver, for people and for metrics.

use std::time::UNIX_EPOCH;

use journal::Lane;
use parking_lot::Mutex;
use serde::Serialize;
use utils::lsn::Lsn;

use super::source::WalSource;
use super::writer::Writer;
use engine::tenant::timeline::Timeline;

/// State of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WalReceiverState {
    /// There is no connection yet.
    Connecting,
    /// Receiving WAL that was written earlier.
    CatchingUp,
    /// Receiving WAL as it is written.
    Streaming,
    /// The last attempt failed; it will be retried automatically.
    Retrying,
    /// Someone must intervene: see the error.
    Failed,
    /// It was stopped.
    Stopped,
}

/// Status of a receiver.
#[derive(Clone, Debug, Serialize)]
pub struct WalReceiverStatus {
    /// The state.
    pub state: WalReceiverState,
    /// Host and port of the server.
    pub host: String,
    /// The role to connect as.
    pub user: String,
    /// The replication slot on the server.
    pub slot: String,
    /// The compute that the server is, if it is the timeline's writer.
    pub writer: Option<Writer>,
    /// The server's WAL timeline that is being streamed.
    pub postgres_timeline: Option<u32>,
    /// End of the received WAL.
    pub received_lsn: Lsn,
    /// End of the last record visible to readers.
    pub applied_lsn: Lsn,
    /// End of what is durable: the server may remove WAL below it.
    pub flushed_lsn: Lsn,
    /// End of what is durable in the journal, if there is one.
    pub journaled_lsn: Option<Lsn>,
    /// Why the server is not told of that, if so.
    pub journal_error: Option<String>,
    /// End of the server's WAL, as last reported.
    pub server_end_lsn: Option<Lsn>,
    /// Time of the last message, in milliseconds since the Unix epoch.
    pub last_message_unix_ms: Option<u64>,
    /// Why the last attempt ended.
    pub last_error: Option<String>,
}

impl WalReceiverStatus {
    /// The status of a timeline whose source is invalid.
    pub(super) fn unfit(error: String) -> Self {
        Self {
            state: WalReceiverState::Failed,
            host: String::new(),
            user: String::new(),
            slot: String::new(),
            writer: None,
            postgres_timeline: None,
            received_lsn: Lsn::INVALID,
            applied_lsn: Lsn::INVALID,
            flushed_lsn: Lsn::INVALID,
            journaled_lsn: None,
            journal_error: None,
            server_end_lsn: None,
            last_message_unix_ms: None,
            last_error: Some(error),
        }
    }

    /// Whether WAL is arriving.
    pub fn is_following(&self) -> bool {
        matches!(self.state, WalReceiverState::CatchingUp | WalReceiverState::Streaming)
    }
}

/// Written by the receiver's task, read by others.
#[derive(Debug)]
pub(super) struct StatusCell(Mutex<WalReceiverStatus>);

impl StatusCell {
    pub(super) fn new(source: &WalSource) -> Self {
        Self(Mutex::new(WalReceiverStatus {
            state: WalReceiverState::Connecting,
            host: source.host(),
            user: source.user(),
            slot: source.slot().to_owned(),
            writer: source.writer().cloned(),
            last_error: None,
            ..WalReceiverStatus::unfit(String::new())
        }))
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut WalReceiverStatus)) {
        change(&mut self.0.lock());
    }

    /// Bytes up to `received` have arrived; the server's WAL ends at `server_end`.
    pub(super) fn message(&self, received: Option<Lsn>, server_end: Lsn) {
        let now = env::clock::system_now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.update(|status| {
            status.received_lsn = received.unwrap_or(status.received_lsn);
            status.server_end_lsn = Some(server_end);
            status.last_message_unix_ms = u64::try_from(now.as_millis()).ok();
            let all_here = status.received_lsn >= server_end;
            status.state = if all_here { WalReceiverState::Streaming } else { WalReceiverState::CatchingUp };
            status.last_error = None;
        });
    }

    pub(super) fn failed(&self, state: WalReceiverState, error: String) {
        self.update(|status| (status.state, status.last_error) = (state, Some(error)));
    }

    /// The status, with the present LSNs of `timeline` and in the journal.
    pub(super) fn read(&self, timeline: &Timeline, lane: Option<&Lane>) -> WalReceiverStatus {
        let (applied_lsn, flushed_lsn) = (timeline.last_record_lsn(), timeline.durable_lsn());
        let status = self.0.lock().clone();
        let (received_lsn, journaled_lsn) = (status.received_lsn.max(applied_lsn), lane.map(Lane::synced));
        WalReceiverStatus { received_lsn, applied_lsn, flushed_lsn, journaled_lsn, ..status }
    }
}
