//! A client that was let in.

use pq_proto::backend::ErrorFields;
use pq_proto::sqlstate::SqlState;
use tokio_util::sync::CancellationToken;

use super::errors::CommandError;
use super::shared::Shared;
use crate::auth::{AuthError, Grant};

/// A client and what it may do.
pub(super) struct Session<'a> {
    pub(super) shared: &'a Shared,
    pub(super) grant: Grant,
    pub(super) cancel: &'a CancellationToken,
}

impl Session<'_> {
    /// When the server ends, or the client may not ask any more; what it is told.
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
