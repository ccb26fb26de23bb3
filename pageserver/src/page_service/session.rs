//! The session of an authenticated client.

use pq_proto::backend::ErrorFields;
use pq_proto::sqlstate::SqlState;
use tokio_util::sync::CancellationToken;

use super::errors::CommandError;
use super::shared::Shared;
use crate::auth::{AuthError, Grant};

/// A client and what it may do.
pub(super) struct Session<'a> {
    pub(super) shared: &'a Shared,
    /// The client's number, by which log lines about it can be found.
    pub(super) number: u64,
    pub(super) grant: Grant,
    /// Whether the client also reads from a standby.
    pub(super) reads_standbys: bool,
    pub(super) cancel: &'a CancellationToken,
}

impl Session<'_> {
    /// Completes when the server shuts down or the client loses its permission; returns the error for the client.
    pub(super) async fn must_end(&self) -> CommandError {
        tokio::select! {
            () = self.cancel.cancelled() => CommandError::shutdown(),
            () = self.grant.ended() => {
                let error = ErrorFields::new(SqlState::INVALID_AUTHORIZATION, AuthError::Ended.to_string());
                CommandError::Closing(error)
            }
        }
    }
}
