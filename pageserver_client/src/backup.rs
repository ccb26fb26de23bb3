//! A base backup while it is being received.

use bytes::Bytes;
use pq_proto::backend::BackendMessage;
use pq_proto::client::Client;

use super::{ClientError, unexpected};

/// The bytes of a tar archive.
pub struct BackupStream {
    client: Client,
    done: bool,
}

impl BackupStream {
    pub(super) fn new(client: Client) -> Self {
        Self { client, done: false }
    }

    /// The next bytes; `None` at the end of a backup that the server has declared complete. Cancellation safe.
    ///
    /// # Errors
    /// The bytes received so far are then unusable.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        while !self.done {
            match self.client.receive().await? {
                BackendMessage::CopyData(bytes) => return Ok(Some(bytes)),
                BackendMessage::CopyDone | BackendMessage::CommandComplete(_) => {}
                BackendMessage::ReadyForQuery => self.done = true,
                BackendMessage::ErrorResponse(error) => return Err(ClientError::Server(error)),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(None)
    }
}
