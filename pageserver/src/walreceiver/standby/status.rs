//! How a standby follows a timeline, for people and for metrics.

use serde::Serialize;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use crate::walreceiver::status::WalReceiverState;

/// How a standby follows the writer of a timeline.
#[derive(Clone, Debug, Serialize)]
pub struct StandbyStatus {
    /// The timeline.
    pub timeline_id: TimelineId,
    /// Whether WAL comes.
    pub state: WalReceiverState,
    /// Host and port of the server that writes it.
    pub host: String,
    /// The name under which that knows this server, for `synchronous_standby_names`.
    pub name: String,
    /// Up to here the bucket has it.
    pub bucket_lsn: Lsn,
    /// End of what was received.
    pub received_lsn: Lsn,
    /// End of what is durable in the journal here, without a gap behind what the bucket has.
    pub journaled_lsn: Lsn,
    /// End of the server's WAL, as last reported.
    pub server_end_lsn: Option<Lsn>,
    /// Bytes of that which are not durable here.
    pub lag_bytes: Option<u64>,
    /// Why nothing comes.
    pub error: Option<String>,
}

impl StandbyStatus {
    /// Whether WAL comes.
    pub(crate) fn is_following(&self) -> bool {
        matches!(self.state, WalReceiverState::CatchingUp | WalReceiverState::Streaming)
    }
}
